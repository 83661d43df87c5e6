// A clock that all machines of a database share: the database's own. A process reads it at the start, continues with a
// monotonic clock, and reads it again from time to time. The clocks of machines therefore never matter: neither for
// when a batch expires, nor for when a parked chunk is ready, nor for the day to which a line is billed.
import { type Clock, steadyClock } from '../domain/clock.ts'
import type { Reader, Store } from './store.ts'

/** How often the database's clock is read. */
const ASK_EVERY_MS = 5_000
/** Reads at the start; several, because the first one may have waited for a connection. */
const ASKED_AT_START = 3
/** The clock is corrected if its error certainly exceeds this. */
const OFF_MS_MAX = 200

export interface SharedClock extends Clock {
  /** Asks no more. */
  stop(): void
}

interface Measured {
  /** Offset of the database's clock from the monotonic clock, ms. */
  offset_ms: number
  /** The largest error of the offset, from the round trip. */
  doubt_ms: number
}

/** Throws if the database cannot be reached. */
export async function sharedClock(
  store: Pick<Store, 'read' | 'claimSql'>,
  steady: Clock = steadyClock,
): Promise<SharedClock> {
  let best = await measure(store, steady)
  for (let asked = 1; asked < ASKED_AT_START; asked++) {
    const next = await measure(store, steady)
    if (next.doubt_ms < best.doubt_ms) best = next
  }
  let { offset_ms } = best
  let stopped = false
  let cancel = (): void => {}
  const askAgain = async (): Promise<void> => {
    try {
      const measured = await measure(store, steady)
      const offMs = Math.abs(measured.offset_ms - offset_ms)
      if (offMs > OFF_MS_MAX + measured.doubt_ms) offset_ms = measured.offset_ms
    } catch {
      // Retried at the next interval.
    }
    if (!stopped) arm()
  }
  const arm = (): void => {
    cancel = steady.after(ASK_EVERY_MS, () => void askAgain())
  }
  arm()
  return {
    now: () => Math.floor(steady.now() + offset_ms),
    // Timers use the monotonic clock.
    after: steady.after,
    soon: steady.soon,
    stop() {
      stopped = true
      cancel()
    },
  }
}

async function measure(
  { read, claimSql }: Pick<Store, 'read' | 'claimSql'>,
  steady: Clock,
): Promise<Measured> {
  const askedAt = steady.now()
  const told = await databaseTime(read, claimSql)
  const doubt_ms = (steady.now() - askedAt) / 2
  return { offset_ms: told - (askedAt + doubt_ms), doubt_ms }
}

async function databaseTime(db: Reader, claimSql: Store['claimSql']): Promise<number> {
  const { now } = await db.selectNoFrom(claimSql.now.as('now')).executeTakeFirstOrThrow()
  return now
}
