import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ANSWER } from '../../test/fakes/scripted-backend.ts'
import { addLimit, total } from '../../test/support/test-books.ts'
import { DRAIN_MS, workerWorld } from '../../test/support/worker-world.ts'
import { reconcile } from '../admin/reconcile.ts'
import { listLines } from '../audit/list-lines.ts'
import { newId } from '../domain/ids.ts'
import { FREE } from '../domain/money.ts'
import { cancelBatch, cancelLine } from '../lifecycle/batch.ts'
import { LiveServer } from '../servers/live/live-server.ts'
import { moveBatch } from '../store/batches.ts'
import { releaseChunk, wake } from '../store/chunks.ts'
import { amountsByKey } from '../store/ledger.ts'
import { pauseBatch, pauseModel, resumeBatch, resumeModel } from '../store/pauses.ts'
import { changeRemoteBatch, intendRemoteBatch } from '../store/remote-batches.ts'
import { readRow } from '../store/rows.ts'
import { closeSession, openSession, setWorkerReport } from '../store/workers.ts'

test('a worker claims the chunks of a batch, sends their lines and ends the batch', async () => {
  await using world = await workerWorld({ chunks: 2, lines: 2 })
  await world.worker.start()
  await world.until(() => world.server.inFlight.length === 4, 10)
  for (const attempt of [...world.server.inFlight]) await attempt.answer()
  await world.until(() => world.ended.length > 0, 10)
  const { status, completed, cost_nanos } = await world.batch()
  assert.deepEqual([status, completed, cost_nanos], ['completed', 4, 4 * 5_000])
  assert.deepEqual((await reconcile(world)).mismatches, [])
})

test('measurements that fail keep no line from its answer, and no answer from being recorded', async () => {
  const fails = (): never => {
    throw new Error('it cannot be measured')
  }
  const observe = { attempted: fails, retried: fails, committed: fails, recorded: fails }
  await using world = await workerWorld({ chunks: 2, lines: 2, observe })
  await world.worker.start()
  await world.until(() => world.server.inFlight.length === 4, 10)
  for (const attempt of [...world.server.inFlight]) await attempt.answer()
  await world.until(() => world.ended.length > 0, 10)
  const { status, completed } = await world.batch()
  assert.deepEqual([status, completed], ['completed', 4])
})

test('a chunk is left to a running worker that knows its model, and to no other', async () => {
  await using world = await workerWorld({ chunks: 1, lines: 2, model: () => 'n' })
  const { store, clock } = world
  const other = await store.write((tx) => openSession(tx, 20_000, clock.now()))
  const upstream = { model: 'n', upstream: 'n', in_flight: 0, concurrency: 8, concurrency_max: 8 }
  const how = {
    circuit: 'closed',
    lines_per_s: 0,
    latency_ms: null,
    errors_per_s: 0,
    last_error: null,
  } as const
  const report = { open_chunks: 0, stores_failing: false, upstreams: [{ ...upstream, ...how }] }
  await store.write((tx) => setWorkerReport(tx, other, report, clock.now()))
  let parked = 0
  world.afterWrite = async () => {
    const [chunk] = await world.chunks()
    if (chunk?.state === 'parked' && chunk.epoch > parked) parked = chunk.epoch
  }
  await world.worker.start()
  await world.until(() => parked === 1, 10)
  await world.until(() => world.ended.length > 0, 10)
  assert.ok(clock.now() - (await world.batch()).created >= 20_000, 'its session has expired')
  const { status, failed } = await world.batch()
  assert.deepEqual([status, failed], ['completed', 2])
})

test('a worker that shuts down lets lines in flight finish and requeues the others', async () => {
  await using world = await workerWorld({ chunks: 1, lines: 3, concurrency: 1 })
  await world.worker.start()
  await world.until(() => world.server.inFlight.length === 1, 10)
  const stopped = world.stop()
  await world.server.inFlight[0]?.answer()
  await world.until(() => world.hasStopped, 10)
  await stopped
  assert.deepEqual(world.server.sent, ['l1'], 'no further line is sent')
  const [row] = await world.chunks()
  assert.deepEqual([row?.state, row?.completed], ['ready', 1])
})

