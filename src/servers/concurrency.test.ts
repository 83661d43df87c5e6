import assert from 'node:assert/strict'
import { test } from 'node:test'
import { seeded, sentAt, serveSlots } from '../../test/fakes/slotted-server.ts'
import { ConcurrencyLimit, type Sent } from './concurrency.ts'

const MAX = 4096

/** 100 to 300 ms. */
function even(seed = 1): () => number {
  const random = seeded(seed)
  return () => 100 + 200 * random()
}

/** A few hundred ms for most answers and seconds for some, as with real models. */
function uneven(seed = 1): () => number {
  const random = seeded(seed)
  return () => {
    const normal = Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random())
    return 120 * Math.exp(normal)
  }
}

/** A call that is in flight. */
function acquire(limit: ConcurrencyLimit, now: number): Sent {
  const sent = sentAt(now)
  limit.acquire(sent)
  return sent
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((total, one) => total + one, 0)
}

for (const [name, latency_ms] of [
  ['alike', even()],
  ['uneven', uneven()],
  ['many at once', () => 200],
] as const) {
  test(`the limit reaches 256 slots within a second where answers are ${name}`, () => {
    let filled = Number.POSITIVE_INFINITY
    const watch = (now: number, busy: number): void => {
      if (busy >= 248) filled = Math.min(filled, now)
    }
    serveSlots({ limits: [new ConcurrencyLimit({ max: MAX })], slots: () => 256, latency_ms, watch }, 5_000)
    assert.ok(filled < 1_000, `filled after ${filled} ms`)
  })
}

test('halved capacity costs few throttles, and is used within half a second of its return', () => {
  for (let seed = 1; seed <= 5; seed++) {
    const slots = (now: number): number => (now >= 6_000 && now < 12_000 ? 128 : 256)
    let filled = Number.POSITIVE_INFINITY
    const watch = (now: number, busy: number): void => {
      if (now > 12_000 && busy >= 248) filled = Math.min(filled, now)
    }
    const limits = [new ConcurrencyLimit({ max: MAX })]
    const { answered, throttled, lostMs } = serveSlots(
      { limits, slots, latency_ms: even(seed), watch },
      18_000,
    )
    assert.ok(filled - 12_000 < 500, `filled after ${filled - 12_000} ms`)
    const share = sum(throttled) / sum(answered)
    assert.ok(share < 0.025, `${(100 * share).toFixed(1)} % were throttled`)
    const used = 1 - lostMs / (6_000 * (256 + 128 + 256))
    assert.ok(used > 0.95, `${(100 * used).toFixed(1)} % of the slots were used`)
  }
})

test('latencies that vary widely do not lower the limit', () => {
  for (let seed = 1; seed <= 5; seed++) {
    const limits = [new ConcurrencyLimit({ max: MAX })]
    const { lostMs } = serveSlots({ limits, slots: () => 256, latency_ms: uneven(seed) }, 30_000)
    assert.ok(lostMs / (256 * 30_000) < 0.02, `${((100 * lostMs) / (256 * 30_000)).toFixed(1)} % were lost`)
  }
})

test('four workers that start one after the other converge to equal shares of one upstream', () => {
  const limits = Array.from({ length: 4 }, () => new ConcurrencyLimit({ max: MAX }))
  const held = [0, 0, 0, 0]
  const watch = (now: number): void => {
    if (now >= 30_000) for (const [i, limit] of limits.entries()) held[i]! += limit.inFlight
  }
  const starts = [0, 2_000, 4_000, 6_000]
  const server = { limits, starts, slots: () => 256, latency_ms: even(), watch }
  const { answered, throttled, lostMs } = serveSlots(server, 60_000)
  for (const one of held) assert.ok(one / sum(held) > 0.18 && one / sum(held) < 0.32, held.join(' '))
  assert.ok(lostMs / (256 * 60_000) < 0.03, `${lostMs} slot-ms were lost`)
  assert.ok(sum(throttled) / sum(answered) < 0.08, `${sum(throttled)} of ${sum(answered)} were throttled`)
})

test('with a server that queues instead of throttling, the limit returns to where throughput stops growing', () => {
  let most = 0
  const limits = [new ConcurrencyLimit({ max: MAX })]
  const watch = (now: number): void => {
    if (now > 10_000) most += limits[0]!.limit / 11_000
  }
  const server = { limits, slots: () => 256, latency_ms: even(), queues: true, watch }
  const { lostMs } = serveSlots(server, 120_000)
  assert.ok(most < 512, `${most} on the mean`)
  assert.ok(lostMs / (256 * 120_000) < 0.02, `${lostMs} slot-ms were lost`)
})

