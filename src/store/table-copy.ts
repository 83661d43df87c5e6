// Reads whole tables when a database is moved or its master key is replaced: rows in pages, in the order of the primary
// key, which all databases sort alike (text goes by its bytes).
import { createHash } from 'node:crypto'
import { sql } from 'kysely'
import { pagesOf } from './page.ts'
import { keyOf, TABLES } from './schema.ts'
import type { Reader, Writer } from './store.ts'

/** A value that a column can hold. */
export type Cell = string | number | null
export type Row = Readonly<Record<string, Cell>>

/** Tables that are not copied: registrations of workers, sessions of the console and properties of the database. */
const NOT_COPIED: readonly string[] = [
  'workers',
  'worker_reports',
  'lane_reports',
  'server_hours',
  'database_properties',
  'rate_buckets',
  'console_sessions',
]

/** The names of the copied tables, each after the tables to which it refers. */
export const TABLE_NAMES = Object.keys(TABLES).filter((table) => !NOT_COPIED.includes(table))

/** A part of a table: the rows after the key `after`, or the first rows. */
export interface RowPage {
  limit: number
  after: readonly Cell[] | null
}

export async function readRows(db: Reader, table: string, page: RowPage): Promise<Row[]> {
  return await rowsOn(db, table, page).execute()
}

/** The rows, locked until the transaction ends. */
export async function lockRows(tx: Writer, table: string, page: RowPage): Promise<Row[]> {
  return await rowsOn(tx, table, page).forUpdate().execute()
}

function rowsOn(db: Reader, table: string, { limit, after }: RowPage) {
  const key = keyOf(table).map((column) => sql.ref(column))
  let query = db
    .selectFrom(sql<Record<string, Cell>>`${sql.table(table)}`.as('page'))
    .selectAll()
    .limit(limit)
  for (const column of key) query = query.orderBy(column)
  return after === null ? query : query.where(sql<boolean>`(${sql.join(key)}) > (${sql.join(after)})`)
}

/** All rows after the key `after`, in pages of `limit`. */
export function tablePages(
  db: Reader,
  table: string,
  limit: number,
  after: readonly Cell[] | null = null,
): AsyncGenerator<Row[]> {
  return pagesOf<Row>(limit, (last) =>
    readRows(db, table, { limit, after: last ? keyOfRow(table, last) : after }),
  )
}

/** The key of a row, after which a copy continues. */
export function keyOfRow(table: string, row: Row): Cell[] {
  return keyOf(table).map((column) => row[column] ?? null)
}

interface TableSum {
  rows: number
  /** The hash of all cells of all rows. */
  sha256: string
}

/** The checksum of a table, which does not depend on the database or the order of its columns. */
export async function sumTable(db: Reader, table: string, rows_at_once: number): Promise<TableSum> {
  const hash = createHash('sha256')
  let rows = 0
  for await (const page of tablePages(db, table, rows_at_once)) {
    for (const row of page) {
      const cells = Object.entries(row).sort(([a], [b]) => (a < b ? -1 : 1))
      hash.update(`${JSON.stringify(cells)}\n`)
    }
    rows += page.length
  }
  return { rows, sha256: hash.digest('hex') }
}