test('a worker that shuts down aborts lines that are in flight for too long, and requeues them', async () => {
  await using world = await workerWorld({ chunks: 1, lines: 1 })
  await world.worker.start()
  await world.until(() => world.server.inFlight.length === 1, 10)
  const stopped = world.stop()
  await world.clock.advance(DRAIN_MS - 1)
  assert.equal(world.hasStopped, false)
  await world.clock.advance(1)
  await world.until(() => world.hasStopped)
  await stopped
  const [row] = await world.chunks()
  assert.deepEqual([row?.state, row?.completed, row?.failed], ['ready', 0, 0])
})

test('two workers divide a server with live traffic by what the other one reports, and take no line for that traffic', async () => {
  const SEATS = 16
  const live = [1, 2].map(() => new LiveServer({ waiting_max: 0, cache_max: 0.85 }))
  await using world = await workerWorld({ chunks: 8, lines: 20, concurrency: 64, workers: 2, live })
  const { clock, server } = world
  server.backend.readTraffic = async () => {
    const running = Math.min(SEATS, server.inFlight.length)
    return { running, waiting: server.inFlight.length - running, cache: null, tokens: null, steps: null }
  }
  await world.start()
  await world.until(() => server.inFlight.length >= SEATS, 1_000)
  // No line ends, and each worker has read the other's last report.
  await clock.advance(20_000)
  assert.deepEqual(
    live.map(({ share }) => share.partForLines),
    [1, 1],
  )
  const inFlight = live.map((one) => one.inFlight)
  assert.ok(Math.min(...inFlight) >= SEATS / 4, `${inFlight} lines in flight`)
})

test('a worker notices that a batch is cancelled, and sends no further line of it', async () => {
  await using world = await workerWorld({ chunks: 1, lines: 3, concurrency: 1 })
  await world.worker.start()
  await world.until(() => world.server.inFlight.length === 1, 10)
  const { id } = await world.batch()
  await world.store.write((tx) => moveBatch(tx, id, 'cancelling', world.clock.now()))
  await world.until(() => world.worker.lanes.get('m')?.waiting === 0, 10)
  await world.server.inFlight[0]?.answer()
  await world.until(() => world.ended.length > 0, 10)
  assert.deepEqual(world.server.sent, ['l1'])
  const { status, completed, failed } = await world.batch()
  assert.deepEqual([status, completed, failed], ['cancelled', 1, 2])
})

test('lines of a batch that is cancelled just before its window closes say so', async () => {
  for (const isAnsweredThen of [false, true]) {
    await using world = await workerWorld({ chunks: 1, lines: 2, concurrency: 1, windowMs: 2_000 })
    const { store, sealed, clock, server } = world
    const { id, expires_at } = await world.batch()
    // Another line may be sent before the alarm of the window.
    if (isAnsweredThen) clock.after(expires_at - clock.now(), () => void server.inFlight[0]?.answer())
    await world.worker.start()
    await world.until(() => server.inFlight.length === 1, 10)
    await clock.advance(expires_at - 1 - clock.now())
    await store.write((tx) => moveBatch(tx, id, 'cancelling', clock.now()))
    await world.until(() => world.ended.length > 0, 1)
    assert.deepEqual(world.ended, ['cancelled'])
    const ports = { db: store.read, sealed, now: clock.now() }
    const { lines } = await listLines(ports, await world.batch(), { after: 0, limit: 2 })
    assert.deepEqual(
      lines.map(({ error }) => error?.code),
      [isAnsweredThen ? undefined : 'batch_cancelled', 'batch_cancelled'],
    )
  }
})

