// All code gets the time from a Clock: pure functions take `now`, loops have a Clock, and tests use a clock that
// they move (test/fakes/clock.ts).

export interface Clock {
  /** Unix time in milliseconds. */
  now(): number
  /** Milliseconds from an arbitrary moment, which a change of the system time does not affect. */
  steady(): number
  /** Runs `fn` once, `ms` milliseconds from now; the returned function cancels it. */
  after(ms: number, fn: () => void): () => void
  /** Runs `fn` at the end of this turn of the event loop. */
  soon(fn: () => void): void
}

/** The longest delay of setTimeout; a longer wait is divided into steps. */
const TIMEOUT_MS_MAX = 2 ** 31 - 1

export const systemClock: Clock = {
  now: () => Date.now(),
  steady: () => performance.now(),
  after(ms, fn) {
    let timer: NodeJS.Timeout
    const arm = (left: number): void => {
      const step = Math.min(left, TIMEOUT_MS_MAX)
      timer = setTimeout(() => (left > step ? arm(left - step) : fn()), step)
    }
    arm(Math.max(0, ms))
    return () => clearTimeout(timer)
  },
  soon: (fn) => void setImmediate(fn),
}

/** Resolves after `ms` on `clock`, or when `signal` aborts; never rejects. */
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

/**
 * Calls `look` again and again: first after `ms`, then `ms` after each call has ended, until one returns false; a function is
 * asked for `ms` each time. `failed` is called with what `look` throws, and the calls go on; without it, `look` does not throw.
 * The returned function ends the calls, and resolves when none is in progress.
 */
export function every(
  clock: Clock,
  ms: number | (() => number),
  look: () => unknown,
  failed?: (error: unknown) => void,
): () => Promise<void> {
  let hasEnded = false
  let running = Promise.resolve()
  let cancel = (): void => {}
  const run = async (): Promise<void> => {
    let goesOn: unknown
    try {
      goesOn = await look()
    } catch (error) {
      if (!failed) throw error
      failed(error)
    }
    if (goesOn !== false && !hasEnded) arm()
  }
  const arm = (): void => {
    cancel = clock.after(typeof ms === 'number' ? ms : ms(), () => {
      running = run()
    })
  }
  arm()
  return async () => {
    hasEnded = true
    cancel()
    await running
  }
}

/** A timer that calls one function, and can be set again before it does. */
export class Alarm {
  readonly #clock: Clock
  readonly #ring: (at: number) => void
  #at = Number.POSITIVE_INFINITY
  #cancel = (): void => {}

  constructor(clock: Clock, ring: (at: number) => void) {
    this.#clock = clock
    this.#ring = ring
  }

  /** Sets the time in Unix ms; infinity: never. */
  set(at: number): void {
    if (at === this.#at) return
    this.#cancel()
    this.#at = at
    if (at === Number.POSITIVE_INFINITY) return
    this.#cancel = this.#clock.after(at - this.#clock.now(), () => {
      this.#at = Number.POSITIVE_INFINITY
      this.#ring(at)
    })
  }
}

/** Unix ms as whole Unix seconds, the form of timestamps in the API. */
export function unixSeconds(ms: number): number {
  return Math.floor(ms / 1000)
}

export function secondsOrNull(ms: number | null): number | null {
  return ms === null ? null : unixSeconds(ms)
}
