import assert from 'node:assert/strict'
import { join } from 'node:path'
import { test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { testClock } from '../../test/fakes/clock.ts'
import { echo, testUpstream } from '../../test/fakes/upstream.ts'
import { temporaryDisk } from '../../test/support/temporary-disk.ts'
import type { BackendResult } from '../backends/backend.ts'
import { openaiBackend } from '../backends/openai/openai-backend.ts'
import { HOUR_MS } from '../domain/days.ts'
import { LiveServer } from '../servers/live/live-server.ts'
import { type Call, ModelServer } from '../servers/upstream.ts'
import { sqliteStore } from '../store/sqlite/store.ts'
import { listLaneReports, listLiveWorkers, listServerHours, openSession } from '../store/workers.ts'
import type { UpstreamStatus } from '../wire/status.ts'
import { WorkerReporter } from './worker-reporter.ts'

const THROTTLED: BackendResult = { kind: 'throttled', status: 429, reason: '429', words: 'slow down' }
const NOBODY_THERE: BackendResult = {
  kind: 'failed',
  status: null,
  code: 'upstream_unavailable',
  reason: 'no connection (ECONNREFUSED)',
  operatorReason: 'connect ECONNREFUSED 10.0.0.1:8000',
  unreachable: true,
}
const BROKEN: BackendResult = {
  kind: 'failed',
  status: 500,
  code: 'upstream_unavailable',
  reason: '500',
  words: 'no',
}
const REFUSED: BackendResult = { kind: 'refused', status: 400, code: 'upstream_rejected', message: 'no' }

async function reporting() {
  const disk = await temporaryDisk()
  const clock = testClock()
  const store = sqliteStore({ path: join(disk.root, 'db'), leaseNow: clock.now })
  await store.migrate()
  const workerId = await store.write((tx) => openSession(tx, 1e9, clock.now()))
  const live = new LiveServer({ waiting_max: 0, cache_max: 0.85 })
  const upstream = new ModelServer({
    live,
    backend: { name: 'u', send: () => Promise.reject(new Error('nothing is sent')), close: async () => {} },
    concurrency_max: 8,
    modelAlias: null,
  })
  const lane = { inUse: [upstream], upstreams: [upstream], waiting: 5, inFlight: 0 }
  const lanes = new Map([['m', lane]])
  const status = () => ({ openChunks: 0, storesFailing: false })
  const reporter = new WorkerReporter({ store, clock, session: { id: workerId }, lanes, status })
  return {
    clock,
    /** Reads a server on which others have so many requests, of which so many wait. */
    async read(running: number, waiting: number) {
      const traffic = { running, waiting, cache: null, tokens: null, steps: null }
      await live.read(async () => traffic, { inFlight: 0, workers: 0 }, clock.now)
    },
    /** Sends one line of `batch_id`, with this result. */
    tried(batch_id: string, result: BackendResult) {
      const call: Call = {
        ...{ batch_id, missedBefore: false, line: {}, sentAt: clock.now() },
        ...{ probing: null, inFlight: 0, cohort: null },
      }
      upstream.begin(call)
      upstream.end(call, result, clock.now())
    },
    async reported() {
      await reporter.reportLanes()
      return await listLaneReports(store.read)
    },
    /** An attempt took so long. */
    attempted: (result: 'answered' | 'failed', ms: number) => reporter.attempted(upstream, result, ms),
    async serverHours() {
      await reporter.report()
      return (await listServerHours(store.read, clock.now())).map((row) => ({ ...row }))
    },
    async liveHours() {
      await reporter.report()
      const [worker] = await listLiveWorkers(store.read)
      return worker!.report!.live_hours
    },
    async [Symbol.asyncDispose]() {
      await store.close()
      await disk[Symbol.asyncDispose]()
    },
  }
}

test('what others leave of a live server is reported by hour, for a day', async () => {
  await using setup = await reporting()
  const { clock, read } = setup
  await clock.advance(HOUR_MS - (clock.now() % HOUR_MS))
  const first = clock.now()
  assert.equal(await setup.liveHours(), undefined, 'nothing is known before the first reading')
  await read(0, 0)
  assert.deepEqual(await setup.liveHours(), [[first, 1]])
  await read(20, 3)
  assert.deepEqual(await setup.liveHours(), [[first, 0.5]])
  await clock.advance(HOUR_MS)
  assert.deepEqual(await setup.liveHours(), [
    [first, 0.5],
    [first + HOUR_MS, 0],
  ])
  await clock.advance(23 * HOUR_MS)
  assert.deepEqual(await setup.liveHours(), [
    [first + HOUR_MS, 0],
    [first + 24 * HOUR_MS, 0],
  ])
})

test('what a server did is counted by hour, for a day', async () => {
  await using setup = await reporting()
  const { clock, attempted } = setup
  await clock.advance(HOUR_MS - (clock.now() % HOUR_MS))
  const first = clock.now()
  const server = { model: 'm', upstream: 'u' }
  attempted('answered', 100)
  attempted('failed', 7)
  const one = { ...server, hour: first, answered: 1, answered_ms: 100, missed: 1, missed_ms: 7 }
  assert.deepEqual(await setup.serverHours(), [one])
  // The same again: only a report that has changed is written, and every attempt counts.
  attempted('answered', 100)
  attempted('failed', 7)
  const two = { ...server, hour: first, answered: 2, answered_ms: 200, missed: 2, missed_ms: 14 }
  assert.deepEqual(await setup.serverHours(), [two])
  await clock.advance(HOUR_MS)
  attempted('answered', 50)
  const next = { ...server, hour: first + HOUR_MS, answered: 1, answered_ms: 50, missed: 0, missed_ms: 0 }
  assert.deepEqual(await setup.serverHours(), [two, next])
  await clock.advance(23 * HOUR_MS)
  assert.deepEqual(await setup.serverHours(), [next])
})

test('a model is throttled from the first throttled line until a line is answered', async () => {
  await using setup = await reporting()
  const { clock, tried } = setup
  const reported = async () => (await setup.reported()).map(({ state, since }) => [state, since])
  assert.deepEqual(await reported(), [])
  const since = clock.now()
  tried('a', THROTTLED)
  assert.deepEqual(await reported(), [['throttled', since]])
  // The pause is over and the next line was sent.
  await clock.advance(1_000)
  assert.deepEqual(await reported(), [['throttled', since]])
  tried('a', THROTTLED)
  assert.deepEqual(await reported(), [['throttled', since]])
  await clock.advance(1_000)
  tried('a', REFUSED)
  assert.deepEqual(await reported(), [])
})

test('a model is reported while other requests take all of its server, from five seconds on', async () => {
  await using setup = await reporting()
  const { clock, read } = setup
  const reported = async () => (await setup.reported()).map(({ state, since }) => [state, since])
  const since = clock.now()
  for (let s = 0; s < 5; s++) {
    await read(8, 3)
    assert.deepEqual(await reported(), [])
    await clock.advance(1_000)
  }
  assert.deepEqual(await reported(), [['live_traffic', since]])
  // One reading without others may be chance.
  for (let s = 0; s < 60; s++) {
    await clock.advance(1_000)
    await read(1, 0)
  }
  assert.deepEqual(await reported(), [])
})

test('an unreachable server is reported after a second, with the reason, even for a single line', async () => {
  await using setup = await reporting()
  const { clock, tried, reported } = setup
  tried('a', NOBODY_THERE)
  await clock.advance(1_000)
  const [report] = await reported()
  assert.deepEqual(
    [report?.state, report?.reason, report?.last_error],
    ['unavailable', 'no connection (ECONNREFUSED)', 'connect ECONNREFUSED 10.0.0.1:8000'],
  )
  tried('a', REFUSED)
  assert.deepEqual(await reported(), [])
})

test('failures on lines of a batch are reported with the error, until a line of the batch is answered', async () => {
  await using setup = await reporting()
  const { tried, reported } = setup
  tried('bad', BROKEN)
  tried('good', REFUSED)
  const [report] = await reported()
  assert.deepEqual([report?.state, report?.batches, report?.isOpen], ['failing', { bad: '500: no' }, false])
  for (let i = 0; i < 8; i++) tried('bad', BROKEN)
  assert.equal((await reported())[0]?.isOpen, true)
  tried('bad', REFUSED)
  assert.deepEqual(await reported(), [])
})

test('a server without lines is asked every half minute whether it is up, and one that stops is reported', async () => {
  await using disk = await temporaryDisk()
  const clock = testClock()
  const store = sqliteStore({ path: join(disk.root, 'db'), leaseNow: clock.now })
  await store.migrate()
  const workerId = await store.write((tx) => openSession(tx, 1e6, clock.now()))
  const server = await testUpstream()
  const upstream = new ModelServer({
    backend: openaiBackend({ name: 'u', base_url: server.base_url, timeout_ms: 5_000, connections_max: 1 }),
    concurrency_max: 8,
    modelAlias: null,
  })
  const reporter = new WorkerReporter({
    store,
    clock,
    session: { id: workerId },
    lanes: new Map([['m', { upstreams: [upstream], inUse: [upstream], waiting: 0, inFlight: 0 }]]),
    status: () => ({ openChunks: 0, storesFailing: false }),
  })
  const reported = async (): Promise<UpstreamStatus> => {
    await reporter.report()
    const [worker] = await listLiveWorkers(store.read)
    return worker!.report!.upstreams[0]!
  }
  const until = async (reachable: boolean): Promise<UpstreamStatus> => {
    let report = await reported()
    while (report.reachable !== reachable) {
      await setImmediate()
      report = await reported()
    }
    return report
  }
  assert.equal((await reported()).reachable, null)
  assert.equal((await until(true)).last_error, null)
  await server.close()
  await clock.advance(29_000)
  assert.equal((await reported()).reachable, true)
  await clock.advance(1_000)
  const { last_error, circuit } = await until(false)
  assert.match(last_error ?? '', /ECONNREFUSED/)
  assert.equal(circuit, 'closed', 'what a probe finds keeps no line from the server')
  await using again = await testUpstream(echo, Number(new URL(server.base_url).port))
  await clock.advance(30_000)
  await until(true)
  assert.equal(again.calls.length, 0)
  await upstream.close()
  await store.close()
})
