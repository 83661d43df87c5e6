// Polls until a condition holds: often at first, so that a small batch is not delayed, then less and less often, so
// that a long one does not use up the rate limit.
import { type Clock, sleep } from '../../domain/clock.ts'
import { Interrupted } from '../terminal/failure.ts'
import type { ProgressView } from '../terminal/progress-view.ts'

export interface Pace {
  firstMs: number
  longestMs: number
}

/** For a service on the same machine. */
export const LOCAL_PACE: Pace = { firstMs: 50, longestMs: 1000 }
export const REMOTE_PACE: Pace = { firstMs: 250, longestMs: 5000 }

/** How a command waits for the service. */
export interface Watch {
  view: ProgressView
  pace: Pace
  clock: Clock
  signal: AbortSignal
}

export const GROWTH = 1.3

/** Returns the first value of `read` that `done` accepts. Throws Interrupted when `signal` aborts. */
export async function poll<T>(
  read: () => Promise<T>,
  done: (value: T) => boolean,
  { pace, clock, signal }: Omit<Watch, 'view'>,
): Promise<T> {
  for (let waitMs = pace.firstMs; ; waitMs = Math.min(pace.longestMs, waitMs * GROWTH)) {
    if (signal.aborted) throw new Interrupted()
    const value = await read()
    if (done(value)) return value
    await sleep(clock, waitMs, signal)
  }
}
