import assert from 'node:assert/strict'
import { test } from 'node:test'
import { linesIn, lineWorld } from '../../../test/support/line-world.ts'
import { queuedBatch } from '../../../test/support/queued-batch.ts'
import type { BackendResult } from '../../backends/backend.ts'
import { type Blame, type MissedResult, ModelServer } from '../../servers/upstream.ts'
import { parkChunk, releaseChunk, storeLineTries, wakeParked } from '../../store/chunks.ts'
import { requeueExpiredLeases } from '../../store/workers.ts'
import { Run } from '../run.ts'
import { backoffMs, countMiss, isExhausted, noTries, type RetryPolicy, storedTries } from './retries.ts'

const THROTTLED_MAX = 20
const HOUR_MS = 3_600_000

function throttling(): ModelServer {
  const full: BackendResult = { kind: 'throttled', status: 429, reason: '429: no room' }
  return new ModelServer({
    backend: { name: 'full', send: (_call, done) => queueMicrotask(() => done(full)), close: async () => {} },
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

const POLICY: RetryPolicy = {
  attempts_max: 3,
  backoff_min_ms: 500,
  backoff_max_ms: 30_000,
  outage_patience_ms: 600_000,
  throttled_attempts_max: 60,
  throttled_share: 0.5,
}
const DAY_MS = 86_400_000
const NEVER = Number.NEGATIVE_INFINITY
const SERVER_ERROR: MissedResult = {
  kind: 'failed',
  status: 500,
  code: 'upstream_unavailable',
  reason: '500',
}
const NOBODY_THERE: MissedResult = { ...SERVER_ERROR, status: null, reason: 'refused', unreachable: true }
const THROTTLED: MissedResult = { kind: 'throttled', status: 429, reason: '429' }

/** After how many such misses the line fails; null: not after a thousand. */
function endsAfter(miss: MissedResult, blame: Blame): number | null {
  const tries = noTries()
  for (let count = 1; count <= 1_000; count++) {
    countMiss(tries, miss, blame, NEVER, 1)
    if (isExhausted(POLICY, tries, miss, 1, DAY_MS)) return count
  }
  return null
}

test('a line fails after as many misses through its own fault as the policy allows', () => {
  assert.equal(endsAfter(SERVER_ERROR, 'line'), 3)
  assert.equal(endsAfter(THROTTLED, 'line'), 3)
})

test('a line that is always throttled fails too, and sooner while others are answered', () => {
  assert.equal(endsAfter(THROTTLED, 'server'), 60)
  assert.equal(endsAfter(THROTTLED, 'unlucky'), 15)
})

test('a throttled line waits for at most its share of the completion window, whatever the server asks for', () => {
  const asked = { ...THROTTLED, retry_after_ms: 3_600_000 }
  const tries = noTries()
  let waitedMs = 0
  for (;;) {
    countMiss(tries, asked, 'server', NEVER, 1)
    if (isExhausted(POLICY, tries, asked, 1, 4 * 3_600_000)) break
    const waitMs = backoffMs(POLICY, tries, asked, 0.5, 4 * 3_600_000)
    tries.throttledMs += waitMs
    waitedMs += waitMs
  }
  assert.equal(tries.throttles, 3)
  assert.equal(waitedMs, 2 * 3_600_000)
})

test('lines of an unavailable server fail only after the outage patience', () => {
  assert.equal(endsAfter(NOBODY_THERE, 'server'), null)
  const tries = { ...noTries(), failures: 50, firstFailureAt: 1_000 }
  assert.ok(!isExhausted(POLICY, tries, NOBODY_THERE, 600_999, DAY_MS))
  assert.ok(isExhausted(POLICY, tries, NOBODY_THERE, 601_000, DAY_MS))
})

test('the outage patience starts again when the server answered in between', () => {
  const tries = noTries()
  countMiss(tries, NOBODY_THERE, 'server', NEVER, 1_000)
  countMiss(tries, NOBODY_THERE, 'server', 500, 2_000)
  assert.equal(tries.firstFailureAt, 1_000)
  countMiss(tries, NOBODY_THERE, 'server', 3_000, 4_000)
  assert.equal(tries.firstFailureAt, 4_000)
})

test('the backoff grows, has jitter, and stays within its bounds', () => {
  const at = (failures: number, random: number): number =>
    backoffMs(POLICY, { ...noTries(), failures }, SERVER_ERROR, random, DAY_MS)
  assert.equal(at(1, 0), 250)
  assert.ok(at(1, 0.999) < 500)
  assert.ok(at(5, 0.999) > 7_900 && at(5, 0.999) < 8_000)
  assert.ok(at(60, 0.999) < 30_000)
  assert.equal(at(60, 0), 250)
})

test('a longer Retry-After overrides the backoff', () => {
  const asked = { ...THROTTLED, retry_after_ms: 45_000 }
  assert.equal(backoffMs(POLICY, { ...noTries(), throttles: 1 }, asked, 0.5, DAY_MS), 45_000)
})

test('a throttled line is retried soon at first, and then less and less often', () => {
  const at = (throttles: number, random: number): number =>
    backoffMs(POLICY, { ...noTries(), failures: 2, throttles }, THROTTLED, random, DAY_MS)
  assert.ok(at(1, 0.999) <= 20)
  assert.ok(at(12, 0.999) > 29_000 && at(12, 0.999) <= 30_000)
})