test('a worker whose lease was taken away drops its chunks, and claims again under a new session', async () => {
  await using world = await workerWorld({ chunks: 1, lines: 1 })
  await world.worker.start()
  await world.until(() => world.server.inFlight.length === 1, 10)
  const [before] = await world.chunks()
  await world.store.write((tx) => closeSession(tx, before!.worker_id!))
  await world.until(() => world.server.sent.length === 2, 10)
  assert.equal(world.server.inFlight.length, 1, 'the first attempt was aborted')
  const [after] = await world.chunks()
  assert.equal(after!.epoch, before!.epoch + 1)
  assert.notEqual(after!.worker_id, before!.worker_id)
  await world.server.inFlight[0]?.answer()
  await world.until(() => world.ended.length > 0, 10)
  const { completed, cost_nanos } = await world.batch()
  assert.deepEqual([completed, cost_nanos], [1, 5_000])
})

test('a worker that cannot reach a server leaves its chunks to a worker that can', async () => {
  await using world = await workerWorld({ chunks: 1, lines: 1, retry: { outage_patience_ms: 3_600_000 } })
  const { store, clock } = world
  await world.worker.start()
  const waitsFor = async (ms: number): Promise<void> => {
    for (let passed = 0; passed < ms; passed += 500) {
      for (const attempt of [...world.server.inFlight]) await attempt.unreachable()
      await clock.advance(500)
    }
  }
  await waitsFor(15_000)
  assert.equal((await world.chunks())[0]?.state, 'leased', 'no other worker runs')
  const command = await store.write((tx) => openSession(tx, 3_600_000, clock.now()))
  const server = {
    upstream: 's',
    in_flight: 0,
    concurrency: 1,
    concurrency_max: 1,
    circuit: 'closed',
  } as const
  const upstreams = [
    { model: 'm', ...server, lines_per_s: 0, latency_ms: null, errors_per_s: 0, last_error: null },
  ]
  const report = { open_chunks: 0, stores_failing: false, upstreams, only_batches: [] }
  await store.write((tx) => setWorkerReport(tx, command, report, clock.now()))
  await waitsFor(15_000)
  assert.equal((await world.chunks())[0]?.state, 'leased', 'the worker of a command answers no other batch')
  await store.write((tx) => openSession(tx, 3_600_000, clock.now()))
  let parked = false
  for (let tries = 0; tries < 100 && !parked; tries++) {
    await waitsFor(500)
    const [row] = await world.chunks()
    parked = row?.state === 'parked' && row.parked_reason === 'model_unavailable'
    assert.ok(Number.isInteger(row?.run_at))
  }
  assert.ok(parked)
})

test('a worker that leaves its chunk to another one has counted what a line cost that is asked again', async () => {
  const reask = { max: 2, mode: 'repeat' } as const
  await using world = await workerWorld({
    chunks: 1,
    lines: 1,
    reask,
    retry: { outage_patience_ms: 3_600_000 },
  })
  const { store, clock, server } = world
  await world.worker.start()
  await world.until(() => server.inFlight.length === 1, 10)
  const message = { role: 'assistant', content: 'cut' }
  await server.inFlight[0]?.respond(200, {
    ...ANSWER,
    choices: [{ index: 0, message, finish_reason: 'length' }],
  })
  await store.write((tx) => openSession(tx, 3_600_000, clock.now()))
  for (let tries = 0; tries < 200 && world.ended.length === 0; tries++) {
    for (const attempt of [...server.inFlight]) await attempt.unreachable()
    await clock.advance(500)
    assert.notEqual((await world.chunks())[0]?.state, 'parked')
  }
  const { status, completed, cost_nanos } = await world.batch()
  assert.deepEqual([status, completed, cost_nanos], ['completed', 1, 5_000])
})

