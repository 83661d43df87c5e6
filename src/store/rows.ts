// Builds statements on the rows of one table with given values in their columns, and parts that statements of many
// tables share.
import {
  type DeleteResult,
  type Insertable,
  type RawBuilder,
  type Selectable,
  type SqlBool,
  sql,
  type UpdateResult,
} from 'kysely'
import { COUNT_MAX } from '../domain/money.ts'
import { keyOf, type Schema } from './schema.ts'
import type { Reader, Writer } from './store.ts'

/** The clock of the database, Unix ms, which alone decides whether a lease is valid. */
export const NOW = sql<number>`offpeak_now()`

type Table = keyof Schema
type Row<T extends Table> = Selectable<Schema[T]>

/** The tables of objects that belong to a project. */
type Owned = { [T in Table]: Row<T> extends { id: string; project_id: string } ? T : never }[Table]

/** Conditions by column: a value, or a list of alternative values. */
type Match<T extends Table> = { readonly [C in keyof Row<T>]?: Row<T>[C] | readonly Row<T>[C][] }

export function selectRows<T extends Table>(db: Pick<Reader, 'selectFrom'>, table: T, match: Match<T>) {
  return db.selectFrom(named(table)).where(matching(match))
}

/** The matching row; undefined if there is none. */
export async function readRow<T extends Table>(db: Reader, table: T, match: Match<T>) {
  return await selectRows(db, table, match).selectAll().executeTakeFirst()
}

/** The matching row, locked: until the transaction ends, no other one changes or refers to it. */
export async function lockRow<T extends Table>(tx: Writer, table: T, match: Match<T>) {
  return await selectRows(tx, table, match).selectAll().forUpdate().executeTakeFirst()
}

/** Whether a query finds a row. */
export async function findsRow(query: {
  limit(rows: number): { executeTakeFirst(): Promise<unknown> }
}): Promise<boolean> {
  return (await query.limit(1).executeTakeFirst()) !== undefined
}

/** The project's object; undefined if it does not exist or is another project's. */
export async function readOwn<T extends Owned>(db: Reader, table: T, project_id: string, id: string) {
  return await readRow(db, table, { id, project_id } as Match<T>)
}

export async function countRows<T extends Table>(db: Reader, table: T, match: Match<T>): Promise<number> {
  const count = sql<number>`count(*)`.as('count')
  const query = selectRows(db, table, match).select(count).$castTo<{ count: number }>()
  return Number((await query.executeTakeFirstOrThrow()).count)
}

export function updateRows<T extends Table>(tx: Writer, table: T, match: Match<T>) {
  return tx.updateTable(named(table)).where(matching(match))
}

export function deleteRows<T extends Table>(tx: Writer, table: T, match: Match<T>) {
  return tx.deleteFrom(named(table)).where(matching(match))
}

interface Change {
  executeTakeFirst(): Promise<UpdateResult | DeleteResult>
}

/** The number of rows that a statement updates or deletes. */
export async function changedRows(statement: Change): Promise<number> {
  const result = await statement.executeTakeFirst()
  return Number('numUpdatedRows' in result ? result.numUpdatedRows : result.numDeletedRows)
}

/** Whether a statement updates or deletes a row. */
export async function changesRow(statement: Change): Promise<boolean> {
  return (await changedRows(statement)) > 0
}

export async function insertRow<T extends Table>(
  tx: Writer,
  table: T,
  row: Insertable<Schema[T]>,
): Promise<void> {
  await tx.insertInto(table).values(row).execute()
}

/** Inserts rows that all have the same columns. */
export async function insertRows<T extends Table>(
  tx: Writer,
  table: T,
  rows: readonly Insertable<Schema[T]>[],
): Promise<void> {
  for (const some of slices<object>(rows)) await insertInto(tx, table, some)
}

/** Inserts rows, in one statement, into a table that may not be part of the schema. */
export async function insertInto(tx: Writer, table: string, rows: readonly object[]): Promise<void> {
  if (rows.length > 0) await inserting(table, rows).execute(tx)
}

/** Inserts a row. False if there is a row with its key. */
export async function insertOnce<T extends Table>(
  tx: Writer,
  table: T,
  row: Insertable<Schema[T]>,
): Promise<boolean> {
  const { numAffectedRows } = await sql`${inserting(table, [row])} ON CONFLICT DO NOTHING`.execute(tx)
  return numAffectedRows === 1n
}

/** Inserts rows, each key once; an existing row with the key gets the values of these columns. */
export async function putRows<T extends Table>(
  tx: Writer,
  table: T,
  rows: readonly Insertable<Schema[T]>[],
  columns: readonly (keyof Row<T> & string)[],
): Promise<void> {
  await putInto(tx, table, rows, columns)
}

/** Puts rows, in one statement, into a table of any name. */
export async function putInto(
  tx: Writer,
  table: string,
  rows: readonly object[],
  columns: readonly string[],
): Promise<void> {
  if (rows.length > 0) await onSameKey(table, rows, columns, excluded).execute(tx)
}

