// Migrates a database to this program's schema. Each migration adds the parts that schema.ts marks with its number, the
// same for every database. In a new database the first one creates everything.

import { isDeepStrictEqual } from 'node:util'
import { type ColumnDefinitionBuilder, type CreateTableBuilder, type Kysely, sql } from 'kysely'
import { type Migration, Migrator } from 'kysely/migration'
import { messageOf } from '../domain/errors.ts'
import { type Column, type Columns, INDEXES, type Index, type Schema, TABLES } from './schema.ts'
import { SchemaMismatch } from './store.ts'

/** PostgreSQL's error code for a missing table. */
const UNDEFINED_TABLE = '42P01'

/** Tables and indexes, marked with the numbers of the migrations that add them. */
interface Program {
  migrations: readonly Step[]
  tables: Readonly<Record<string, Columns>>
  indexes: Readonly<Record<string, Index>>
}

interface Step {
  name: string
  /** Statements that run after the columns, tables and indexes of the migration were added. */
  statements?: readonly string[]
}

/** The migrations in order, from number 1, which makes the schema of version 1.0.0. */
export const MIGRATIONS: readonly Step[] = [{ name: 'tables' }]

const PROGRAM: Program = { migrations: MIGRATIONS, tables: TABLES, indexes: INDEXES }

function migrationsOf({ migrations, tables, indexes }: Program): Record<string, Migration> {
  const last = migrations.length
  let isNew = false
  return Object.fromEntries(
    migrations.map(({ name, statements = [] }, i) => [
      `${String(i + 1).padStart(4, '0')}-${name}`,
      {
        async up(db: Kysely<unknown>) {
          if (isNew) return
          isNew = i === 0
          const addedBy = isNew ? { first: 1, last } : { first: i + 1, last: i + 1 }
          for (const [table, columns] of Object.entries(tables)) await addParts(db, table, columns, addedBy)
          for (const [index, made] of Object.entries(indexes))
            if (isAdded(made.since, addedBy)) await makeIndex(db, index, made)
          if (isNew) return
          for (const one of statements) await sql.raw(one).execute(db)
        },
      },
    ]),
  )
}

/** The numbers of the migrations that add a part. */
interface Added {
  first: number
  last: number
}

function isAdded(since = 1, { first, last }: Added): boolean {
  return since >= first && since <= last
}

/** Adds the parts of a table that some migrations add. */
async function addParts(db: Kysely<unknown>, name: string, columns: Columns, addedBy: Added): Promise<void> {
  const added = Object.entries(columns).filter(([, { traits }]) => isAdded(traits.since, addedBy))
  if (Object.values(columns).some(({ traits }) => (traits.since ?? 1) < addedBy.first)) {
    // A statement of SQLite adds one column.
    for (const [column, described] of added)
      await db.schema.alterTable(name).addColumn(column, described.kind, defined(described)).execute()
    return
  }
  if (added.length === 0) return
  const key = added.filter(([, { traits }]) => traits.isKey).map(([column]) => column)
  const only = key.length === 1 ? key[0] : undefined
  let made: CreateTableBuilder<string, string> = db.schema.createTable(name)
  for (const [column, described] of added)
    made = made.addColumn(column, described.kind, defined(described, column === only))
  if (only === undefined) made = made.addPrimaryKeyConstraint(`${name}_pk`, key)
  if (name === 'deliveries') made = made.addUniqueConstraint('deliveries_once', ['webhook_id', 'event_id'])
  await made.execute()
}

function defined({ traits }: Column<unknown>, isKey = false) {
  return (column: ColumnDefinitionBuilder): ColumnDefinitionBuilder => {
    let made = isKey ? column.primaryKey() : traits.isNullable ? column : column.notNull()
    if (traits.initial !== undefined) made = made.defaultTo(traits.initial)
    if (traits.isUnique) made = made.unique()
    if (traits.references !== undefined) made = made.references(`${traits.references}.id`)
    return made
  }
}

/** Creates an index. Kysely's builder binds no values into DDL, so the condition of a partial index is text. */
async function makeIndex(db: Kysely<unknown>, name: string, { table, on, where }: Index): Promise<void> {
  const condition = where === undefined ? sql`` : sql.raw(` WHERE ${where}`)
  await sql`CREATE INDEX ${sql.id(name)} ON ${sql.table(table)} (${sql.raw(on)})${condition}`.execute(db)
}

/** The names of the completed migrations; none in a new database. */
async function migrationsRun(db: Kysely<Schema>): Promise<string[]> {
  try {
    const { rows } = await sql<{ name: string }>`SELECT name FROM kysely_migration ORDER BY name`.execute(db)
    return rows.map(({ name }) => name)
  } catch (error) {
    const isMissing =
      error instanceof Error &&
      (error.message.includes('no such table') || Reflect.get(error, 'code') === UNDEFINED_TABLE)
    if (isMissing) return []
    throw error
  }
}

/** Runs the missing migrations under the database's own migration lock. Throws SchemaMismatch for any other schema. */
export async function migrate(db: Kysely<Schema>, program = PROGRAM): Promise<void> {
  const all = migrationsOf(program)
  // Most starts have nothing to migrate, and Kysely's migrator first reads the columns of every table.
  if (isDeepStrictEqual(await migrationsRun(db), Object.keys(all))) return
  const migrator = new Migrator({ db, provider: { getMigrations: async () => all } })
  const { error } = await migrator.migrateToLatest()
  if (error === undefined) return
  const text = messageOf(error)
  if (text.includes('corrupted migrations'))
    throw new SchemaMismatch(
      `This database has a schema that this program does not know (${text}).`,
      'Run the version of offpeak that wrote this database, or restore a backup.',
    )
  throw error
}