test('a line that was sent before its batch was paused, and then cancelled, does not count as not run', async () => {
  await using world = await workerWorld({ chunks: 1, lines: 2, concurrency: 1 })
  const { store, clock, worker, server, sealed } = world
  await worker.start()
  await world.until(() => server.inFlight.length === 1, 10)
  const { id, project_id } = await world.batch()
  await store.write((tx) => pauseBatch(tx, id, clock.now()))
  await world.until(() => worker.lanes.get('m')?.waiting === 0, 10)
  await server.inFlight[0]?.respond(500, { error: { message: 'a bug' } })
  while ((await world.chunks())[0]?.state !== 'parked') await clock.advance(10)
  await store.write((tx) => cancelBatch(tx, project_id, id, clock.now()))
  worker.wake()
  await world.until(() => world.ended.length > 0, 10)
  const { status, failed, not_run } = await world.batch()
  assert.deepEqual([status, failed, not_run], ['cancelled', 2, 1])
  const ports = { db: store.read, sealed, now: clock.now() }
  const { lines } = await listLines(ports, await world.batch(), { after: 0, limit: 2 })
  assert.deepEqual(
    lines.map(({ attempts }) => attempts),
    [1, 0],
  )
})

test('a worker whose database fails while chunks are open goes on when it answers again', async () => {
  await using world = await workerWorld({ chunks: 1, lines: 1 })
  await world.worker.start()
  await world.until(() => world.server.inFlight.length === 1, 10)
  world.databaseFails = true
  world.worker.wake()
  await world.clock.advance(2_000)
  world.databaseFails = false
  await world.server.inFlight[0]?.answer()
  await world.until(() => world.ended.length > 0, 10)
  assert.deepEqual(world.server.sent, ['l1'])
})

test('a worker that loses its session while it cannot park a chunk goes on when the database answers again', async () => {
  await using world = await workerWorld({ chunks: 1, lines: 2, concurrency: 1 })
  const { store, clock, worker, server } = world
  await worker.start()
  await world.until(() => server.inFlight.length === 1, 10)
  const { id } = await world.batch()
  await store.write((tx) => pauseBatch(tx, id, clock.now()))
  await world.until(() => worker.lanes.get('m')?.waiting === 0, 10)
  let isParking = false
  world.inWrite = async (tx) => {
    const parked = tx.selectFrom('chunks').select('idx').where('state', '=', 'parked')
    if (isParking || (await parked.executeTakeFirst()) === undefined) return
    isParking = true
    world.databaseFails = true
    throw new Error('no connection')
  }
  await server.inFlight[0]?.answer()
  await world.until(() => isParking, 100)
  const [before] = await world.chunks()
  await store.write((tx) => closeSession(tx, before!.worker_id!))
  await store.write((tx) => resumeBatch(tx, id, clock.now()))
  // The session is renewed next, before it is tried again to park the chunk.
  await clock.advance(123_000)
  world.databaseFails = false
  await world.until(() => server.inFlight.length === 1, 100)
  await server.inFlight[0]?.answer()
  await world.until(() => world.ended.length > 0, 100)
  assert.equal((await world.batch()).completed, 2)
})

test('a worker sends no line of a batch that is paused while its chunk is being opened', async () => {
  await using world = await workerWorld({ chunks: 1, lines: 2 })
  const { store, project_id, clock } = world
  await store.write((tx) => addLimit(tx, project_id, { amount: 1_000_000, window: 'day' }))
  const { id } = await world.batch()
  world.afterWrite = async () => {
    if (total(await amountsByKey(store.read, 'reservations', project_id)).tokens > 0)
      world.isPaused = (await store.write((tx) => pauseBatch(tx, id, clock.now()))).paused_at !== null
  }
  await world.worker.start()
  await world.until(() => world.isPaused, 10)
  await clock.advance(5_000)
  assert.deepEqual(world.server.sent, [])
})

