import assert from 'node:assert/strict'
import { test } from 'node:test'
import { linesIn, lineWorld } from '../../test/support/line-world.ts'
import { queuedBatch } from '../../test/support/queued-batch.ts'
import { parkChunk, releaseChunk, storeLineTries, wakeParked } from '../store/chunks.ts'
import { requeueExpiredLeases } from '../store/workers.ts'
import { Run } from './run.ts'
import { ModelServer } from './senders/upstream.ts'
import { storedTries } from './tries.ts'

const THROTTLED_MAX = 20
const HOUR_MS = 3_600_000

function throttling(): ModelServer {
  const send = async () => ({ kind: 'throttled', status: 429, reason: '429: no room' }) as const
  return new ModelServer({
    backend: { name: 'full', send, close: async () => {} },
    concurrency_max: 1,
    modelAlias: null,
  })
}

test('throttles of a line are counted across workers and leases', async () => {
  const ended: string[] = []
  let line_tries: string | null = null
  for (let epoch = 1; ended.length === 0; epoch++) {
    assert.ok(epoch <= THROTTLED_MAX, 'each worker begins anew')
    // Each lease has a new worker, which knows only what is stored with the chunk.
    const retry = { throttled_attempts_max: THROTTLED_MAX, throttled_share: 1 }
    await using world = await lineWorld({ lines: 1, retry, upstreams: () => [throttling()] })
    const { claim, batch, lines, bytes } = world.run
    const run: Run = new Run({ ...claim, epoch, line_tries }, batch, lines, bytes)
    await world.start(run)
    for (let i = 0; i < 4 && world.ended.length === 0; i++) await world.advance(1_000)
    line_tries = storedTries(run)
    ended.push(...world.ended)
    world.lines.close(run, false)
  }
  assert.deepEqual(ended, ['l1 upstream_unavailable'])
})

test('the worker that parked a chunk still knows the attempts of its lines when it claims the chunk next', async () => {
  await using world = await lineWorld({ lines: 1, retry: { attempts_max: 10 } })
  await world.start()
  await world.server.inFlight[0]!.respond(500, { error: { message: 'a bug' } })
  const { claim, batch, lines, bytes } = world.run
  world.lines.close(world.run, true)
  const again = new Run({ ...claim, epoch: claim.epoch + 1 }, batch, lines, bytes)
  await world.start(again)
  await world.server.inFlight[0]!.answer()
  const [attempt] = world.outcomes[0]!.record.attempts as { reason?: string }[]
  assert.match(attempt?.reason ?? '', /500: a bug/)
  assert.equal(world.outcomes[0]!.record.attempts.length, 2)
})

for (const lost of [0, 1, 2])
  test(`tries count that another worker made since this one parked the chunk, and after ${lost} lost leases`, async () => {
    await using queued = await queuedBatch({ chunks: 1, lines: 1 })
    const { store, clock } = queued
    const first = linesIn(queued, await queued.open(), {})
    const fail = ({ server }: Pick<typeof first, 'server'>) =>
      server.inFlight[0]!.respond(500, { error: { message: 'a bug' } })
    await first.start()
    await fail(first)
    await store.write(async (tx) => {
      await parkChunk(tx, first.run.results.lease, 0, 'no_worker', undefined, storedTries(first.run))
      await wakeParked(tx)
    })
    first.lines.close(first.run, true)
    const second = linesIn(queued, await queued.open(), {})
    await second.start()
    await clock.advance(1_000)
    await fail(second)
    await store.write(async (tx) => {
      await storeLineTries(tx, second.run.claim, storedTries(second.run, true))
      await releaseChunk(tx, second.run.claim)
    })
    for (let i = 0; i < lost; i++) {
      assert.equal((await queued.open()).length, 1)
      await clock.advance(60_000)
      await store.write(requeueExpiredLeases)
    }
    const [again] = await queued.open()
    await first.start(again)
    await clock.advance(1_000)
    await fail(first)
    assert.deepEqual(first.ended, ['l1 upstream_unavailable'])
    assert.match(first.outcomes[0]!.result.error!.message, /after 3 attempts/)
  })

test('the time for which workers are stopped is no part of an outage', async () => {
  await using world = await lineWorld({ lines: 1, retry: { attempts_max: 10 } })
  await world.start()
  await world.server.inFlight[0]!.respond(500, { error: { message: 'a bug' } })
  const countOf = (stored: string | null) => JSON.parse(stored ?? '[]')[0]?.[1]
  const count = countOf(storedTries(world.run))
  assert.equal(typeof count.firstFailureAt, 'number')
  assert.deepEqual(countOf(storedTries(world.run, true)), { ...count, firstFailureAt: null })
})

test('a server that asks for a pause of hours gets one of a minute, because it may have meant one line', () => {
  const upstream = throttling()
  const call = {
    ...{ batch_id: 'b', missedBefore: false, line: {}, sentAt: 0 },
    ...{ probing: null, inFlight: 0, cohort: null },
  }
  upstream.begin(call)
  upstream.end(call, { kind: 'throttled', status: 429, reason: '429', retry_after_ms: HOUR_MS }, 0)
  assert.ok(!upstream.accepts(0))
  assert.equal(upstream.opensAt(0), 60_000)
})
