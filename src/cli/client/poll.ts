// Looks again and again until there is nothing left to wait for: often at first, so that a small batch is not
// kept waiting, then ever more rarely, so that a long one does not use up the rate limit.
import { type Clock, sleep } from '../../domain/clock.ts'
import { Interrupted } from '../terminal/failure.ts'

export interface Pace {
  first_ms: number
  longest_ms: number
}

/** For a service in the same process, or at least on the same machine. */
export const LOCAL_PACE: Pace = { first_ms: 50, longest_ms: 1000 }
export const REMOTE_PACE: Pace = { first_ms: 250, longest_ms: 5000 }

const GROWTH = 1.3

/** The first value that `read` finds and `done` accepts; throws Interrupted when `signal` aborts meanwhile. */
export async function poll<T>(
  read: () => Promise<T>,
  done: (value: T) => boolean,
  pace: Pace,
  clock: Clock,
  signal: AbortSignal | undefined,
): Promise<T> {
  for (let wait_ms = pace.first_ms; ; wait_ms = Math.min(pace.longest_ms, wait_ms * GROWTH)) {
    if (signal?.aborted) throw new Interrupted()
    const value = await read()
    if (done(value)) return value
    await sleep(clock, wait_ms, signal)
  }
}