test('a line that is cancelled while its chunk is being parked for a pause ends at once', async () => {
  await using world = await workerWorld({ chunks: 1, lines: 2 })
  const { store, project_id, clock } = world
  const { id } = await world.batch()
  // The chunk was claimed before the model was paused.
  await store.write(async (tx) => {
    await pauseModel(tx, { project_id, model: 'm', paused_at: clock.now() })
    await wake(tx).execute()
  })
  let isClaimed = false
  world.afterWrite = async () => {
    if (isClaimed || (await world.chunks())[0]?.state !== 'leased') return
    isClaimed = true
    await store.write((tx) => cancelLine(tx, id, 1))
  }
  await world.worker.start()
  await clock.advance(10_000)
  const [chunk] = await world.chunks()
  assert.deepEqual([chunk?.failed, chunk?.state, world.server.sent], [1, 'parked', []])
})

test('what a batch API has answered is settled though all other lines wait for the limit that it fills', async () => {
  await using world = await workerWorld({ chunks: 1, lines: 2 })
  const { store, project_id, clock } = world
  const [run] = await world.open()
  const { claim } = run!
  const tokens = 1_000
  await store.write((tx) => addLimit(tx, project_id, { amount: tokens }))
  const id = newId('remote', clock.now())
  await store.write(async (tx) => {
    await intendRemoteBatch(tx, claim, {
      ...{ id, model: 'm', upstream: 'gone', created: clock.now(), line_count: 1, day: null },
      lines: [[99, 99]],
      reservation: [[null, 0, tokens, 1]],
      moved: [],
    })
    await changeRemoteBatch(tx, id, 'intended', { state: 'creating' })
    await changeRemoteBatch(tx, id, 'creating', { state: 'open' })
    await changeRemoteBatch(tx, id, 'open', { state: 'ended' })
    await releaseChunk(tx, claim)
  })
  await world.worker.start()
  await world.until(() => world.server.inFlight.length === 2, 100)
  assert.equal((await readRow(store.read, 'remote_batches', { id }))?.state, 'done')
})

test('a chunk that is parked since a model is paused goes on with that model, whatever its row named before', async () => {
  await using world = await workerWorld({ chunks: 1, lines: 2 })
  const { store, project_id, clock, worker, models, upstream, server } = world
  models.set('n', { ...models.get('m')!, id: 'n' })
  worker.setUpstreams(new Map(['m', 'n'].map((model) => [model, [upstream]])), new Map())
  await store.write(async (tx) => {
    // What was left of it named another model before its journals were damaged.
    await tx.updateTable('chunks').set({ model: 'n' }).execute()
    await pauseModel(tx, { project_id, model: 'm', paused_at: clock.now() })
  })
  await worker.start()
  await clock.advance(10_000)
  const [chunk] = await world.chunks()
  assert.deepEqual([chunk?.parked_reason, server.sent.length], ['paused', 0])
  await store.write((tx) => resumeModel(tx, project_id, 'm'))
  await clock.advance(2_000)
  assert.equal(server.sent.length, 2)
})

test('a chunk is closed although the answer is lost to what reverses its damaged journal', async () => {
  await using world = await workerWorld({ chunks: 1, lines: 2, concurrency: 1 })
  const { store, clock } = world
  const { id } = await world.batch()
  await world.worker.start()
  await world.until(() => world.server.inFlight.length === 1, 10)
  await store.write((tx) => pauseBatch(tx, id, clock.now()))
  await clock.advance(5_000)
  await world.server.inFlight[0]?.answer()
  await clock.advance(5_000)
  assert.equal((await world.chunks())[0]?.parked_reason, 'paused')
  const parts = await store.read.selectFrom('journal_parts').selectAll().execute()
  for (const { journal_blob } of parts) await world.blobs.delete(journal_blob)
  let isLost = false
  world.afterWrite = async () => {
    const [chunk] = await world.chunks()
    if (isLost || chunk?.completed !== 0) return
    isLost = true
    throw new Error('the connection broke')
  }
  await store.write((tx) => moveBatch(tx, id, 'cancelling', clock.now()))
  await clock.advance(20_000)
  assert.deepEqual([isLost, world.ended], [true, ['cancelled']])
})

