// The official OpenAI SDK as it comes from npm, with nothing patched, against the whole service.
import assert from 'node:assert/strict'
import { createReadStream } from 'node:fs'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { type TestContext, test } from 'node:test'
import OpenAI, { toFile } from 'openai'
import { createKey } from '../../src/admin/create-key.ts'
import type { Scope } from '../../src/domain/api-key.ts'
import { systemClock } from '../../src/domain/clock.ts'
import { type UnreliableProxy, unreliableProxy } from '../fakes/unreliable-proxy.ts'
import { type TestUpstream, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService } from '../service.ts'
import { parsedLines } from '../support/api.ts'

const POLL_MS = 10
const WAIT_MS = 10_000
const THREE_LINES = `${['a', 'b', 'c'].map((id) => JSON.stringify(line(id))).join('\n')}\n`

interface Sdk {
  service: TestService
  proxy: UnreliableProxy
  upstream: TestUpstream
  client: OpenAI
  /** A client with another key, or other settings. */
  clientWith(options: { apiKey?: string; maxRetries?: number }): OpenAI
  keyWith(scopes: readonly Scope[]): Promise<string>
}

async function sdk(t: TestContext, options: { requests_per_minute?: number } = {}): Promise<Sdk> {
  const upstream = await testUpstream()
  const service = await TestService.start(configFor(upstream.base_url), options)
  const proxy = await unreliableProxy(service.url)
  t.after(async () => {
    await proxy[Symbol.asyncDispose]()
    await service[Symbol.asyncDispose]()
    await upstream.close()
  })
  const clientWith: Sdk['clientWith'] = (more) =>
    new OpenAI({ apiKey: service.key, baseURL: `${proxy.url}/v1`, ...more })
  return {
    service,
    proxy,
    upstream,
    client: clientWith({}),
    clientWith,
    async keyWith(scopes) {
      const { store } = service.stores
      return (await createKey(store, systemClock, 'local', { project: 'other', plan: 'payg', scopes })).key
    },
  }
}

type ErrorClass = abstract new (...args: never[]) => InstanceType<typeof OpenAI.APIError>

/** Uploads three lines and waits until they may be run. */
async function processedFile(client: OpenAI): Promise<string> {
  const { id } = await client.files.create({
    file: await toFile(Buffer.from(THREE_LINES), 'in.jsonl'),
    purpose: 'batch',
  })
  await client.files.waitForProcessing(id, { pollInterval: POLL_MS, maxWait: WAIT_MS })
  return id
}

function order(input_file_id: string): OpenAI.BatchCreateParams {
  return { input_file_id, endpoint: '/v1/chat/completions', completion_window: '24h' }
}

test('the SDK uploads a stream from a file, waits, runs a batch, and reads and deletes its result', async (t) => {
  const { client, service } = await sdk(t)
  const path = join(service.folder, 'lines.jsonl')
  await writeFile(path, THREE_LINES)
  const file = await client.files.create({ file: createReadStream(path), purpose: 'batch' })
  assert.equal(file.object, 'file')
  assert.equal(file.filename, 'lines.jsonl')
  assert.equal(file.bytes, Buffer.byteLength(THREE_LINES))
  assert.equal(typeof file.created_at, 'number')
  assert.equal(typeof file.expires_at, 'number')

  const ready = await client.files.waitForProcessing(file.id, { pollInterval: POLL_MS, maxWait: WAIT_MS })
  assert.equal(ready.status, 'processed')
  const { data: batch, request_id } = await client.batches
    .create({ ...order(file.id), metadata: { entity: 'user:1' } })
    .withResponse()
  assert.equal(batch.status, 'validating')
  assert.ok(request_id?.startsWith('req_'))

  await service.ended(batch.id)
  const done = await client.batches.retrieve(batch.id)
  assert.equal(done.status, 'completed')
  assert.deepEqual(done.request_counts, { total: 3, completed: 3, failed: 0 })
  assert.equal(done.metadata?.entity, 'user:1')
  assert.ok(done.output_file_id)
  const content = await (await client.files.content(done.output_file_id)).text()
  assert.deepEqual(
    parsedLines<{ custom_id: string }>(content).map(({ custom_id }) => custom_id),
    ['a', 'b', 'c'],
  )
  assert.equal(await (await client.files.content(file.id)).text(), THREE_LINES)
  assert.deepEqual(await client.files.delete(file.id), { id: file.id, object: 'file', deleted: true })
  await assert.rejects(client.files.retrieve(file.id), OpenAI.NotFoundError)
})

