import assert from 'node:assert/strict'
import test from 'node:test'
import LLAMACPP from '../../../test/fixtures/llamacpp.json' with { type: 'json' }
import type { ServerTraffic } from '../../backends/backend.ts'
import { LiveShare } from './live-share.ts'

const ALONE = { others: 0, workers: 1 }
const QUIET: ServerTraffic = { running: 0, waiting: 0, cache: 0.01, tokens: null, steps: null }

function share(): LiveShare {
  return new LiveShare({ waiting_max: 0, cache_max: 0.85 })
}

/** Reads once a second a server on which others have `running`, and whose share is always used. */
function run(
  of: LiveShare,
  from: number,
  seconds: number,
  traffic: (own: number) => ServerTraffic,
  others = { others: 0, workers: 1 },
): number {
  for (let s = 0; s < seconds; s++) {
    const now = from + s * 1000
    const own = of.places(now)
    of.read(traffic(own), { ...others, inFlight: own }, now)
  }
  return from + seconds * 1000
}

/** With seats; tokens as an engine makes them whose steps grow little with the requests. */
function server(seats: number, live: (at: number) => number): (own: number) => ServerTraffic {
  let tokens = 0
  let at = 0
  return (own) => {
    const asked = own + live(at++)
    const running = Math.min(seats, asked)
    tokens += (running * 1000) / (20 + 0.01 * running)
    return { running, waiting: asked - running, cache: running / 1000, tokens, steps: null }
  }
}

/** A share after 300 seconds at a server of 64 seats without other requests. */
function grown() {
  const of = share()
  const quiet = server(64, () => 0)
  return { of, now: run(of, 0, 300, quiet) }
}

test('nothing is sent before the first reading, and few lines at once after it', () => {
  const of = share()
  assert.equal(of.places(0), 0)
  of.read(QUIET, { ...ALONE, inFlight: 0 }, 0)
  assert.ok(of.places(0) > 0)
  assert.ok(of.places(1000) < 10)
})

test('the share grows to what a quiet server has room for, and leaves a seat free', () => {
  const { of } = grown()
  assert.ok(of.current >= 40, `only ${of.current} of 64 seats`)
  assert.ok(of.current < 64)
})

test('the share shrinks at the first reading at which others wait, by more than wait', () => {
  const { of, now } = grown()
  const before = of.current
  of.read(
    { running: 64, waiting: 5, cache: 0.1, tokens: null, steps: null },
    { ...ALONE, inFlight: before },
    now,
  )
  assert.ok(of.places(now) <= before - 5)
})

test('where others take all seats, no line may be in flight; when they leave, lines come back step by step', () => {
  const of = share()
  let now = run(
    of,
    0,
    200,
    server(64, (at) => Math.min(70, at)),
  )
  assert.equal(of.places(now), 0)
  now = run(
    of,
    now,
    5,
    server(64, () => 4),
  )
  assert.ok(of.current > 0 && of.current < 40)
  run(
    of,
    now,
    200,
    server(64, () => 4),
  )
  assert.ok(of.current >= 30, `only ${of.current}`)
})

test('the nearer others are to all of the seats, the more of what they may add is left free', () => {
  // After a peak at which they find out how many seats there are: about the mean by turns.
  const freeBeside = (mean: number): number => {
    const of = share()
    const peak = (at: number): number => (at % 30 === 0 ? 99 : 92)
    const others = (at: number): number => (at < 300 ? peak(at) : mean + (at % 2 === 0 ? 3 : -3))
    const now = run(of, 0, 900, server(96, others))
    return 96 - mean - of.places(now)
  }
  const half = freeBeside(48)
  const most = freeBeside(78)
  assert.ok(half <= 10, `${half}`)
  assert.ok(most >= 16, `${most}`)
})

test('a cache that fills up beyond its bound shrinks the share at once', () => {
  const { of, now } = grown()
  const before = of.current
  of.read(
    { running: before, waiting: 0, cache: 0.95, tokens: null, steps: null },
    { ...ALONE, inFlight: before },
    now,
  )
  assert.ok(of.places(now) < before * 0.95)
})

