// The clock that all machines of a database share: the database's own. A process reads it at the start, continues with
// a monotonic clock, and reads it again from time to time. The clocks of machines therefore never matter: not for the
// expiry of a batch, not for the time of a parked chunk, and not for the day to which a line is billed.
import { sql } from 'kysely'
import { type Clock, every, systemClock } from '../domain/clock.ts'
import { DAY_MS, HOUR_MS } from '../domain/days.ts'
import { NOW } from './rows.ts'
import type { Schema } from './schema.ts'
import type { Store, Writer } from './store.ts'

/** The interval at which the database's clock is read. */
const ASK_EVERY_MS = 5_000
/** The number of reads at the start, since the first one may wait for a connection. */
const ASKED_AT_START = 3
/** The error from which the clock is corrected, if it is certain. */
const OFF_MS_MAX = 200

export interface SharedClock extends Clock {
  /** Stops reading the database's clock. */
  stop(): void
}

interface Measured {
  /** Offset of the database's clock from the monotonic clock, ms. */
  offset_ms: number
  /** The largest error of the offset in ms, from the round trip. */
  doubt_ms: number
}

/** A clock that follows the database's. Throws if the database cannot be reached. */
export async function sharedClock(
  store: Pick<Store, 'read'>,
  base: Clock = systemClock,
): Promise<SharedClock> {
  let best = await measure(store, base)
  for (let asked = 1; asked < ASKED_AT_START; asked++) {
    const next = await measure(store, base)
    if (next.doubt_ms < best.doubt_ms) best = next
  }
  let { offset_ms } = best
  const askAgain = async (): Promise<void> => {
    const measured = await measure(store, base)
    const offMs = Math.abs(measured.offset_ms - offset_ms)
    if (offMs > OFF_MS_MAX + measured.doubt_ms) offset_ms = measured.offset_ms
  }
  // After a failure, the next interval retries.
  const end = every(base, ASK_EVERY_MS, askAgain, () => {})
  return {
    now: () => Math.floor(base.steady() + offset_ms),
    // Timers use the monotonic clock.
    steady: base.steady,
    after: base.after,
    soon: base.soon,
    stop: () => void end(),
  }
}

async function measure({ read }: Pick<Store, 'read'>, base: Clock): Promise<Measured> {
  const askedAt = base.steady()
  const { now } = await read.selectNoFrom(NOW.as('now')).executeTakeFirstOrThrow()
  const doubt_ms = (base.steady() - askedAt) / 2
  return { offset_ms: now - (askedAt + doubt_ms), doubt_ms }
}

// Corrects times after the clock of the database was ahead. Some then lie further ahead than possible: the lease of a
// process that has ended, or a chunk parked for weeks. They are moved back.

const MINUTE_MS = 60_000

interface Gate {
  table: keyof Schema
  column: string
  /** The furthest that the time may lie ahead, as SQL. */
  most_ms: string
  /** The condition that selects the rows. */
  where?: string
}

/** Times of the next attempt at something, which may come too early without harm. */
const DUE: readonly Gate[] = [
  // A paused or not yet started chunk is parked until a time that a caller chose.
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

/** Times until which something is valid. */
const UNTIL: readonly Gate[] = [
  { table: 'workers', column: 'lease_until', most_ms: `coalesce(lease_ms, ${HOUR_MS})` },
  { table: 'uploads', column: 'completing_until', most_ms: `${MINUTE_MS}` },
  { table: 'idempotency_keys', column: 'expires', most_ms: `${2 * DAY_MS}` },
  { table: 'console_sessions', column: 'expires', most_ms: `${7 * DAY_MS}` },
  { table: 'webhooks', column: 'previous_until', most_ms: `${7 * DAY_MS}` },
]

/** Moves back times that lie too far ahead; returns their number. */
export async function pullBackTimes(tx: Writer): Promise<number> {
  let count = 0
  for (const gates of [DUE, UNTIL])
    for (const { table, column, most_ms, where = '1 = 1' } of gates) {
      const latest = sql`CAST(${NOW} AS bigint) + ${sql.raw(most_ms)}`
      const { numAffectedRows = 0n } = await sql`
        UPDATE ${sql.table(table)} SET ${sql.ref(column)} = ${gates === DUE ? sql`CAST(${NOW} AS bigint)` : latest}
        WHERE ${sql.ref(column)} > ${latest} AND ${sql.raw(where)}`.execute(tx)
      count += Number(numAffectedRows)
    }
  return count
}
