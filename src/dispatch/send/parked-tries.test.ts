import assert from 'node:assert/strict'
import { test } from 'node:test'
import { testClock } from '../../../test/fakes/clock.ts'
import { OpenChunk } from '../../results/open-chunk.ts'
import type { BatchRow, ChunkRow } from '../../store/schema.ts'
import { unreadableLines } from '../claim/unreadable-chunk.ts'
import { Sender } from './sender.ts'
import { Upstream } from './upstream.ts'

const THROTTLED_MAX = 20
const HOUR_MS = 3_600_000

test('throttles of a line are counted across workers and leases', async () => {
  const clock = testClock()
  const log = { info() {}, warn() {}, error() {} }
  const ended: string[] = []
  let sent = 0
  let line_tries: string | null = null
  for (let epoch = 1; ended.length === 0; epoch++) {
    assert.ok(epoch <= THROTTLED_MAX, 'each worker begins anew')
    // Each lease has a new worker, which knows only what is stored with the chunk.
    const upstream = new Upstream({
      backend: {
        name: 'full',
        send: async () => {
          sent++
          return { kind: 'throttled', status: 429, reason: '429: no room' }
        },
        close: async () => {},
      },
      concurrency_max: 1,
      modelAlias: null,
    })
    const sender = new Sender({
      clock,
      random: () => 0.5,
      log,
      models: new Map(),
      upstreams: new Map([['m', [upstream]]]),
      retry: {
        attempts_max: 3,
        backoff_min_ms: 10,
        backoff_max_ms: 1_000,
        outage_patience_ms: 0,
        throttled_attempts_max: THROTTLED_MAX,
        throttled_share: 1,
      },
      maySend: () => true,
      onBegun() {},
      funds: { draw: () => true, reserve() {} },
      onInsufficientFunds() {},
      onOutcome: (chunk, outcome) => {
        ended.push(outcome.code)
        chunk.finish(outcome)
      },
      onIdle() {},
    })
    const claim = { batch_id: 'b', idx: 0, epoch, deadline: clock.now() + 24 * HOUR_MS, line_tries }
    const batch = {
      id: `batch_${'0'.repeat(26)}`,
      project_id: 'p',
      created: clock.now(),
      status: 'in_progress',
    }
    const lines = unreadableLines({ first_line: 1, line_count: 1 }, []).map((line) => ({
      ...line,
      model: 'm',
      fault: null,
    }))
    const chunk = new OpenChunk(claim as ChunkRow, batch as BatchRow, lines, Buffer.from('{}'), [])
    sender.start(chunk)
    for (let i = 0; i < 4 && ended.length === 0; i++) await clock.advance(1_000)
    sender.withdraw(chunk)
    line_tries = chunk.lineTries()
    sender.close()
  }
  assert.deepEqual([ended, sent], [['upstream_unavailable'], THROTTLED_MAX])
})

test('a server that asks for a pause of hours gets one of a minute, because it may have meant one line', () => {
  const upstream = new Upstream({
    backend: { name: 'odd', send: () => Promise.reject(new Error('not sent')), close: async () => {} },
    concurrency_max: 1,
    modelAlias: null,
  })
  const call = upstream.begin({ batch_id: 'b', missedBefore: false, line: {} }, 0)
  upstream.end(call, { kind: 'throttled', status: 429, reason: '429', retry_after_ms: HOUR_MS }, 0)
  assert.ok(!upstream.accepts(0))
  assert.equal(upstream.opensAt(0), 60_000)
})