test('the share that other workers have is theirs, and room is divided', () => {
  const traffic = server(64, () => 0)
  const shares = [share(), share(), share()]
  for (let s = 0; s < 400; s++) {
    const now = s * 1000
    const own = shares.map((one) => one.places(now))
    const total = own.reduce((sum, count) => sum + count, 0)
    const read = traffic(total)
    assert.ok(total <= 64 + 8, `${total} lines in flight`)
    for (const [i, one] of shares.entries())
      one.read(read, { inFlight: own[i]!, others: total - own[i]!, workers: 3 }, now)
  }
  const total = shares.reduce((sum, one) => sum + one.current, 0)
  assert.ok(total >= 40 && total < 64, `${total} of 64 seats`)
})

test('a share that was not used for a while does not come as a burst', () => {
  const { of, now } = grown()
  of.read({ ...QUIET, tokens: 1e9 }, { ...ALONE, inFlight: 0 }, now)
  assert.ok(of.places(now) <= 10)
})

test('a server with one seat gets a line while nobody else has any', () => {
  const of = share()
  const traffic = server(1, (at) => (at === 3 ? 2 : 0))
  let withLine = 0
  for (let s = 0; s < 60; s++) {
    run(of, s * 1000, 1, traffic)
    if (of.current > 0) withLine++
  }
  assert.ok(withLine > 45, `only ${withLine} of 60 s`)
})

test('without metrics the share follows how long tokens take', () => {
  const of = share()
  let now = 0
  const answerFor = (seconds: number, tokenMs: number): void => {
    for (let s = 0; s < seconds; s++) {
      of.unread({ ...ALONE, inFlight: of.places(now) }, now)
      of.answered(100 * tokenMs, 100)
      now += 1000
    }
  }
  answerFor(20, 10)
  const before = of.current
  assert.ok(before > 10, `only ${before}`)
  answerFor(5, 40)
  assert.ok(of.current < before / 2)
  assert.ok(of.current >= 1)
})

/** Answers of 100 tokens, each of which takes 10 ms, but for one. */
function answeredWithout(metrics: { tookMs: number; tokens: number } | null): LiveShare {
  const of = share()
  let now = 0
  for (let s = 0; s < 60; s++) {
    of.unread({ ...ALONE, inFlight: of.places(now) }, now)
    if (s === 20 && metrics) of.answered(metrics.tookMs, metrics.tokens)
    of.answered(1_000, 100)
    now += 1000
  }
  return of
}

for (const [what, absurd] of [
  ['more tokens than a server can generate', { tookMs: 1_000, tokens: 1e15 }],
  ['an answer that took a century, by a clock that was set', { tookMs: 3e12, tokens: 100 }],
  ['an answer that came before its request was sent', { tookMs: -3e12, tokens: 100 }],
] as const)
  test(`without metrics, ${what} does not slow the share for long`, () => {
    const [share, usual] = [answeredWithout(absurd).current, answeredWithout(null).current]
    assert.ok(usual > 20, `${usual}`)
    assert.ok(share >= 0.8 * usual, `${share} of ${usual}`)
  })

test('the steps of a real llama.cpp server, which counts tokens when a request ends, are learned from its count of steps', () => {
  const of = share()
  const seen = new Map<number, { ms: number; steps: number }>()
  let last = { at: 0, running: 0, steps: 0 }
  for (const [at = 0, running = 0, waiting = 0, tokens = 0, steps = 0] of LLAMACPP.readings) {
    of.read({ running, waiting, cache: null, tokens, steps }, { ...ALONE, inFlight: 0 }, at)
    if (last.running === running) {
      const { ms, steps: before } = seen.get(running) ?? { ms: 0, steps: 0 }
      seen.set(running, { ms: ms + at - last.at, steps: before + steps - last.steps })
    }
    last = { at, running, steps }
  }
  const { line, seats } = of.state
  assert.equal(seats, 4)
  assert.ok(line !== null)
  for (const [running, { ms, steps }] of seen) {
    const ratio: number = (line.baseMs + line.perOtherMs * running) / (ms / steps)
    assert.ok(ratio > 0.6 && ratio < 1.6, `${running} requests: ${ratio} of the time that a step took`)
  }
})
