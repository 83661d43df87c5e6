// Whole tables as they are, for moving a database: rows in pages, in the order of the primary key, which all
// databases sort alike (text goes by its bytes).

import { createHash } from 'node:crypto'
import { sql } from 'kysely'
import type { Schema } from './schema.ts'
import type { Reader, Writer } from './store.ts'

/** What a column can hold. */
export type Cell = string | number | null
type Row = Readonly<Record<string, Cell>>

/** Primary keys, parents before children. The registrations of workers are not copied, nor
 * sessions of the console, nor properties of the database itself. */
const TABLES = {
  projects: ['id'],
  api_keys: ['id'],
  files: ['id'],
  batches: ['id'],
  chunks: ['batch_id', 'idx'],
  journal_parts: ['batch_id', 'idx', 'journal_blob'],
  remote_batches: ['id'],
  tasks: ['id'],
  blobs: ['key'],
  http_requests: ['id'],
  anonymous_requests: ['id'],
  idempotency_keys: ['project_id', 'route', 'key'],
  limits: ['id'],
  limit_versions: ['project_id'],
  usage_days: ['project_id', 'entity', 'day', 'model'],
  project_days: ['project_id', 'day'],
  ledger_entries: ['id'],
  reservations: ['batch_id', 'idx', 'entity'],
  batch_projected_spend: ['batch_id', 'entity'],
  limit_crossings: ['limit_id', 'entity', 'window_start', 'threshold'],
  prompt_statistics: ['model'],
  paused_models: ['project_id', 'model'],
  events: ['id'],
  webhooks: ['id'],
  deliveries: ['id'],
  batch_statistics: ['batch_id'],
  uploads: ['id'],
  upload_parts: ['id'],
} as const satisfies Record<
  Exclude<
    keyof Schema,
    | 'workers'
    | 'worker_reports'
    | 'lane_reports'
    | 'database_properties'
    | 'rate_buckets'
    | 'console_sessions'
  >,
  readonly string[]
>

const KEYS = new Map<string, readonly string[]>(Object.entries(TABLES))

export const TABLE_NAMES: readonly string[] = [...KEYS.keys()]

/** Rows behind the one whose key is `after`, or the first ones. */
export async function readRows(
  db: Reader,
  table: string,
  { limit, after }: { limit: number; after: readonly Cell[] | null },
): Promise<Row[]> {
  const key = keyOf(table).map((column) => sql.ref(column))
  let query = db
    .selectFrom(sql<Record<string, Cell>>`${sql.table(table)}`.as('page'))
    .selectAll()
    .limit(limit)
  for (const column of key) query = query.orderBy(column)
  if (after !== null) query = query.where(sql<boolean>`(${sql.join(key)}) > (${sql.join(after)})`)
  return await query.execute()
}

/** The key of `row`, to go on behind it. */
export function keyOfRow(table: string, row: Row): Cell[] {
  return keyOf(table).map((column) => row[column] ?? null)
}

export async function insertRows(tx: Writer, table: string, rows: readonly Row[]): Promise<void> {
  const [first] = rows
  if (first === undefined) return
  const columns = Object.keys(first)
  const values = rows.map((row) => sql`(${sql.join(columns.map((column) => row[column] ?? null))})`)
  const names = sql.join(columns.map((column) => sql.ref(column)))
  await sql`INSERT INTO ${sql.table(table)} (${names}) VALUES ${sql.join(values)}`.execute(tx)
}

interface TableSum {
  rows: number
  /** Over every cell of every row. */
  sha256: string
}

/** The same for the same content, whatever the database and the order of its columns. */
export async function sumTable(db: Reader, table: string, rows_at_once: number): Promise<TableSum> {
  const hash = createHash('sha256')
  let rows = 0
  for (let after: Cell[] | null = null, more = true; more; ) {
    const page: Row[] = await readRows(db, table, { limit: rows_at_once, after })
    for (const row of page) {
      const cells = Object.entries(row).sort(([a], [b]) => (a < b ? -1 : 1))
      hash.update(`${JSON.stringify(cells)}\n`)
    }
    rows += page.length
    const last = page.at(-1)
    if (last) after = keyOfRow(table, last)
    more = page.length === rows_at_once
  }
  return { rows, sha256: hash.digest('hex') }
}

function keyOf(table: string): readonly string[] {
  const key = KEYS.get(table)
  if (key === undefined) throw new Error(`there is no table ${table}`)
  return key
}
