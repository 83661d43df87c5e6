import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { ServerTraffic } from '../backends/backend.ts'
import { OpeningHours } from '../domain/hours.ts'
import { type Call, ModelServer, type Upstream, type UpstreamTerms } from './upstream.ts'

const backend = {
  name: 'u',
  send: async () => assert.fail('nothing is sent'),
  close: async () => {},
}

function opening(terms: UpstreamTerms, at: string): ReturnType<Upstream['openingAt']> {
  const upstream = new ModelServer({ backend, modelAlias: null, ...terms })
  return upstream.openingAt(Date.parse(at))
}

test('an upstream tells how many lines its hours allow, and until when', () => {
  const evenings = { days: [1, 2, 3, 4, 5, 6, 7], from: 20 * 60, to: 7 * 60, timezone: 'UTC' }
  const hours = new OpeningHours([{ ...evenings, concurrency_max: 512 }])
  const terms = { concurrency_max: 64, hours }
  assert.deepEqual(opening(terms, '2026-01-05T21:00:00Z'), {
    places: 64,
    until: Date.parse('2026-01-06T07:00:00Z'),
  })
  assert.deepEqual(opening(terms, '2026-01-05T12:00:00Z'), {
    places: 0,
    until: Date.parse('2026-01-05T20:00:00Z'),
  })
  assert.equal(opening({ concurrency_max: 64 }, '2026-01-05T12:00:00Z'), null)
})

/** A server that is always full of lines without answers; `read` says what its metrics show at a time (ms). */
class FullServer {
  reads = 0
  readonly #server: ModelServer
  readonly #calls: Call[] = []
  #now = 0

  constructor(read: (inFlight: number, now: number) => ServerTraffic | null) {
    const readTraffic = async () => {
      this.reads++
      return read(this.#calls.length, this.#now)
    }
    const terms = { concurrency_max: 1024, modelAlias: null }
    this.#server = new ModelServer({ backend: { ...backend, readTraffic }, ...terms })
    this.#fill()
  }

  /** Resolves with how many lines are in flight then. */
  async lookAt(now: number): Promise<number> {
    this.#now = now
    await this.#server.seekRoom(() => now)
    return this.#fill()
  }

  throttle(): void {
    this.#server.limit.onThrottled(this.#calls.pop()!)
  }

  #fill(): number {
    while (this.#server.accepts(this.#now)) this.#calls.push(sendTo(this.#server, this.#now))
    return this.#calls.length
  }
}

function sendTo(server: ModelServer, sentAt: number): Call {
  const sent = { sentAt, inFlight: 0, cohort: null, probing: null }
  const call: Call = { ...sent, batch_id: 'b', line: {}, missedBefore: false }
  server.begin(call)
  return call
}

test('only a server that throttles its only line is left alone, not one that answers others meanwhile', () => {
  const throttled = { kind: 'throttled', status: 429, reason: '429' } as const
  const refused = { kind: 'refused', status: 400, code: 'upstream_rejected', message: 'no' } as const
  const server = new ModelServer({ backend, modelAlias: null, concurrency_max: 8 })
  const [first, second] = [sendTo(server, 0), sendTo(server, 0)]
  server.end(first, refused, 10)
  server.end(second, throttled, 10)
  assert.ok(server.circuit.closed)
  server.end(sendTo(server, 20), throttled, 30)
  assert.equal(server.circuit.openKind, 'throttled')
})

/** The metrics of a server that runs all it has, and makes so many tokens a second of each. */
const busy =
  (tokensPerS: number, more: Partial<ServerTraffic> = {}) =>
  (inFlight: number, now: number): ServerTraffic => {
    const tokens = (tokensPerS * inFlight * now) / 1000
    return { running: inFlight, waiting: 0, cache: 0.1, tokens, steps: null, ...more }
  }

test('a server that works on all lines in flight gets twice as many with each reading, before its first answer', async () => {
  const server = new FullServer(busy(50))
  const found: number[] = []
  for (let now = 0; now < 2_000; now += 200) found.push(await server.lookAt(now))
  assert.deepEqual(found, [64, 128, 256, 512, 1024, 1024, 1024, 1024, 1024, 1024])
  assert.equal(server.reads, 5)
})

for (const [what, traffic, most] of [
  ['in which requests wait', busy(50, { waiting: 1 }), 32],
  ['in which requests wait for a grammar', busy(50, { deferred: 1 }), 32],
  ['whose cache is half full', busy(50, { cache: 0.6 }), 32],
  ['of which the metrics show one of several replicas', busy(50, { running: 8 }), 32],
  ['that shows no metrics', () => null, 32],
  ['that makes few tokens of each request', busy(3), 64],
  ['that does not say how many tokens it makes', busy(50, { tokens: null }), 64],
] as const)
  test(`a server ${what} gets ${most} lines before its first answer, and is read ever more rarely`, async () => {
    const server = new FullServer(traffic)
    let found = 0
    for (let now = 0; now < 60_000; now += 200) found = await server.lookAt(now)
    assert.equal(found, most)
    assert.ok(server.reads < 12, `${server.reads} readings`)
  })

test('a server that has throttled a line is not read, though its metrics may show room', async () => {
  const server = new FullServer(busy(50))
  server.throttle()
  assert.equal(await server.lookAt(200), 31)
  assert.equal(server.reads, 0)
})
