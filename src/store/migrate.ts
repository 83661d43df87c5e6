// Brings a database to this program's schema. Each migration creates what schema.ts marks with its number, the same for
// every database. In a new database the first one creates everything: adding 70 columns one by one takes several times
// as long.

import { isDeepStrictEqual } from 'node:util'
import { type ColumnDefinitionBuilder, type CreateTableBuilder, type Kysely, sql } from 'kysely'
import { type Migration, Migrator } from 'kysely/migration'
import { isNotRun } from '../domain/batch.ts'
import { batchName } from './batches.ts'
import { type Column, type Columns, INDEXES, type Index, type Schema, TABLES } from './schema.ts'
import { SchemaMismatch } from './store.ts'

/** The first migration of the schema that was used before any version was released. */
const UNRELEASED = '0001-start'

/** Error code of PostgreSQL. */
const UNDEFINED_TABLE = '42P01'

/** In their order, from number 1. Version 0.1.0 has those up to `calls`, and 0.2.0 those up to `traces`. */
const MIGRATIONS = [
  'batches',
  'limits',
  'calls',
  'dedupe',
  'openai-clients',
  'console',
  'capacity',
  'remote-batches',
  'usage-details',
  'traces',
  'remote-looks',
  'first-lines',
  'charged-days',
  'list-indexes',
  'upload-completions',
  'sessions-of-keys',
  'shared-lines',
  'batch-names',
  'batch-webhooks',
  'batch-orders',
  'bucket-urls',
  'custom-id-indexes',
  'message-batches',
  'reask',
  'usage-not-run',
  'batch-speeds',
  'open-inputs',
  'line-orders',
  'usage-parts',
] as const

/** What a migration does after it has added what schema.ts says. */
const STEPS: Partial<Record<(typeof MIGRATIONS)[number], readonly string[]>> = {
  'list-indexes': ['DROP INDEX IF EXISTS limits_matched', 'DROP INDEX IF EXISTS batches_open_of_project'],
  'batch-names': [
    'UPDATE batches SET input_filename = (SELECT filename FROM files WHERE files.id = input_file_id)',
  ],
  'batch-webhooks': ['DROP INDEX IF EXISTS webhooks_listed'],
  'batch-speeds': [
    'UPDATE batches SET speed = lines_per_s WHERE lines_per_s IS NOT NULL',
    `UPDATE batches SET speed = coalesce((completed + failed - not_run) * 1.0 / nullif(
       coalesce(completed_at, expired_at, cancelled_at) / 1000 - coalesce(in_progress_at, created) / 1000, 0), 0)
     WHERE status IN ('completed', 'expired', 'cancelled')`,
    // 730 days, the default of `retention.audit`: until its service starts, nobody knows what it keeps.
    "INSERT INTO database_properties (name, value) VALUES ('audit_ms', '63072000000') ON CONFLICT DO NOTHING",
  ],
}

const ROWS_FILLED_AT_ONCE = 1_000

/** `last`: the number of the last one. */
function migrations(last: number): Record<string, Migration> {
  let isNew = false
  return Object.fromEntries(
    MIGRATIONS.slice(0, last).map((name, i) => [
      `${String(i + 1).padStart(4, '0')}-${name}`,
      {
        async up(db: Kysely<unknown>) {
          if (isNew) return
          isNew = i === 0
          const addedBy = isNew ? { first: 1, last } : { first: i + 1, last: i + 1 }
          for (const [table, columns] of Object.entries<Columns>(TABLES))
            await bringTable(db, table, columns, addedBy)
          for (const [index, made] of Object.entries(INDEXES))
            if (isAdded(made.since, addedBy)) await makeIndex(db, index, made)
          if (isNew) return
          for (const step of STEPS[name] ?? []) await sql.raw(step).execute(db)
          if (name === 'batch-orders') await fillBatchOrders(db)
        },
      },
    ]),
  )
}

/** Numbers of migrations. */
interface Added {
  first: number
  last: number
}

function isAdded(since = 1, { first, last }: Added): boolean {
  return since >= first && since <= last
}

/** Names batches, and counts their lines that were never sent by what their errors say. */
async function fillBatchOrders(db: Kysely<unknown>): Promise<void> {
  const rows = db.withTables<Schema>()
  for (let behind = ''; ; ) {
    const some = await rows
      .selectFrom('batches')
      .leftJoin('batch_statistics', 'batch_statistics.batch_id', 'batches.id')
      .select(['id', 'metadata', 'input_filename', 'failed', 'batch_statistics.errors'])
      .where('id', '>', behind)
      .orderBy('id')
      .limit(ROWS_FILLED_AT_ONCE)
      .execute()
    for (const { id, failed, errors, ...fields } of some) {
      const groups: { code: string; lines: number }[] = failed > 0 ? JSON.parse(errors ?? '[]') : []
      const counts = groups.map(({ code, lines }) => (isNotRun(code, 0) ? lines : 0))
      const not_run = Math.min(
        failed,
        counts.reduce((sum, lines) => sum + lines, 0),
      )
      await rows
        .updateTable('batches')
        .set({ name: batchName({ id, ...fields }), not_run, run_failed: failed - not_run })
        .where('id', '=', id)
        .execute()
    }
    const last = some.at(-1)
    if (!last) return
    behind = last.id
  }
}

/** Makes what these migrations add of a table. */
async function bringTable(
  db: Kysely<unknown>,
  name: string,
  columns: Columns,
  addedBy: Added,
): Promise<void> {
  const added = Object.entries(columns).filter(([, { traits }]) => isAdded(traits.since, addedBy))
  if (Object.values(columns).some(({ traits }) => (traits.since ?? 1) < addedBy.first)) {
    // SQLite adds one column in a statement.
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

/** Kysely's builder binds no values into DDL, so the condition of a partial index is text. */
async function makeIndex(db: Kysely<unknown>, name: string, { table, on, where }: Index): Promise<void> {
  const condition = where === undefined ? sql`` : sql.raw(` WHERE ${where}`)
  await sql`CREATE INDEX ${sql.id(name)} ON ${sql.table(table)} (${sql.raw(on)})${condition}`.execute(db)
}

/** The names of the migrations that were run; none in a new database. */
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

/**
 * Runs the missing migrations, up to the number `last`, under the database's own migration lock. Throws SchemaMismatch
 * for any other schema.
 */
export async function migrate(db: Kysely<Schema>, last: number = MIGRATIONS.length): Promise<void> {
  const all = migrations(last)
  // The migrator first reads the columns of every table, which most starts need not wait for.
  if (isDeepStrictEqual(await migrationsRun(db), Object.keys(all))) return
  const migrator = new Migrator({ db, provider: { getMigrations: async () => all } })
  const { error } = await migrator.migrateToLatest()
  if (error === undefined) return
  const text = error instanceof Error ? error.message : String(error)
  if (text.includes(`${UNRELEASED} is missing`))
    throw new SchemaMismatch(
      'This database was created by a development version of offpeak, before the first release. Its tables have other names now, and there is no migration.',
      'Start with an empty database: another --data folder, or a new PostgreSQL database and bucket prefix. To keep results, download them first with the version that created the database.',
    )
  if (text.includes('corrupted migrations'))
    throw new SchemaMismatch(
      `This database has a schema that this program does not know (${text}).`,
      'Run the version of offpeak that wrote this database, or restore a backup.',
    )
  throw error
}
