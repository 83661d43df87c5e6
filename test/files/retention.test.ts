// Files end, by retention or by hand; what was done with them stays on record.
import assert from 'node:assert/strict'
import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import type { Clock } from '../../src/domain/clock.ts'
import { DAY_MS } from '../../src/domain/days.ts'
import { removeExpiredFile } from '../../src/lifecycle/remove-file.ts'
import { runMaintenance } from '../../src/maintenance/maintenance.ts'
import { type Call, echo, type TestUpstream, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService, type WireBatch, type WireFile } from '../service.ts'

const LINES = [line('a', 'the question'), line('b', 'b', { model: 'none' })]

interface Ended {
  upstream: TestUpstream
  service: TestService
  batch: WireBatch
  /** IDs of input, output and error file. */
  files: string[]
  /** The request IDs of both lines. */
  line_ids: string[]
}

/** A batch with both files; the worker has stopped, so that nothing happens but what the test does. */
async function endedBatch(): Promise<Ended> {
  const upstream = await testUpstream()
  const service = await TestService.start(
    configFor(upstream.base_url, 'plans: {payg: {completion_windows: [24h], file_retention: 2d}}'),
  )
  const batch = await service.run(LINES, { metadata: { entity: 'user:1' } })
  await service.worker.stop()
  const files = [batch.input_file_id, String(batch.output_file_id), String(batch.error_file_id)]
  const done = [...(await service.lines(files[1]!)), ...(await service.lines(files[2]!))]
  return { upstream, service, batch, files, line_ids: done.map(({ id }) => id) }
}

async function close({ service, upstream }: Ended): Promise<void> {
  await service[Symbol.asyncDispose]()
  await upstream.close()
}

function at(now: number): Clock {
  return { now: () => now, steady: () => now, after: () => () => {}, soon() {} }
}

/** What lies in the folder of blobs; audit records belong to no file and stay. */
async function onDisk({ config }: TestService): Promise<string[]> {
  assert.ok(config.blobs.kind === 'disk')
  const entries = await readdir(config.blobs.root, { recursive: true, withFileTypes: true })
  const names = entries
    .filter((entry) => entry.isFile())
    .map(({ parentPath, name }) => join(parentPath, name))
  return names.filter((name) => !name.endsWith('-audit')).sort()
}

async function assertGone({ service, files }: Ended): Promise<void> {
  for (const id of files) {
    for (const path of [`/v1/files/${id}`, `/v1/files/${id}/content`]) {
      const response = await service.request('GET', path)
      assert.equal(response.status, 404, path)
      await response.text()
    }
  }
  assert.deepEqual((await service.json<{ data: unknown[] }>('GET', '/v1/files')).data, [])
}

/** The batch and its lines as they were, but for the answers. */
async function assertOnRecord({ service, batch, line_ids }: Ended): Promise<void> {
  assert.deepEqual(await service.get(batch.id), batch)
  const [done, failed] = await Promise.all(
    line_ids.map((id) => service.json<Record<string, unknown>>('GET', `/v1/requests/${id}`)),
  )
  assert.deepEqual(
    [done?.custom_id, done?.entity, done?.error, done?.response, done?.cost_usd],
    ['a', 'user:1', null, null, batch.cost_usd],
  )
  assert.ok(Array.isArray(done?.attempts) && done.attempts.length === 1)
  assert.equal(failed?.custom_id, 'b')
  assert.match(JSON.stringify(failed?.error), /model_not_found/)
}

test('files end by themselves when their retention is over: content, not records', async (t) => {
  const ended = await endedBatch()
  t.after(() => close(ended))
  const { service, files } = ended
  const deps = { store: service.stores.store, sealed: service.stores.sealed }
  // A journal of the batch may still be pending deletion.
  await runMaintenance({ ...deps, clock: at(Date.now()) })
  const before = await onDisk(service)
  assert.ok(before.length >= 3)
  const expiries = await Promise.all(
    files.map(async (id) => {
      const { created, expires_at } = await service.json<WireFile>('GET', `/v1/files/${id}`)
      assert.equal(Number(expires_at) - Number(created), 2 * 86_400)
      return expires_at
    }),
  )
  const end = Math.max(...expiries.map(Number)) * 1000

  await runMaintenance({ ...deps, clock: at(Number(expiries[0]) * 1000 - 1) })
  assert.deepEqual(await onDisk(service), before)

  await runMaintenance({ ...deps, clock: at(end + 1000) })
  assert.deepEqual(await onDisk(service), [])
  await assertGone(ended)
  await assertOnRecord(ended)
})

