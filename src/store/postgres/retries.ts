// Tries again while PostgreSQL restarts, fails over or settles a conflict: soon after the first failure, ever
// more rarely after that, each time by chance a little earlier or later than the others who wait.
import { type Clock, sleep } from '../../domain/clock.ts'

const CONFLICT_WAIT_MS = { min: 5, max: 200 }
const OUTAGE_WAIT_MS = { min: 50, max: 1_000 }

/** What a failure calls for: another attempt, now or once the server may be back; null: none. */
export type Remedy = 'conflict' | 'outage' | null

export interface RetryPlan {
  clock: Clock
  /** How long one call goes on trying, in ms. */
  for_ms: number
}

/** Throws the last error when the patience has run out, and at once what `remedyOf` has no remedy for. */
export async function withRetries<T>(
  { clock, for_ms }: RetryPlan,
  attempt: () => Promise<T>,
  remedyOf: (error: unknown) => Remedy,
): Promise<T> {
  const until = clock.now() + for_ms
  for (let tries = 0; ; tries++) {
    try {
      return await attempt()
    } catch (error) {
      const remedy = remedyOf(error)
      if (remedy === null) throw error
      const { min, max } = remedy === 'conflict' ? CONFLICT_WAIT_MS : OUTAGE_WAIT_MS
      const waitMs = Math.min(max, min * 2 ** Math.min(tries, 10)) * (0.5 + Math.random())
      if (clock.now() + waitMs > until) throw error
      await sleep(clock, waitMs)
    }
  }
}
