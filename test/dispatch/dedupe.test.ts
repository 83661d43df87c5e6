// Identical requests of a batch that are sent once: whole service, real HTTP.
import assert from 'node:assert/strict'
import { type TestContext, test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { ResponseMemory } from '../../src/backends/response-memory.ts'
import { noTries } from '../../src/dispatch/gates/retries.ts'
import { Run } from '../../src/dispatch/run.ts'
import { deletePendingBlobs } from '../../src/maintenance/maintenance.ts'
import { EarlierAnswers } from '../../src/results/earlier-answers.ts'
import { readRow, updateRows } from '../../src/store/rows.ts'
import { testClock } from '../fakes/clock.ts'
import { type Call, echo, send, type TestUpstream, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService, type WireLine } from '../service.ts'

async function start(t: TestContext): Promise<{ service: TestService; upstream: TestUpstream }> {
  const upstream = await testUpstream()
  const service = await TestService.start(configFor(upstream.base_url))
  t.after(async () => {
    await service[Symbol.asyncDispose]()
    await upstream.close()
  })
  return { service, upstream }
}

type SharedLine = WireLine & { shared_from?: { id: string; custom_id: string } }

async function linesOf(service: TestService, file_id: string | null): Promise<SharedLine[]> {
  return await service.lines(file_id)
}

const repeatable = (id: string, content: string) => line(id, content, { temperature: 0 })

test('identical requests are sent once, each line has its result, and only one costs anything', async (t) => {
  const { service, upstream } = await start(t)
  const contents = ['x', 'y', 'x', 'x', 'y', 'z']
  const lines = contents.map((content, i) => repeatable(`line-${i}`, content))
  const batch = await service.run(lines, { dedupe: true })
  assert.equal(batch.dedupe, true)
  assert.deepEqual(batch.request_counts, { total: 6, completed: 6, failed: 0 })
  assert.equal(upstream.calls.length, 3)
  const { saved_usd } = Object(batch.dedupe_counts)
  assert.deepEqual(batch.dedupe_counts, { shared: 3, saved_usd, unshared: 0 })
  const results = await linesOf(service, batch.output_file_id)
  assert.deepEqual(
    results.map(({ custom_id, response }) => [custom_id, response?.body.choices[0]?.message.content]),
    contents.map((content, i) => [`line-${i}`, content]),
  )
  const costs = results.map(({ response }) => response?.body.usage.cost_usd ?? -1)
  assert.equal(costs.filter((cost) => cost > 0).length, 3)
  assert.ok(Math.abs(costs.reduce((sum, cost) => sum + cost, 0) - batch.cost_usd) < 1e-12)
  for (const { response, shared_from } of results) {
    assert.equal(shared_from === undefined, (response?.body.usage.cost_usd ?? 0) > 0)
    if (shared_from === undefined) continue
    const source = results.find(({ id }) => id === shared_from.id)
    assert.equal(source?.custom_id, shared_from.custom_id)
    assert.equal(source?.shared_from, undefined)
    assert.equal(response?.body.usage.total_tokens, 0)
  }
  const costOf = new Map(results.map(({ custom_id, response }) => [custom_id, response?.body.usage.cost_usd]))
  const saved = results.map(({ shared_from }) => costOf.get(shared_from?.custom_id ?? '') ?? 0)
  assert.ok(Math.abs(saved.reduce((sum, cost) => sum + cost, 0) - saved_usd) < 1e-12)
  const shared = results.find(({ shared_from }) => shared_from !== undefined)
  const record = await service.json<Record<string, unknown>>('GET', `/v1/requests/${shared?.id}`)
  assert.deepEqual(record.shared_from, shared?.shared_from)
  assert.deepEqual([record.attempts, record.cost_usd], [[], 0])
})

test('requests whose answers may differ are all sent, unless that is forced', async (t) => {
  const { service, upstream } = await start(t)
  const lines = ['a', 'b', 'c'].map((id) => line(id, 'same', { temperature: 0.7 }))
  const apart = await service.run(lines, { dedupe: true })
  assert.deepEqual(apart.dedupe_counts, { shared: 0, saved_usd: 0, unshared: 2 })
  assert.equal(upstream.calls.length, 3)
  const batch = await service.run(lines, { dedupe: 'force' })
  assert.equal(batch.dedupe, 'force')
  assert.partialDeepStrictEqual(batch.dedupe_counts, { shared: 2, unshared: 0 })
  assert.equal(upstream.calls.length, 4)
  const seeded = ['a', 'b', 'c'].map((id) => line(id, 'same', { seed: 7 }))
  assert.equal('dedupe' in (await service.run(seeded)), false)
  assert.equal(upstream.calls.length, 7)
  await service.run(seeded, { dedupe: true })
  assert.equal(upstream.calls.length, 8)
  const refused = await service.request('POST', '/v1/batches', {
    input_file_id: batch.input_file_id,
    endpoint: '/v1/chat/completions',
    completion_window: '24h',
    dedupe: 'all',
  })
  assert.equal(refused.status, 400)
})

test('a batch that is retried has the same dedupe', async (t) => {
  const { service, upstream } = await start(t)
  upstream.reply = ({ response }) => send(response, 400, '{"error":{"message":"no"}}')
  const lines = ['a', 'b'].map((id) => line(id, 'same', { temperature: 1 }))
  const failed = await service.run(lines, { dedupe: 'force' })
  upstream.reply = echo
  const sent = upstream.calls.length
  const made = await service.json<{ id: string; dedupe: unknown }>('POST', `/v1/batches/${failed.id}/retry`)
  assert.equal(made.dedupe, 'force')
  assert.equal((await service.ended(made.id)).request_counts.completed, 2)
  assert.equal(upstream.calls.length, sent + 1)
})

test('lines of several chunks share one answer', async (t) => {
  const { service, upstream } = await start(t)
  const lines = Array.from({ length: 1_100 }, (_, i) => repeatable(`line-${i}`, `prompt ${i % 5}`))
  const batch = await service.run(lines, { dedupe: true })
  assert.equal(batch.request_counts.completed, 1_100)
  assert.equal(upstream.calls.length, 5)
})

test('an identical request shares the error of the one that was refused', async (t) => {
  const { service, upstream } = await start(t)
  upstream.reply = (call) => {
    if (call.body.messages[0]?.content === 'bad') send(call.response, 400, '{"error":{"message":"no"}}')
    else echo(call)
  }
  const lines = ['bad', 'good', 'bad', 'bad'].map((content, i) => repeatable(`line-${i}`, content))
  const batch = await service.run(lines, { dedupe: true })
  assert.deepEqual(batch.request_counts, { total: 4, completed: 1, failed: 3 })
  assert.equal(upstream.calls.length, 2)
  const errors = await linesOf(service, batch.error_file_id)
  assert.deepEqual(
    errors.map(({ error, shared_from }) => [error?.code, shared_from?.custom_id]).sort(),
    [
      ['upstream_rejected', undefined],
      ['upstream_rejected', errors.find(({ shared_from }) => !shared_from)?.custom_id],
      ['upstream_rejected', errors.find(({ shared_from }) => !shared_from)?.custom_id],
    ].sort(),
  )
})

test('a cancel ends the lines that wait for an identical one', async (t) => {
  const { service, upstream } = await start(t)
  let answer: (() => void) | null = null
  upstream.reply = (call) => {
    answer = () => echo(call)
  }
  const file = await service.upload(
    Array.from({ length: 4 }, (_, i) => JSON.stringify(repeatable(`line-${i}`, 'x'))).join('\n'),
  )
  const { id } = await service.create(file.id, { dedupe: true })
  await upstream.arrived(1)
  await service.json('POST', `/v1/batches/${id}/cancel`)
  service.worker.wake()
  await service.eventually(async () => ((await service.get(id)).status === 'cancelling' ? true : undefined))
  answer!()
  const batch = await service.ended(id)
  assert.equal(batch.status, 'cancelled')
  assert.equal(batch.request_counts.completed + batch.request_counts.failed, 4)
  assert.equal(upstream.calls.length, 1)
})

test('a worker that takes over runs what was not finished', async (t) => {
  const { service, upstream } = await start(t)
  upstream.reply = () => {}
  const lines = Array.from({ length: 4 }, (_, i) => JSON.stringify(repeatable(`line-${i}`, 'x')))
  const file = await service.upload(lines.join('\n'))
  const { id } = await service.create(file.id, { dedupe: true })
  await upstream.arrived(1)
  const stopped = service.worker.stop()
  upstream.reply = echo
  for (const call of upstream.calls) call.response.destroy()
  await stopped
  await service.restartWorker()
  const batch = await service.ended(id)
  assert.equal(batch.request_counts.completed, 4)
  assert.equal(upstream.calls.length, 2)
})

test('under a limit that leaves room for few, lines that share an answer are not in the way', async (t) => {
  const { service, upstream } = await start(t)
  await service.json('POST', '/v1/limits', {
    scope: 'project',
    metric: 'tokens',
    window: 'day',
    amount: 100_000,
    action: 'block',
  })
  const lines = Array.from({ length: 20 }, (_, i) =>
    line(`line-${i}`, `prompt ${i % 2}`, { temperature: 0, max_tokens: 100 }),
  )
  const batch = await service.run(lines, { dedupe: true })
  assert.equal(batch.request_counts.completed, 20)
  assert.equal(upstream.calls.length, 2)
})

/** Lets a chunk be claimed, of a batch that is to start later. */
async function releaseChunk(service: TestService, batch_id: string, idx: number): Promise<void> {
  await service.stores.store.write((tx) =>
    tx
      .updateTable('chunks')
      .set({ state: 'ready', run_at: 0 })
      .where('batch_id', '=', batch_id)
      .where('idx', '=', idx)
      .execute(),
  )
  service.worker.wake()
}

/** A batch whose first chunk has 1,000 lines, and its second one the rest; neither may be claimed yet. */
async function parkedBatch(service: TestService, first: string[], second: string[]): Promise<string> {
  const filler = Array.from({ length: 1000 - first.length }, () => first[0]!)
  const lines = [...filler, ...first, ...second].map((content, i) =>
    JSON.stringify(repeatable(`line-${i + 1}`, content)),
  )
  const file = await service.upload(lines.join('\n'))
  const start_after = Math.floor(Date.now() / 1000) + 3600
  const { id } = await service.create(file.id, { dedupe: true, start_after })
  await service.eventually(async () => ((await service.get(id)).status === 'queued' ? true : undefined))
  return id
}

/** Resolves when so many lines have ended. */
async function finished(service: TestService, id: string, lines: number): Promise<void> {
  for (;;) {
    const { completed, failed } = (await service.get(id)).request_counts
    if (completed + failed === lines) return
  }
}

const sent = (upstream: TestUpstream, content: string): number =>
  upstream.calls.filter(({ body }) => body.messages[0]?.content === content).length

test('a worker that was restarted finds the answers of identical lines in their results', async (t) => {
  const { service, upstream } = await start(t)
  upstream.reply = (call) => {
    if (call.body.messages[0]?.content === 'bad') send(call.response, 400, '{"error":{"message":"no"}}')
    else echo(call)
  }
  const id = await parkedBatch(service, ['x', 'y', 'bad'], ['y', 'x', 'bad', 'z', 'x'])
  await releaseChunk(service, id, 0)
  await finished(service, id, 1000)
  await service.worker.stop()
  // An attempt of a line before its chunk was parked.
  const line_tries = JSON.stringify([[1001, { ...noTries(), failures: 1 }]])
  const second = { batch_id: id, idx: 1 }
  await service.stores.store.write((tx) => updateRows(tx, 'chunks', second).set({ line_tries }).execute())
  await service.restartWorker()
  await releaseChunk(service, id, 1)
  const batch = await service.ended(id)
  assert.deepEqual(batch.request_counts, { total: 1005, completed: 1003, failed: 2 })
  // An error is no answer: its request is tried again.
  assert.deepEqual(
    ['x', 'y', 'z', 'bad'].map((content) => sent(upstream, content)),
    [1, 1, 1, 2],
  )
  const results = (await linesOf(service, batch.output_file_id)).slice(-4)
  assert.deepEqual(
    results.map(({ custom_id, shared_from, response }) => [
      custom_id,
      response?.body.choices[0]?.message.content,
      shared_from === undefined ? 'sent' : 'shared',
      response?.body.usage.total_tokens === 0,
    ]),
    [
      ['line-1001', 'y', 'shared', true],
      ['line-1002', 'x', 'shared', true],
      ['line-1004', 'z', 'sent', false],
      ['line-1005', 'x', 'shared', true],
    ],
  )
  const [shared] = results
  const record = await service.json<Record<string, unknown>>('GET', `/v1/requests/${shared?.id}`)
  assert.deepEqual([record.shared_from, record.attempts, record.cost_usd], [shared?.shared_from, [], 0])
  const all = await linesOf(service, batch.output_file_id)
  const source = all.find(({ id: line }) => line === shared?.shared_from?.id)
  assert.deepEqual([source?.custom_id, source?.shared_from], [shared?.shared_from?.custom_id, undefined])
})

test('an answer is found in the sealed chunk if its journal is deleted before it is read', async (t) => {
  const { service, upstream } = await start(t)
  const slow = Promise.withResolvers<Call>()
  upstream.reply = (call) => {
    if (call.body.messages[0]?.content === 'slow') slow.resolve(call)
    else echo(call)
  }
  const id = await parkedBatch(service, ['x', 'slow'], ['x'])
  await releaseChunk(service, id, 0)
  await finished(service, id, 999)
  const { store, sealed } = service.stores
  const [claim, batch] = [
    await readRow(store.read, 'chunks', { batch_id: id, idx: 1 }),
    await readRow(store.read, 'batches', { id }),
  ]
  assert.ok(claim && batch)
  const read: string[] = []
  const warnings: object[] = []
  const earlier = new EarlierAnswers({
    answers: new ResponseMemory(1_000_000),
    store,
    sealed: {
      put: (...args) => sealed.put(...args),
      read: (...args) => sealed.read(...args),
      delete: (key) => sealed.delete(key),
      async readAll(project_id, blob, range) {
        // The index of a journal is read to its end, an answer is not.
        if (range?.end !== blob.bytes) read.push(blob.key.split('/')[0]!)
        if (read.length === 1 && range?.end !== blob.bytes) {
          echo(await slow.promise)
          await finished(service, id, 1000)
          await service.worker.stop()
          await deletePendingBlobs(store, sealed)
        }
        return await sealed.readAll(project_id, blob, range)
      },
    },
    clock: store.clock,
    log: { info() {}, error() {}, warn: (fields) => void warnings.push(fields) },
    session: { id: 'another' },
    runs: new Map(),
  })
  const found = await earlier.find(new Run(claim, batch, [], Buffer.alloc(0)), 0, t.signal)
  assert.deepEqual([found?.from.custom_id_json, warnings], ['"line-1"', []])
  assert.equal(read.length, 2)
  assert.equal(read[0], 'journals')
  assert.notEqual(read[1], 'journals')
})

test('a line that waits for an identical one gets its answer although the system clock is set back', async (t) => {
  const { service, upstream } = await start(t)
  const slow = Promise.withResolvers<() => void>()
  upstream.reply = (call) => {
    if (call.body.messages[0]?.content === 'slow') slow.resolve(() => echo(call))
    else echo(call)
  }
  const id = await parkedBatch(service, ['x', 'slow'], ['slow'])
  await releaseChunk(service, id, 0)
  await finished(service, id, 999)
  const { store, sealed } = service.stores
  const [claim, batch] = [
    await readRow(store.read, 'chunks', { batch_id: id, idx: 1 }),
    await readRow(store.read, 'batches', { id }),
  ]
  assert.ok(claim && batch)
  const clock = testClock()
  let backMs = 0
  const earlier = new EarlierAnswers({
    ...{ answers: new ResponseMemory(1_000_000), store, sealed, session: { id: 'another' }, runs: new Map() },
    clock: { ...clock, now: () => clock.now() - backMs },
    log: { info() {}, error() {}, warn() {} },
  })
  const found = earlier.find(new Run(claim, batch, [], Buffer.alloc(0)), 0, t.signal)
  while (clock.waiting === 0) await setImmediate()
  backMs = 3_600_000
  const answer = await slow.promise
  answer()
  await finished(service, id, 1000)
  await clock.advance(500)
  assert.equal((await found)?.from.custom_id_json, '"line-1000"')
})

test('two workers send a request once: one waits for the answer that the other one gets', async (t) => {
  const { service, upstream } = await start(t)
  const slow = Promise.withResolvers<() => void>()
  upstream.reply = (call) => {
    if (call.body.messages[0]?.content === 'slow') slow.resolve(() => echo(call))
    else echo(call)
  }
  const id = await parkedBatch(service, ['x', 'slow'], ['slow', 'x', 'y', 'slow'])
  await releaseChunk(service, id, 0)
  await finished(service, id, 999)
  const answer = await slow.promise
  const other = await service.addWorker()
  try {
    // The first one takes no more: the second chunk is the other worker's.
    const stopped = service.worker.stop()
    await releaseChunk(service, id, 1)
    other.wake()
    await finished(service, id, 1001)
    assert.deepEqual(
      ['x', 'y', 'slow'].map((content) => sent(upstream, content)),
      [1, 1, 1],
    )
    answer()
    await stopped
    const batch = await service.ended(id)
    assert.deepEqual(batch.request_counts, { total: 1004, completed: 1004, failed: 0 })
    assert.deepEqual(
      ['x', 'y', 'slow'].map((content) => sent(upstream, content)),
      [1, 1, 1],
    )
  } finally {
    await other.stop()
  }
})