test('a file is gone for its users when it expires, whether or not maintenance has run', async (t) => {
  const ended = await endedBatch()
  t.after(() => close(ended))
  const { service, batch, files, line_ids } = ended
  const { store } = service.stores
  const before = await onDisk(service)
  await store.write((tx) => tx.updateTable('files').set({ expires_at: Date.now() }).execute())

  await assertGone(ended)
  await assertOnRecord(ended)
  const outcome = async (method: string, path: string, body?: object): Promise<string> => {
    const response = await service.request(method, path, body)
    const text = await response.text()
    return response.ok ? text : `${response.status} ${JSON.parse(text).error.code}`
  }
  const [input = ''] = files
  for (const id of files) {
    assert.equal(await outcome('DELETE', `/v1/files/${id}`), '404 file_not_found')
    assert.equal(await outcome('GET', `/v1/files?starting_after=${id}`), '404 cursor_not_found')
  }
  const order = { input_file_id: input, endpoint: '/v1/chat/completions', completion_window: '24h' }
  assert.equal(await outcome('POST', '/v1/batches', order), '404 file_not_found')
  assert.equal(await outcome('POST', '/v1/batches?dry_run=true', order), '404 file_not_found')
  assert.equal(await outcome('POST', `/v1/batches/${batch.id}/retry`), '422 batch_not_retryable')
  const results = `/v1/batches/${batch.id}/results`
  assert.equal(await outcome('GET', results), '')
  assert.match(await outcome('GET', `${results}?format=csv`), /^custom_id,[^\n]*\n$/)
  for (const line of [1, 2]) {
    const shown = JSON.parse(await outcome('GET', `/v1/batches/${batch.id}/lines/${line}`))
    assert.deepEqual([shown.id, shown.input, shown.result], [line_ids[line - 1], null, null])
  }
  assert.deepEqual(await onDisk(service), before, 'the space is freed by maintenance')
})

/** A batch of three lines and a server that answers nothing yet, with a place for one line. */
async function openBatch(order: object = {}) {
  const held: Call[] = []
  const upstream = await testUpstream((call) => void held.push(call))
  const service = await TestService.start(`
models: [{id: m, upstreams: [{type: openai, base_url: "${upstream.base_url}", concurrency_max: 1}]}]
worker: {flush_interval: 20ms, lease: 2s}`)
  const { store, sealed } = service.stores
  const file = await service.upload(['a', 'b', 'c'].map((id) => line(id)))
  const batch = await service.create(file.id, order)
  return {
    service,
    file,
    batch,
    upstream,
    async codes(): Promise<(string | undefined)[]> {
      const { error_file_id } = await service.ended(batch.id)
      return (await service.lines(error_file_id)).map(({ error }) => error?.code)
    },
    /** The file's own time is over. */
    async expire(): Promise<void> {
      await store.write((tx) =>
        tx.updateTable('files').set({ expires_at: Date.now() }).where('id', '=', file.id).execute(),
      )
      await maintain()
    },
    maintain,
    answer(): void {
      upstream.reply = echo
      for (const call of held) echo(call)
    },
    async [Symbol.asyncDispose]() {
      await service[Symbol.asyncDispose]()
      await upstream.close()
    },
  }
  async function maintain(): Promise<void> {
    await runMaintenance({ store, sealed, clock: at(Date.now()) })
  }
}

test('a batch runs to its end though its input expires, and then the input is gone', async () => {
  await using world = await openBatch()
  const { service, file, batch, upstream } = world
  await upstream.arrived(1)
  await world.expire()
  const files = (await service.json<{ data: WireFile[] }>('GET', '/v1/files')).data
  assert.deepEqual(
    files.map(({ id }) => id),
    [file.id],
    'its owner sees that it is still there',
  )
  world.answer()
  const { request_counts } = await service.ended(batch.id)
  assert.deepEqual(request_counts, { total: 3, completed: 3, failed: 0 })
  assert.equal((await service.request('GET', `/v1/files/${file.id}`)).status, 404)
  await world.maintain()
  assert.deepEqual(
    (await onDisk(service)).filter((path) => path.includes(file.id)),
    [],
  )
})

for (const [waits, order] of [
  ['is paused', {}],
  ['waits for its start', { start_after: Math.floor(Date.now() / 1000) + 3600 }],
] as const)
  test(`a batch that ${waits} keeps its input past the expiry of the file`, async () => {
    await using world = await openBatch(order)
    const { service, batch } = world
    await service.json('POST', `/v1/batches/${batch.id}/pause`)
    await world.expire()
    assert.equal(
      (await service.json<{ data: object[] }>('GET', `/v1/batches/${batch.id}/lines`)).data.length,
      3,
    )
    await service.json('POST', `/v1/batches/${batch.id}/cancel`)
    world.answer()
    for (const code of await world.codes()) assert.equal(code, 'batch_cancelled')
  })