test('a chunk stays open that is claimed again before the worker learns that it was parked', async () => {
  await using world = await workerWorld({ chunks: 1, lines: 2, concurrency: 1 })
  const { store, clock, server, worker } = world
  const { id } = await world.batch()
  const answer = Promise.withResolvers<void>()
  let isParked = false
  world.afterWrite = async () => {
    if (isParked || (await world.chunks())[0]?.parked_reason !== 'paused') return
    isParked = true
    await answer.promise
  }
  await worker.start()
  await world.until(() => server.inFlight.length === 1, 10)
  await store.write((tx) => pauseBatch(tx, id, clock.now()))
  await clock.advance(5_000)
  await server.inFlight[0]?.answer()
  await world.until(() => isParked, 10)
  await store.write((tx) => resumeBatch(tx, id, clock.now()))
  await world.until(() => server.inFlight.length === 1, 10)
  answer.reject(new Error('the connection broke'))
  await clock.advance(1_000)
  assert.equal(worker.status.openChunks, 1)
  await server.inFlight[0]?.answer()
  await world.until(() => world.ended.length > 0, 10)
  assert.deepEqual(server.sent, ['l1', 'l2'])
})

test('lines under a cap are reserved at the price that holds, also when it is raised while their chunk is open', async () => {
  for (const isLimitedBefore of [true, false]) {
    await using world = await workerWorld({ chunks: 1, lines: 20, concurrency: 2 })
    const { models, project_id, server } = world
    const model = models.get('m')!
    models.set('m', { ...model, price: FREE })
    const cap = { scope: 'project', metric: 'cost_usd', amount: 60_000 } as const
    const addCap = () => world.store.write((tx) => addLimit(tx, project_id, cap))
    if (isLimitedBefore) await addCap()
    await world.worker.start()
    await world.until(() => server.inFlight.length === 2, 10)
    models.set('m', model)
    world.worker.setUpstreams(new Map([['m', [world.upstream]]]), new Map())
    if (!isLimitedBefore) {
      await addCap()
      await world.clock.advance(1_000)
    }
    while (world.ended.length === 0) {
      for (const attempt of [...server.inFlight]) await attempt.answer()
      await world.clock.advance(100)
    }
    const { status, completed, failed, cost_nanos } = await world.batch()
    assert.equal(status, 'completed')
    assert.ok(cost_nanos <= cap.amount, `${cost_nanos} were spent`)
    assert.ok(completed > 2 && failed > 0, `${completed} lines were sent`)
    assert.equal(cost_nanos, completed * 5_000)
    assert.deepEqual((await reconcile(world)).mismatches, [])
    const reserved = total(await amountsByKey(world.store.read, 'reservations', project_id))
    assert.deepEqual({ ...reserved }, { cost_nanos: 0, tokens: 0, requests: 0 })
  }
})

test('a line whose reservation was released counts as no request when its batch is cancelled', async () => {
  await using world = await workerWorld({ chunks: 1, lines: 1 })
  const { store, project_id, clock } = world
  const { id } = await world.batch()
  const failed = { failures: 1, throttles: 0, contacts: 1, own: 1, delay: 1, outage: 0, firstFailureAt: null }
  await store.write(async (tx) => {
    await tx
      .updateTable('chunks')
      .set({ line_tries: JSON.stringify([[1, failed]]) })
      .execute()
    await addLimit(tx, project_id, { scope: 'project', metric: 'requests', amount: 1 })
    await moveBatch(tx, id, 'cancelling', clock.now())
  })
  await world.worker.start()
  await world.until(() => world.ended.length > 0, 10)
  const { not_run, requests } = await store.read
    .selectFrom('usage_days')
    .selectAll()
    .executeTakeFirstOrThrow()
  assert.deepEqual([not_run, requests], [0, 0])
})

