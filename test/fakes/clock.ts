// Clocks for tests. The first is one that only a test moves. What is due runs in the order of time, and between two callbacks whatever
// they woke gets to run, so a chain of waits unfolds as it would in real time, at once.
import { setImmediate as nextTurn } from 'node:timers/promises'
import type { Clock } from '../../src/domain/clock.ts'

export interface TestClock extends Clock {
  /** Moves time by `ms`; resolves when everything that is due has run. */
  advance(ms: number): Promise<void>
  /** How many callbacks are waiting. */
  readonly waiting: number
}

interface Alarm {
  due: number
  fn: () => void
}

/** A clock that stands at `start` (Unix ms) until it is advanced. */
export function testClock(start = 1_700_000_000_000): TestClock {
  let now = start
  /** In the order of `due`; among equals, in the order they were set. */
  const alarms: Alarm[] = []

  return {
    now: () => now,
    steady: () => now,

    after(ms, fn) {
      // In whole milliseconds, as real clocks tell them.
      const alarm = { due: now + Math.max(0, Math.ceil(ms)), fn }
      const later = alarms.findIndex((other) => other.due > alarm.due)
      alarms.splice(later === -1 ? alarms.length : later, 0, alarm)
      return () => {
        const at = alarms.indexOf(alarm)
        if (at !== -1) alarms.splice(at, 1)
      }
    },

    soon: queueMicrotask,

    async advance(ms) {
      if (ms < 0) throw new RangeError('time does not run backwards')
      const until = now + ms
      await settled()
      for (let alarm = alarms[0]; alarm !== undefined && alarm.due <= until; alarm = alarms[0]) {
        alarms.shift()
        now = alarm.due
        alarm.fn()
        await settled()
      }
      now = until
    },

    get waiting() {
      return alarms.length
    },
  }
}

/** One turn of the event loop: every microtask that is ready has run by then, and those it made ready too. */
async function settled(): Promise<void> {
  await nextTurn()
}

export interface FastClock extends Clock {
  /** Every wait that was asked for, in ms. */
  readonly waits: readonly number[]
}

/** A clock without waiting: a timer fires at once, and time has advanced by its delay. */
export function fastClock(start = 1_700_000_000_000): FastClock {
  let now = start
  const waits: number[] = []
  return {
    now: () => now,
    steady: () => now,
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