test('a slow server with four slots never gets more than twice the initial limit', () => {
  let most = 0
  const limits = [new ConcurrencyLimit({ max: MAX })]
  const watch = (): void => {
    most = Math.max(most, limits[0]!.inFlight)
  }
  const alike = even()
  serveSlots({ limits, slots: () => 4, latency_ms: () => 100 * alike(), queues: true, watch }, 3_600_000)
  assert.ok(most <= 64, `${most} were in flight`)
})

test('a server that throttles one line in twelve by chance gets as many lines as it answers', () => {
  const limits = [new ConcurrencyLimit({ max: MAX })]
  let inFlight = 0
  const watch = (now: number): void => {
    if (now >= 30_000) inFlight += limits[0]!.inFlight / 1_000
  }
  serveSlots({ limits, slots: () => 1_000, latency_ms: even(), strays: 1 / 12, watch }, 40_000)
  assert.ok(inFlight > 100, `${inFlight} on the mean`)
})

test('a server that throttles by chance as well is left full, and hardly asked for more', () => {
  const limits = [new ConcurrencyLimit({ max: MAX })]
  const served = serveSlots({ limits, slots: () => 64, latency_ms: even(), strays: 1 / 12 }, 60_000)
  const share = sum(served.throttled) / sum(served.answered)
  assert.ok(share < 0.15, `${(100 * share).toFixed(1)} % were throttled`)
  assert.ok(served.lostMs / (64 * 60_000) < 0.3, `${served.lostMs} slot-ms were lost`)
})

test('a throttle that comes with the answers to all other lines lowers the limit by one line', () => {
  const limit = new ConcurrencyLimit({ max: 32 })
  const sent = Array.from({ length: 32 }, () => acquire(limit, 0))
  for (const one of sent.slice(1)) limit.onAnswered(one, 10)
  limit.onThrottled(sent[0]!)
  assert.equal(limit.limit, 31)
})

test('the limit never exceeds its bound, and never falls below one', () => {
  const roomy = new ConcurrencyLimit({ max: 10 })
  serveSlots({ limits: [roomy], slots: () => 1_000, latency_ms: () => 5 }, 2_000)
  assert.equal(roomy.limit, 10)
  const crowded = new ConcurrencyLimit({ max: 10 })
  serveSlots({ limits: [crowded], slots: () => 0, latency_ms: () => 5 }, 2_000)
  assert.equal(crowded.limit, 1)
})

test('a burst of failures lowers the limit once', () => {
  const limit = new ConcurrencyLimit({ max: 100, start: 100 })
  const burst = Array.from({ length: 50 }, () => acquire(limit, 0))
  for (const sent of burst) limit.onFailed(sent, 10)
  assert.equal(limit.limit, 70)
  limit.onFailed(acquire(limit, 20), 30)
  assert.equal(limit.limit, 49)
})

test('two seconds after an outage the limit is almost as high as before', () => {
  const limit = new ConcurrencyLimit({ max: 1_000, start: 200 })
  for (let at = -100; at < 0; at += 2) limit.onFailed(acquire(limit, at), at + 1)
  assert.equal(limit.limit, 1)
  let back = Number.POSITIVE_INFINITY
  const watch = (now: number): void => {
    if (limit.limit >= 140) back = Math.min(back, now)
  }
  serveSlots({ limits: [limit], slots: () => 256, latency_ms: even(), watch }, 3_000)
  assert.ok(back < 2_000, `after ${back} ms`)
})

for (const how of ['failed', 'throttled'] as const)
  for (const slots of [8, 256])
    test(`a stall soon after an outage in which calls were ${how} leaves ${slots} slots in use`, () => {
      const [from, to] = [60_000, 90_000]
      // Before it is over, a few calls are answered.
      const outage = (now: number) => (now < from || now >= to || (now > 80_000 && now < 80_200) ? null : how)
      for (const after of [1_000, 15_000, 30_000]) {
        const stall = [to + after, to + after + 30_000] as const
        const limits = [new ConcurrencyLimit({ max: MAX })]
        const all = even(after)
        const latency_ms = (): number => 9 * all()
        const served = serveSlots(
          { limits, slots: () => slots, latency_ms, queues: true, outage, stall },
          600_000,
        )
        const used = sum(served.answered) / ((slots * (600_000 - 60_000)) / 1_800)
        assert.ok(used > 0.85, `${after}: ${(100 * used).toFixed(1)} % of the slots were used`)
      }
    })

test('the limit does not rise while it is not reached', () => {
  const limit = new ConcurrencyLimit({ max: 1_000, start: 32 })
  for (let now = 0; now < 10_000; now += 10) limit.onAnswered(acquire(limit, now), now + 5)
  assert.equal(limit.limit, 32)
})
