// One time for all machines that share a database: its own. A process asks for it as it starts, counts on from
// there with a clock that nobody can set, and asks again now and then. So what a machine believes the time to be
// matters nowhere, and setting its clock changes nothing, be it off by hours: neither when a batch expires, nor
// when a chunk that rests is taken up again, nor to which day a line is billed.
import { type Clock, steadyClock } from '../domain/clock.ts'
import type { Reader, Store } from './store.ts'

/** How often the database is asked. */
const ASK_EVERY_MS = 5_000
/** At the start it is asked this often, since the first answer may have had to wait for a connection. */
const ASKED_AT_START = 3
/** The clock is put right when it is further off than this, beyond doubt: small steps would help nobody. */
const OFF_MS_MAX = 200

export interface SharedClock extends Clock {
  /** Asks no more. */
  stop(): void
}

interface Measured {
  /** What has to be added to the steady clock, ms. */
  offset_ms: number
  /** How far that may be off, in either direction: the database has told the time at some moment between. */
  doubt_ms: number
}

/** Throws when the database cannot be asked. */
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
      const off_ms = Math.abs(measured.offset_ms - offset_ms)
      if (off_ms > OFF_MS_MAX + measured.doubt_ms) offset_ms = measured.offset_ms
    } catch {
      // Without the database no time has to be agreed on; it is asked again.
    }
    if (!stopped) arm()
  }
  const arm = (): void => {
    cancel = steady.after(ASK_EVERY_MS, () => void askAgain())
  }
  arm()
  return {
    now: () => Math.floor(steady.now() + offset_ms),
    // How long something takes does not depend on the time of day.
    after: steady.after,
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
  const asked_at = steady.now()
  const told = await databaseTime(read, claimSql)
  const doubt_ms = (steady.now() - asked_at) / 2
  return { offset_ms: told - (asked_at + doubt_ms), doubt_ms }
}

async function databaseTime(db: Reader, claimSql: Store['claimSql']): Promise<number> {
  const { now } = await db.selectNoFrom(claimSql.now.as('now')).executeTakeFirstOrThrow()
  return now
}