/** Inserts rows, each key once; an existing row with the key has the values of these columns added. */
export async function addRows<T extends Table>(
  tx: Writer,
  table: T,
  rows: readonly Insertable<Schema[T]>[],
  columns: readonly (keyof Row<T> & string)[],
): Promise<void> {
  for (const some of slices(rows)) await adding(table, some, columns).execute(tx)
}

/** The statement of addRows, which may return something. */
export function adding<T extends Table>(
  table: T,
  rows: readonly Insertable<Schema[T]>[],
  columns: readonly (keyof Row<T> & string)[],
): RawBuilder<unknown> {
  return onSameKey(table, rows, columns, (column) => exactPlus(`${table}.${column}`, excluded(column)))
}

export function inserting(table: string, rows: readonly object[]): RawBuilder<unknown> {
  const columns = Object.keys(rows[0] ?? {})
  const values = rows.map((row) => sql`(${sql.join(columns.map((column) => Reflect.get(row, column)))})`)
  const names = sql.join(columns.map((column) => sql.ref(column)))
  return sql`INSERT INTO ${sql.table(table)} (${names}) VALUES ${sql.join(values)}`
}

function onSameKey(
  table: string,
  rows: readonly object[],
  columns: readonly string[],
  valueFor: (column: string) => RawBuilder<unknown>,
): RawBuilder<unknown> {
  const key = sql.join(keyOf(table).map((column) => sql.ref(column)))
  const changes = sql.join(columns.map((column) => sql`${sql.ref(column)} = ${valueFor(column)}`))
  return sql`${inserting(table, rows)} ON CONFLICT (${key}) DO UPDATE SET ${changes}`
}

function excluded(column: string): RawBuilder<number> {
  return sql<number>`${sql.ref(`excluded.${column}`)}`
}

function named<T extends Table>(table: T) {
  return sql<Row<T>>`${sql.table(table)}`.as(table)
}

function matching(match: object): RawBuilder<SqlBool> {
  const conditions = Object.entries(match).map(([column, value]) => {
    // A missing condition would match more rows than intended.
    if (value === undefined) throw new Error(`the column ${column} has no value to match`)
    const name = sql.ref(column)
    if (value === null) return sql`${name} IS NULL`
    // A partial index serves statements with a literal state.
    const isState = column === 'state' || column === 'status'
    const shown = (one: unknown) => (isState ? sql.lit(one) : sql`${one}`)
    // PostgreSQL has no empty lists.
    if (Array.isArray(value) && value.length === 0) return sql`FALSE`
    return Array.isArray(value)
      ? sql`${name} IN (${sql.join(value.map(shown))})`
      : sql`${name} = ${shown(value)}`
  })
  return sql<SqlBool>`${sql.join(conditions, sql` AND `)}`
}

// Sums of counts stop at the largest exact one (domain/money.ts), in every database: no sum overflows,
// none comes back as a number that JavaScript cannot hold, and so no check and no commit fails for its size.

/** The sum over the rows of a group, as a JavaScript number. */
export function exactSum(column: string | RawBuilder<unknown>): RawBuilder<number> {
  const of = typeof column === 'string' ? sql.ref(column) : column
  const sum = sql<number>`coalesce(sum(cast(${of} as double precision)), 0)`
  return sql<number>`CASE WHEN ${sum} > ${MAX} THEN ${MAX} ELSE ${sum} END`
}

/** A column plus an amount, positive or negative; the result is at least 0. */
export function exactPlus(column: string, by: number | RawBuilder<number>): RawBuilder<number> {
  const sum = sql<number>`${sql.ref(column)} + ${by}`
  return sql<number>`CASE WHEN ${sum} > ${MAX} THEN ${MAX} WHEN ${sum} < 0 THEN 0 ELSE ${sum} END`
}

const MAX = sql.lit(COUNT_MAX)

/** The number of rows in a statement, since bound parameters are limited. */
const SLICE = 500

/** The rows or names in slices of the size that one statement takes. */
export function* slices<T>(all: readonly T[]): Generator<readonly T[]> {
  for (let at = 0; at < all.length; at += SLICE) yield all.slice(at, at + SLICE)
}

/** SQL conditions that each word of `text` occurs in one of the columns, in any case. */
export function wordsIn(columns: readonly string[], text = ''): RawBuilder<boolean>[] {
  const values = columns.map((name) => sql`coalesce(${sql.ref(name)}, '')`)
  const all = sql`offpeak_lower(${sql.join(values, sql` || ' ' || `)})`
  return (text.toLowerCase().match(/\S+/g) ?? []).map((word) => {
    // JSON escapes some characters.
    const forms = [...new Set([word, JSON.stringify(word).slice(1, -1)])].map((form) => {
      const pattern = `%${form.replace(/[\\%_]/g, '\\$&')}%`
      return sql`${all} LIKE ${pattern} ESCAPE '\\'`
    })
    return sql<boolean>`(${sql.join(forms, sql` OR `)})`
  })
}

/** Compares two texts by their characters, as the databases do. */
export function compare(a: string, b: string): number {
  return a < b ? -1 : Number(a > b)
}
