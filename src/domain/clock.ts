// Time enters the system here and nowhere else: pure functions take `now`, loops hold a Clock, and a
// test holds a clock that it moves by hand (test/fakes/clock.ts).

export interface Clock {
  /** Unix time in milliseconds. */
  now(): number
  /** Runs `fn` once, `ms` milliseconds from now; the returned function cancels it. */
  after(ms: number, fn: () => void): () => void
}

/** setTimeout turns a longer delay into 1 ms, so longer waits are made of steps. */
const TIMEOUT_MS_MAX = 2 ** 31 - 1

export const systemClock: Clock = {
  now: () => Date.now(),
  after(ms, fn) {
    let timer: NodeJS.Timeout
    const arm = (left: number): void => {
      const step = Math.min(left, TIMEOUT_MS_MAX)
      timer = setTimeout(() => (left > step ? arm(left - step) : fn()), step)
    }
    arm(Math.max(0, ms))
    return () => clearTimeout(timer)
  },
}

/** Counts on whatever the time of day is set to, from no known moment; in fractions of ms. */
export const steadyClock: Clock = { now: () => performance.now(), after: systemClock.after }

/** Resolves after `ms` on `clock`, or as soon as `signal` aborts: waiting is never an error. */
export function sleep(clock: Clock, ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve()
    const done = (): void => {
      cancel()
      signal?.removeEventListener('abort', done)
      resolve()
    }
    const cancel = clock.after(ms, done)
    signal?.addEventListener('abort', done, { once: true })
  })
}

/** Whole Unix seconds, as every timestamp on the wire. */
export function unixSeconds(ms: number): number {
  return Math.floor(ms / 1000)
}
