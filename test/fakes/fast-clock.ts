// A clock without waiting: a timer fires at once, and time has advanced by its delay.
import type { Clock } from '../../src/domain/clock.ts'

export interface FastClock extends Clock {
  /** Every wait that was asked for, in ms. */
  readonly waits: readonly number[]
}

export function fastClock(start = 1_700_000_000_000): FastClock {
  let now = start
  const waits: number[] = []
  return {
    now: () => now,
    after(ms, fn) {
      waits.push(ms)
      const soon = setImmediate(() => {
        now += ms
        fn()
      })
      return () => clearImmediate(soon)
    },
    soon: queueMicrotask,
    waits,
  }
}