for (const workers of [1, 2])
  test(`lines that are due sooner overtake any number of the same entity, with ${workers} workers`, async () => {
    const late = { chunks: 12, lines: 1_000, content: () => 'late' }
    await using world = await workerWorld({ ...late, concurrency: 2, workers, memoryBytes: 1e9 })
    const { server, clock } = world
    await world.start()
    await world.until(() => server.inFlight.length === 2 * workers, 10)
    await clock.advance(2_000)
    await world.add({ chunks: 1, lines: 40, content: () => 'soon', windowMs: 60_000 })
    await clock.advance(1_000)
    // One of two workers has them.
    for (let answered = 0; answered < 50 * workers; answered++) {
      await world.until(() => server.inFlight.length > 0, 1)
      await server.inFlight[0]!.answer()
    }
    assert.ok(server.sent.filter((text) => text === 'soon').length >= 40, String(server.sent))
  })

test('a chunk that is due sooner takes the place of one that is due later where all are taken', async () => {
  await using world = await workerWorld({ chunks: 100, lines: 1, content: () => 'late', concurrency: 1 })
  const { server, clock } = world
  await world.worker.start()
  await world.until(() => server.inFlight.length === 1, 10)
  await clock.advance(2_000)
  for (let i = 0; i < 20; i++) {
    await world.add({ chunks: 1, lines: 1, content: () => `soon ${i}`, windowMs: 3_600_000 - i * 10_000 })
    await clock.advance(1_000)
  }
  await clock.advance(10_000)
  const chunks = await world.chunks()
  const leased = chunks.filter(({ state }) => state === 'leased')
  assert.equal(leased.length, 80)
  assert.equal(new Set(leased.map(({ batch_id }) => batch_id)).size, 21)
  for (let i = 0; i < 21; i++) {
    await world.until(() => server.inFlight.length > 0, 1)
    await server.inFlight[0]!.answer()
  }
  assert.deepEqual(
    server.sent.slice(1, 21),
    Array.from({ length: 20 }, (_, i) => `soon ${19 - i}`),
  )
})

test('lines of a batch that expires say what they waited for, and so does the batch', async () => {
  const patience = { outage_patience_ms: 3_600_000 }
  await using world = await workerWorld({ chunks: 2, lines: 2, windowMs: 30_000, retry: patience })
  const { store, sealed, clock, server } = world
  await world.worker.start()
  while (world.ended.length === 0) {
    for (const attempt of [...server.inFlight]) await attempt.unreachable()
    await clock.advance(100)
  }
  const batch = await world.batch()
  const ports = { db: store.read, sealed, now: clock.now() }
  const { lines } = await listLines(ports, batch, { after: 0, limit: 4 })
  const expected =
    'The completion window ended before the line was finished. Until then: No server of the model m answers: connection reset'
  const messages = lines.map(({ error }) => error?.message)
  assert.equal(batch.status, 'expired')
  assert.deepEqual(messages, Array(4).fill(expected))
  assert.deepEqual(JSON.parse(batch.errors ?? '')[0], {
    code: 'batch_expired',
    message: expected,
    param: null,
    line: null,
  })
})

test('lines that were parked when their window ended say so', async () => {
  await using world = await workerWorld({ chunks: 1, lines: 1, windowMs: 5_000 })
  const { store, sealed, clock } = world
  const { id } = await world.batch()
  await store.write((tx) => pauseBatch(tx, id, clock.now()))
  await world.worker.start()
  await world.until(() => world.ended.length > 0, 100)
  const { lines } = await listLines({ db: store.read, sealed, now: clock.now() }, await world.batch(), {
    after: 0,
    limit: 1,
  })
  assert.match(lines[0]?.error?.message ?? '', / Until then: It is paused; /)
})
