// Cancel and deletion take effect at once, whatever else runs: what is left of a batch that is ending is closed
// before all other work, and needs no place at a model server, no place in a worker and no room under a limit.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { modelsById } from '../../src/compose/upstreams.ts'
import { finishRules } from '../../src/compose/worker.ts'
import { planBatch } from '../../src/intake/plan.ts'
import { claimTask } from '../../src/store/tasks.ts'
import { openSession } from '../../src/store/workers.ts'
import { testUpstream } from '../fakes/upstream.ts'
import { line, TestService, type WireBatch, type WireFile, type WireLine } from '../service.ts'
import { parsedLines, uploadForm } from '../support/api.ts'

const LINES = 10_000
const PLACES = 4

function config(base_url: string): string {
  return `
models:
  - {id: m, upstreams: [{type: openai, base_url: "${base_url}", timeout: 60s, concurrency_max: ${PLACES}}]}
worker: {flush_interval: 20ms, lease: 5s}`
}

function lines(name: string, count: number): string {
  return Array.from({ length: count }, (_, i) => JSON.stringify(line(`${name}${i}`))).join('\n')
}

/** A server that answers nothing, with all its places taken by a giant. */
async function busy() {
  const upstream = await testUpstream(() => {})
  const service = await TestService.start(config(upstream.base_url))
  const giant = await service.create((await service.upload(lines('giant', LINES))).id)
  await upstream.arrived(PLACES)
  return {
    upstream,
    service,
    giant,
    async [Symbol.asyncDispose]() {
      await upstream.close()
      await service[Symbol.asyncDispose]()
    },
  }
}

async function errorsOf(service: TestService, batch: WireBatch): Promise<WireLine[]> {
  const text = await (await service.request('GET', `/v1/files/${batch.error_file_id}/content`)).text()
  return parsedLines(text)
}

async function wrappedKeys(service: TestService, file_id: string): Promise<object[]> {
  return await service.stores.store.read
    .selectFrom('blobs')
    .select('wrapped_key')
    .where('key', 'like', `files/${file_id}/%`)
    .where('deletion_pending_since', 'is', null)
    .execute()
}

test('a giant is cancelled while another of its project has every place', async () => {
  await using at = await busy()
  const { service, upstream } = at
  const other = await service.create((await service.upload(lines('other', LINES))).id)
  while ((await service.get(other.id)).status !== 'queued');
  await service.request('POST', `/v1/batches/${other.id}/cancel`)
  const ended = await service.ended(other.id)
  assert.equal(ended.status, 'cancelled')
  assert.deepEqual(ended.request_counts, { total: LINES, completed: 0, failed: LINES })
  const errors = await errorsOf(service, ended)
  assert.deepEqual(new Set(errors.map(({ error }) => error?.code)), new Set(['batch_cancelled']))
  assert.deepEqual(
    errors.map(({ custom_id }) => custom_id),
    Array.from({ length: LINES }, (_, i) => `other${i}`),
  )
  assert.equal(upstream.calls.length, PLACES, 'nothing was sent of it')
  assert.equal((await service.get(at.giant.id)).status, 'in_progress')
})

test('a deleted input is destroyed while another batch of its project has every place', async () => {
  await using at = await busy()
  const { service } = at
  const file = await service.upload(lines('other', LINES))
  const other = await service.create(file.id)
  while ((await service.get(other.id)).status !== 'queued');
  assert.equal((await service.request('DELETE', `/v1/files/${file.id}`)).status, 200)
  const ended = await service.ended(other.id)
  assert.equal(ended.status, 'completed')
  assert.equal(ended.request_counts.failed, LINES)
  const errors = await errorsOf(service, ended)
  assert.deepEqual(new Set(errors.map(({ error }) => error?.code)), new Set(['input_file_deleted']))
  assert.deepEqual(await wrappedKeys(service, file.id), [])
})