test('the SDK uploads a web stream, whose length it does not know', async (t) => {
  const { client } = await sdk(t)
  const file = await toFile(new Blob([THREE_LINES]).stream(), 'web.jsonl')
  const { id } = await client.files.create({ file, purpose: 'batch' })
  const ready = await client.files.waitForProcessing(id, { pollInterval: POLL_MS, maxWait: WAIT_MS })
  assert.equal(ready.status, 'processed')
  assert.equal(ready.filename, 'web.jsonl')
})

test('waitForProcessing also ends with a file that is refused', async (t) => {
  const { client } = await sdk(t)
  const { id } = await client.files.create({ file: await toFile(Buffer.from('{}'), 'x'), purpose: 'batch' })
  const file = await client.files.waitForProcessing(id, { pollInterval: POLL_MS, maxWait: WAIT_MS })
  assert.equal(file.status, 'error')
  assert.match(String(file.status_details), /^Line 1:/)
})

test('the SDK walks lists of several pages by itself', async (t) => {
  const { client, proxy } = await sdk(t)
  const input = await processedFile(client)
  const created: string[] = []
  for (let i = 0; i < 7; i++) created.push((await client.batches.create(order(input))).id)
  const newestFirst = created.toReversed()

  const listed: string[] = []
  for await (const batch of client.batches.list({ limit: 2 })) listed.push(batch.id)
  assert.deepEqual(listed, newestFirst)
  const pages = proxy.passed.filter(({ path }) => path.startsWith('/v1/batches?'))
  assert.equal(pages.length, 4)
  assert.ok(pages.slice(1).every(({ path }) => path.includes('after=batch_')))

  const first = await client.batches.list({ limit: 5 })
  assert.ok(first.hasNextPage())
  assert.deepEqual(
    (await first.getNextPage()).data.map((batch) => batch.id),
    newestFirst.slice(5),
  )

  const files: string[] = []
  for await (const file of client.files.list({ limit: 1, purpose: 'batch' })) files.push(file.id)
  assert.deepEqual(files, [input])
  const models: string[] = []
  for await (const model of client.models.list()) models.push(model.id)
  assert.deepEqual(models, ['m'])
  assert.equal((await client.models.retrieve('m')).object, 'model')
})

test('the SDK cancels a batch, with the empty body that it sends', async (t) => {
  const { client, service } = await sdk(t)
  const input = await processedFile(client)
  await service.worker.stop()
  const batch = await client.batches.create(order(input))
  const cancelled = await client.batches.cancel(batch.id)
  assert.equal(cancelled.status, 'cancelling')
  assert.equal(typeof cancelled.cancelling_at, 'number')
  await service.restartWorker()
  await service.ended(batch.id)
  assert.equal((await client.batches.retrieve(batch.id)).status, 'cancelled')
})

