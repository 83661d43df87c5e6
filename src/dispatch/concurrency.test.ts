import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ConcurrencyLimit, type Sent } from './concurrency.ts'

/** A server with `slots()` places that answers after `latency_ms()` and refuses at once beyond; stepped by the ms. */
function drive(
  limit: ConcurrencyLimit,
  slots: (now: number) => number,
  latency_ms: () => number,
  until: number,
): number {
  let working: { sent: Sent; due: number }[] = []
  let served = 0
  for (let now = 0; now < until; now++) {
    for (const { sent } of working.filter(({ due }) => due <= now)) {
      served++
      limit.onAnswered(sent, now)
    }
    working = working.filter(({ due }) => due > now)
    // As the dispatcher does it: fill every free place, then hear of what was refused.
    let refused = 0
    while (limit.free > 0) {
      const sent = limit.acquire(now)
      if (working.length < slots(now)) working.push({ sent, due: now + latency_ms() })
      else refused++
    }
    for (; refused > 0; refused--) limit.onThrottled()
  }
  for (const { sent } of working) limit.onAnswered(sent, until)
  return served
}

/** 100 to 300, the same in every run. */
function spread(): () => number {
  let state = 1
  return () => {
    state = (state * 48271) % 2147483647
    return 100 + (state % 201)
  }
}

test('the limit finds the capacity of a server within seconds, unconfigured', () => {
  const limit = new ConcurrencyLimit({ max: 4096 })
  drive(limit, () => 256, spread(), 5_000)
  assert.ok(limit.limit >= 240 && limit.limit <= 320, `found ${limit.limit}`)
})

test('a server whose capacity halves and then doubles is kept nearly full', () => {
  const limit = new ConcurrencyLimit({ max: 4096 })
  const slots = (now: number): number => (now < 20_000 ? 256 : now < 40_000 ? 128 : 256)
  const served = drive(limit, slots, spread(), 60_000)
  const ideal = ((256 + 128 + 256) * 20_000) / 200
  assert.ok(served / ideal > 0.95, `served ${served} of ${ideal}`)
})

test('the limit never exceeds its bound, and never falls below one', () => {
  const limit = new ConcurrencyLimit({ max: 10 })
  drive(
    limit,
    () => 1_000,
    () => 5,
    2_000,
  )
  assert.equal(limit.limit, 10)
  drive(
    limit,
    () => 0,
    () => 5,
    100,
  )
  assert.equal(limit.limit, 1)
})

test('failures of one burst are punished once', () => {
  const limit = new ConcurrencyLimit({ max: 100, start: 100 })
  const burst = Array.from({ length: 50 }, () => limit.acquire(0))
  for (const sent of burst) limit.onFailed(sent, 10)
  assert.equal(limit.limit, 70)
  limit.onFailed(limit.acquire(20), 30)
  assert.equal(limit.limit, 49)
})

test('a server that only queues is not flooded: growth goes back where throughput does not follow', () => {
  const limit = new ConcurrencyLimit({ max: 100_000 })
  const queue: Sent[] = []
  // Answers 50 a second whatever is in flight.
  for (let now = 0; now < 300_000; now++) {
    while (limit.free > 0) queue.push(limit.acquire(now))
    if (now % 20 === 0) limit.onAnswered(queue.shift()!, now)
  }
  assert.ok(limit.limit < 64, `grew to ${limit.limit}`)
})

test('an upstream that is not asked for more is not believed to take more', () => {
  const limit = new ConcurrencyLimit({ max: 1_000, start: 32 })
  for (let now = 0; now < 10_000; now += 10) limit.onAnswered(limit.acquire(now), now + 5)
  assert.equal(limit.limit, 32)
})
