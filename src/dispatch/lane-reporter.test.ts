import assert from 'node:assert/strict'
import { join } from 'node:path'
import { test } from 'node:test'
import { testClock } from '../../test/fakes/clock.ts'
import { temporaryDisk } from '../blobs/disk/temporary-disk.ts'
import { listLaneReports } from '../store/lane-reports.ts'
import { openSession } from '../store/leases.ts'
import { sqliteStore } from '../store/sqlite/store.ts'
import { LaneReporter } from './lane-reporter.ts'
import { Upstream } from './upstream.ts'

test('a model whose servers ask to wait is throttled since the first time, until a line is answered', async () => {
  await using disk = await temporaryDisk()
  const clock = testClock()
  const store = sqliteStore({ path: join(disk.root, 'db'), leaseNow: clock.now })
  await store.migrate()
  const worker_id = await store.write((tx) => openSession(tx, store.claimSql, 1e6, clock.now()))
  const upstream = new Upstream({
    backend: { name: 'u', send: () => Promise.reject(new Error('nothing is sent')), close: async () => {} },
    concurrency_max: 8,
    model_alias: null,
  })
  const lane = {
    upstreams: [upstream],
    blocked: (now: number) => upstream.blocked(now),
    waiting: 5,
    inFlight: 0,
  }
  const reporter = new LaneReporter({
    store,
    clock,
    worker_id: () => worker_id,
    lanes: () => new Map([['m', lane]]),
  })
  const reported = async () => {
    await reporter.report()
    const reports = await listLaneReports(store.read, store.claimSql)
    return reports.map(({ model, state, since }) => [model, state, since])
  }

  assert.deepEqual(await reported(), [])
  const since = clock.now()
  upstream.pauseUntil(since + 250)
  assert.deepEqual(await reported(), [['m', 'throttled', since]])
  // The pause is over, and the next line has been sent.
  await clock.advance(1_000)
  const sent = upstream.limit.acquire(clock.now())
  assert.deepEqual(await reported(), [['m', 'throttled', since]])
  upstream.limit.onThrottled(sent)
  upstream.pauseUntil(clock.now() + 250)
  assert.deepEqual(await reported(), [['m', 'throttled', since]])
  await clock.advance(1_000)
  upstream.limit.onAnswered(upstream.limit.acquire(clock.now()), clock.now())
  assert.deepEqual(await reported(), [])
  await store.close()
})