test('what is refused becomes the SDK’s error of its kind, with code, param and request ID', async (t) => {
  const { client, clientWith, keyWith, proxy } = await sdk(t)
  const input = await processedFile(client)
  const idempotent = { headers: { 'Idempotency-Key': 'job-1', 'Idempotency-Mode': 'implicit' } }
  const reader = clientWith({ apiKey: await keyWith(['batches:read', 'files:read']) })
  const { id: broken } = await client.files.create({
    file: await toFile(Buffer.from('{}'), 'broken.jsonl'),
    purpose: 'batch',
  })
  await client.files.waitForProcessing(broken, { pollInterval: POLL_MS, maxWait: WAIT_MS })
  await client.batches.create(order(input), idempotent)

  const cases: [string, () => Promise<unknown>, ErrorClass, string, string | undefined][] = [
    [
      'no key',
      () => clientWith({ apiKey: 'sk-1' }).models.list(),
      OpenAI.AuthenticationError,
      'invalid_api_key',
      undefined,
    ],
    [
      'no scope',
      () => reader.batches.create(order(input)),
      OpenAI.PermissionDeniedError,
      'missing_scope',
      undefined,
    ],
    [
      'no such batch',
      () => client.batches.retrieve('batch_1'),
      OpenAI.NotFoundError,
      'batch_not_found',
      undefined,
    ],
    [
      'another project’s file',
      () => reader.files.retrieve(input),
      OpenAI.NotFoundError,
      'file_not_found',
      undefined,
    ],
    [
      'no such model',
      () => client.models.retrieve('org/none'),
      OpenAI.NotFoundError,
      'model_not_found',
      'model',
    ],
    [
      'no such input',
      () => client.batches.create(order('file_1')),
      OpenAI.NotFoundError,
      'file_not_found',
      'input_file_id',
    ],
    [
      'nonsense',
      () => client.batches.list({ limit: 1000 }),
      OpenAI.BadRequestError,
      'invalid_request',
      'limit',
    ],
    [
      'a broken input',
      () => client.batches.create(order(broken)),
      OpenAI.UnprocessableEntityError,
      'file_not_processed',
      'input_file_id',
    ],
    [
      'a repeated call',
      () => client.batches.create(order(input), idempotent),
      OpenAI.ConflictError,
      'idempotency_cache_not_requested',
      undefined,
    ],
  ]
  for (const [what, call, kind, code, param] of cases) {
    const before = proxy.passed.length
    await assert.rejects(call, (error) => {
      assert.ok(error instanceof kind, `${what}: ${error}`)
      assert.equal(error.code, code, what)
      assert.equal(error.param ?? undefined, param, what)
      assert.ok(error.requestID?.startsWith('req_'), what)
      return true
    })
    assert.equal(proxy.passed.length, before + 1, `${what} was sent again`)
  }
})

test('a spent rate limit is the SDK’s RateLimitError, and says when to come back', async (t) => {
  const { clientWith } = await sdk(t, { requests_per_minute: 2 })
  const client = clientWith({ maxRetries: 0 })
  await client.models.list()
  await client.models.list()
  await assert.rejects(client.models.list(), (error) => {
    assert.ok(error instanceof OpenAI.RateLimitError)
    assert.equal(error.code, 'rate_limit_exceeded')
    assert.ok(Number(error.headers.get('retry-after')) > 0)
    return true
  })
})

test('a create whose answer was lost is sent again by the SDK, and runs and bills one batch', async (t) => {
  const { client, service, proxy, upstream } = await sdk(t)
  const input = await processedFile(client)
  let lost = 0
  proxy.lose = ({ method, path }) =>
    method === 'POST' && path === '/v1/batches' && lost++ === 0 ? 'answer lost' : null
  const batch = await client.batches.create(order(input))
  assert.deepEqual(
    proxy.passed.filter(({ method, path }) => method === 'POST' && path === '/v1/batches').map(retryCount),
    ['0', '1'],
  )
  await service.ended(batch.id)
  const all = await client.batches.list()
  assert.deepEqual(
    all.data.map(({ id }) => id),
    [batch.id],
  )
  assert.equal(upstream.calls.length, 3)
})

test('the SDK comes back after a 503, also with an upload that it can read again', async (t) => {
  const { client, proxy } = await sdk(t)
  let busy = 0
  proxy.lose = ({ method }) => (method === 'POST' && busy++ === 0 ? 'busy' : null)
  const input = await processedFile(client)
  assert.deepEqual(proxy.passed.filter(({ path }) => path === '/v1/files').map(retryCount), ['0', '1'])
  assert.equal((await client.files.retrieve(input)).bytes, Buffer.byteLength(THREE_LINES))
})

function retryCount({ headers }: UnreliableProxy['passed'][number]): unknown {
  return headers['x-stainless-retry-count']
}
