// Times that gate something, and how far ahead each can lie. A clock that was ahead and was set right leaves some that lie
// further: a lease of a process that is gone, a chunk that is parked for weeks. They are pulled back to what they can be.
import { sql } from 'kysely'
import type { Schema } from './schema.ts'
import type { ClaimSql, Writer } from './store.ts'

const MINUTE_MS = 60_000
const HOUR_MS = 60 * MINUTE_MS
const DAY_MS = 24 * HOUR_MS

interface Gate {
  table: keyof Schema
  column: string
  /** The furthest that it lies ahead, as SQL. */
  most_ms: string
  /** Of which rows. */
  where?: string
}

/** Something is done again at that time: once too early does no harm. */
const DUE: readonly Gate[] = [
  // Chunks that are paused, or not to start yet, are parked until a time that a caller chose.
  {
    table: 'chunks',
    column: 'run_at',
    most_ms: `${2 * HOUR_MS}`,
    where: "state = 'parked' AND parked_reason NOT IN ('paused', 'not_before')",
  },
  { table: 'tasks', column: 'run_at', most_ms: `${DAY_MS}`, where: "state = 'ready'" },
  { table: 'remote_batches', column: 'poll_at', most_ms: `${HOUR_MS}` },
  { table: 'remote_batches', column: 'creating_at', most_ms: '0' },
  { table: 'remote_batches', column: 'failing_since', most_ms: '0' },
  { table: 'deliveries', column: 'started', most_ms: '0' },
]

/** Something holds until that time. */
const UNTIL: readonly Gate[] = [
  { table: 'workers', column: 'lease_until', most_ms: `coalesce(lease_ms, ${HOUR_MS})` },
  { table: 'uploads', column: 'completing_until', most_ms: `${MINUTE_MS}` },
  { table: 'idempotency_keys', column: 'expires', most_ms: `${2 * DAY_MS}` },
  { table: 'console_sessions', column: 'expires', most_ms: `${7 * DAY_MS}` },
  { table: 'webhooks', column: 'previous_until', most_ms: `${7 * DAY_MS}` },
]

/** Returns how many times were pulled back. */
export async function pullBackTimes(tx: Writer, { now }: ClaimSql): Promise<number> {
  let count = 0
  for (const gates of [DUE, UNTIL])
    for (const { table, column, most_ms, where = '1 = 1' } of gates) {
      const latest = sql`CAST(${now} AS bigint) + ${sql.raw(most_ms)}`
      const { numAffectedRows = 0n } = await sql`
        UPDATE ${sql.table(table)} SET ${sql.ref(column)} = ${gates === DUE ? sql`CAST(${now} AS bigint)` : latest}
        WHERE ${sql.ref(column)} > ${latest} AND ${sql.raw(where)}`.execute(tx)
      count += Number(numAffectedRows)
    }
  return count
}