test('a deletion takes the lines of an input that has expired', async () => {
  await using world = await openBatch()
  const { service, file, upstream } = world
  await upstream.arrived(1)
  await world.expire()
  assert.equal((await service.request('DELETE', `/v1/files/${file.id}`)).status, 200)
  world.answer()
  assert.deepEqual(await world.codes(), ['input_file_deleted', 'input_file_deleted'])
})

test('maintenance spares an expired file of which a batch was made since it looked', async () => {
  await using world = await openBatch()
  const { service, file, batch } = world
  await service.stores.store.write((tx) => removeExpiredFile(tx, file.id, Date.now()))
  world.answer()
  assert.equal((await service.ended(batch.id)).request_counts.completed, 3)
})

test('a file that is deleted is gone at once, its key destroyed before its bytes', async (t) => {
  const ended = await endedBatch()
  t.after(() => close(ended))
  const { service, files } = ended
  for (const id of files) {
    const answer = await service.json<object>('DELETE', `/v1/files/${id}`)
    assert.deepEqual(answer, { id, object: 'file', deleted: true })
    assert.equal((await service.request('DELETE', `/v1/files/${id}`)).status, 404)
  }
  await assertGone(ended)
  const { store, sealed } = service.stores
  const rows = await store.read.selectFrom('blobs').selectAll().execute()
  for (const { key, deletion_pending_since, wrapped_key } of rows)
    if (!key.endsWith('-audit')) assert.ok(deletion_pending_since !== null && wrapped_key === '', key)
  await runMaintenance({ store, sealed, clock: at(Date.now()) })
  assert.deepEqual(await onDisk(service), [])
  await assertOnRecord(ended)
})

test('a worker removes the bytes without being asked', async (t) => {
  const ended = await endedBatch()
  t.after(() => close(ended))
  const { service, files } = ended
  await service.restartWorker()
  for (const id of files) await service.json('DELETE', `/v1/files/${id}`)
  const { store } = service.stores
  const left = async (): Promise<number> =>
    (
      await store.read
        .selectFrom('blobs')
        .select('key')
        .where('deletion_pending_since', 'is not', null)
        .execute()
    ).length
  // The database is asked again each time the event loop comes round: there is no event to wait for.
  while ((await left()) > 0) await new Promise((resolve) => setImmediate(resolve))
  assert.deepEqual(await onDisk(service), [])
})

test('answers to idempotency keys are deleted once they have expired', async (t) => {
  const ended = await endedBatch()
  t.after(() => close(ended))
  const { service } = ended
  const { store } = service.stores
  const batch = { input_file_id: ended.files[0], endpoint: '/v1/chat/completions', completion_window: '24h' }
  for (const key of ['expired', 'kept'])
    await service.request('POST', '/v1/batches', batch, { 'idempotency-key': key })
  await store.write(async (tx) => {
    await tx.updateTable('idempotency_keys').set({ expires: 1 }).where('key', '=', 'expired').execute()
    // The hourly sweep is due.
    await tx.deleteFrom('database_properties').where('name', '=', 'swept_at').execute()
  })
  await service.restartWorker()
  const left = async (): Promise<string[]> =>
    (await store.read.selectFrom('idempotency_keys').select('key').execute()).map((row) => row.key)
  while ((await left()).includes('expired')) await new Promise((resolve) => setImmediate(resolve))
  assert.ok((await left()).includes('kept'))
})

test('a service of one command deletes no event that the service of its stores keeps', async (t) => {
  const ended = await endedBatch()
  t.after(() => close(ended))
  const { service, batch } = ended
  const { store } = service.stores
  const project_id = (await store.read.selectFrom('projects').select('id').executeTakeFirstOrThrow()).id
  const audit_ms = 400 * DAY_MS
  const addEvent = (id: string, created: number): Promise<unknown> =>
    store.write((tx) =>
      tx
        .insertInto('events')
        .values({ id, project_id, type: 'batch.completed', data: '{}', created })
        .execute(),
    )
  await addEvent('kept', Date.now() - 500 * DAY_MS)
  const sweep = async (onlyBatches?: ReadonlySet<string>): Promise<string[]> => {
    await addEvent('old', 1)
    await store.write((tx) => tx.deleteFrom('database_properties').where('name', '=', 'swept_at').execute())
    const worker = await service.addWorker({ ...service.config, retention: { audit_ms } }, onlyBatches)
    const left = async () =>
      (await store.read.selectFrom('events').select('id').execute()).map(({ id }) => id)
    while ((await left()).includes('old')) await new Promise((resolve) => setImmediate(resolve))
    await worker.stop()
    return (await left()).filter((id) => id === 'kept')
  }
  assert.deepEqual(await sweep(new Set([batch.id])), ['kept'])
  assert.deepEqual(await sweep(), [])
})