test('lines of a cancelled batch say so, also when its window closes before they have ended', async () => {
  await using at = await busy()
  const { service } = at
  const other = await service.create((await service.upload(lines('other', 2))).id)
  while ((await service.get(other.id)).status !== 'queued');
  await service.stores.store.write(async (tx) => {
    const now = service.stores.store.clock.now()
    const change = { status: 'cancelling', cancelling_at: now - 1, expires_at: now } as const
    await tx.updateTable('batches').set(change).where('id', '=', other.id).execute()
    await tx.updateTable('chunks').set({ deadline: now }).where('batch_id', '=', other.id).execute()
  })
  service.worker.wake()
  const ended = await service.ended(other.id)
  assert.equal(ended.status, 'cancelled')
  const codes = (await errorsOf(service, ended)).map(({ error }) => error?.code)
  assert.deepEqual(codes, ['batch_cancelled', 'batch_cancelled'])
})

test('batches whose window closes end beside a giant', async () => {
  await using at = await busy()
  const { service } = at
  const other = await service.create((await service.upload(lines('other', LINES))).id)
  while ((await service.get(other.id)).status !== 'queued');
  await service.stores.store.write(async (tx) => {
    const now = service.stores.store.clock.now()
    await tx.updateTable('batches').set({ expires_at: now }).where('id', '=', other.id).execute()
    await tx.updateTable('chunks').set({ deadline: now }).where('batch_id', '=', other.id).execute()
  })
  service.worker.wake()
  const ended = await service.ended(other.id)
  assert.deepEqual([ended.status, ended.request_counts.failed], ['expired', LINES])
})

test('a worker of one command sends and ends no line of another batch', async () => {
  await using upstream = await testUpstream()
  const onlyBatches = new Set<string>()
  await using service = await TestService.start(config(upstream.base_url), { onlyBatches })
  const file = await service.upload(lines('a', 3))
  const { store } = service.stores
  const { clock } = store
  const session = await store.write((tx) => openSession(tx, 60_000, clock.now(), 'api'))
  const models = modelsById(service.config.models)
  const rules = finishRules(service.config)
  const { signal } = new AbortController()
  // One past its window, one due soon, and one of an entity that no open chunk is of.
  const left = [await service.create(file.id), await service.create(file.id)]
  left.push(await service.create(file.id, { metadata: { entity: 'user:1' } }))
  for (const [i, { id }] of left.entries()) {
    const planned = await store.write((tx) => claimTask(tx, session, { kinds: ['plan'], large: false }))
    await planBatch(
      { ...service.stores, ...service.config, clock, models, rules, onEnded() {} },
      planned!,
      signal,
    )
    await store.write(async (tx) => {
      const deadline = Date.now() + (i === 0 ? -1000 : 60_000)
      await tx.updateTable('batches').set({ expires_at: deadline }).where('id', '=', id).execute()
      await tx.updateTable('chunks').set({ deadline }).where('batch_id', '=', id).execute()
    })
  }
  for (const _ of [1, 2]) {
    const own = await service.create((await service.upload(lines('own', 3))).id)
    onlyBatches.add(own.id)
    service.worker.wake()
    assert.equal((await service.ended(own.id)).request_counts.completed, 3)
  }
  assert.equal(upstream.calls.length, 6)
  for (const { id } of left) assert.equal((await service.get(id)).status, 'queued')
  for (const { id } of left) onlyBatches.add(id)
  service.worker.wake()
  const statuses = await Promise.all(left.map(async ({ id }) => (await service.ended(id)).status))
  assert.deepEqual(statuses, ['expired', 'completed', 'completed'])
})

test('a worker of one command validates only files that were uploaded since, and those it is given', async () => {
  await using upstream = await testUpstream()
  const onlyBatches = new Set<string>()
  await using service = await TestService.start(config(upstream.base_url), { onlyBatches, worker: false })
  const post = () => service.json<WireFile>('POST', '/v1/files', uploadForm(lines('a', 3)))
  const status = async (file: WireFile) =>
    (await service.json<WireFile>('GET', `/v1/files/${file.id}`)).status
  const left = await post()
  const given = await post()
  await service.stores.store.write((tx) => tx.updateTable('tasks').set({ created: 1 }).execute())
  await service.worker.start()
  assert.equal((await service.upload(lines('own', 3))).status, 'processed')
  onlyBatches.add(given.id)
  service.worker.wake()
  await service.eventually(async () => (await status(given)) === 'processed' || undefined)
  assert.equal(await status(left), 'pending')
})
