import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { nextAttemptAt, TRIED_FOR_MS } from './deliver.ts'

/** The times of all attempts of a delivery that never succeeds, the first at 0. */
function attempts(chance: () => number, wait_ms = 0): number[] {
  const times = [0]
  for (;;) {
    const now = times.at(-1) ?? 0
    const next = nextAttemptAt({ started: 0, attempts: times.length }, now, chance(), wait_ms)
    if (next === null) return times
    times.push(next)
  }
}

test('an event is tried over three days, soon at first and then ever more rarely', () => {
  const seconds = attempts(() => 0.5).map((ms) => ms / 1000)
  assert.deepEqual(seconds.slice(0, 5), [0, 5, 35, 155, 755])
  assert.equal(seconds.at(-1), 3 * 24 * 3600)
  assert.ok(seconds.length >= 12 && seconds.length <= 20, `${seconds.length} attempts`)
})

test('whatever chance says, the last attempt is as the three days end', () => {
  fc.assert(
    fc.property(fc.array(fc.double({ min: 0, max: 0.999, noNaN: true }), { minLength: 30 }), (chances) => {
      let i = 0
      const times = attempts(() => chances[i++ % chances.length] ?? 0)
      assert.equal(times.at(-1), TRIED_FOR_MS)
      for (const [n, time] of times.entries()) assert.ok(n === 0 || time > (times[n - 1] ?? 0))
    }),
  )
})

test('two deliveries that failed together are not tried together', () => {
  const one = nextAttemptAt({ started: 0, attempts: 1 }, 0, 0.1)
  const other = nextAttemptAt({ started: 0, attempts: 1 }, 0, 0.9)
  assert.notEqual(one, other)
})

test('a receiver that asks for time gets it, and no delivery outlives its three days by that', () => {
  assert.equal(nextAttemptAt({ started: 0, attempts: 1 }, 0, 0.5, 60_000), 60_000)
  assert.equal(nextAttemptAt({ started: 0, attempts: 9 }, TRIED_FOR_MS - 1, 0.5, 60_000), TRIED_FOR_MS)
})
