// Tables whose rows are rewritten all the time get room for it on their pages, so that most updates touch no
// index (HOT), and are vacuumed by the number of obsolete rows, not by a share of a table that only ever grows.
import { type Kysely, sql } from 'kysely'
import type { Schema } from '../schema.ts'

const CHURN = {
  autovacuum_vacuum_scale_factor: '0',
  autovacuum_vacuum_threshold: '1000',
  autovacuum_vacuum_cost_delay: '0',
}
const GROWING = { autovacuum_vacuum_insert_scale_factor: '0.05', autovacuum_analyze_scale_factor: '0.02' }

const SETTINGS: Readonly<Partial<Record<keyof Schema, Readonly<Record<string, string>>>>> = {
  // A dozen rows, written several times a second.
  workers: { fillfactor: '50', ...CHURN },
  tasks: { fillfactor: '70', ...CHURN },
  // Claimed, committed to and sealed; then left alone for good.
  chunks: { fillfactor: '80', ...CHURN, autovacuum_vacuum_threshold: '10000', ...GROWING },
  batches: { fillfactor: '70', ...CHURN },
  journal_parts: CHURN,
  blobs: { ...GROWING, autovacuum_vacuum_scale_factor: '0.02' },
}

/** Changes what is not as it should be, and nothing else: a setting takes a lock that waits for long queries. */
export async function applyTableSettings(db: Kysely<Schema>): Promise<void> {
  const { rows } = await sql<{ name: string; option: string }>`
    SELECT relname AS name, unnest(reloptions) AS option
    FROM pg_class WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace`.execute(db)
  const set = new Set(rows.map((row) => `${row.name} ${row.option}`))
  for (const [table, settings] of Object.entries(SETTINGS)) {
    const missing = Object.entries(settings).filter(([key, value]) => !set.has(`${table} ${key}=${value}`))
    if (missing.length === 0) continue
    const list = missing.map(([key, value]) => `${key} = ${value}`).join(', ')
    await sql`ALTER TABLE ${sql.table(table)} SET (${sql.raw(list)})`.execute(db)
  }
}
