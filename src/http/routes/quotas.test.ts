// Tests each quota of a plan: a call beyond it is rejected and leaves nothing, and the caller can see its use.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { connect } from 'node:net'
import { test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { pino } from 'pino'
import { uploadForm } from '../../../test/support/api.ts'
import {
  type Answer,
  ONE_LINE,
  object,
  TEST_PLANS,
  type TestServer,
  testServer,
} from '../../../test/support/test-server.ts'
import { makeConsoleToken } from '../../domain/api-key.ts'
import { QUOTAS_DEFAULT, type Quotas } from '../../domain/plan.ts'
import { emptySums, type TokenSums } from '../../jsonl/projection.ts'
import { moveBatch } from '../../store/batches.ts'
import { reduceProjectedSpend } from '../../store/ledger.ts'

function serverWith(quotas: Partial<Quotas>, file_bytes_max = 1024 * 1024): Promise<TestServer> {
  const plans = [...TEST_PLANS].map(
    ([name, plan]) => [name, { ...plan, quotas: { ...QUOTAS_DEFAULT, ...quotas } }] as const,
  )
  return testServer({ plans: new Map(plans), file_bytes_max })
}

async function shown(server: TestServer, name: string): Promise<unknown[]> {
  const { json } = await server.call('GET', '/v1/quotas')
  const { limit, used } = object(object(json.quotas)[name])
  return [limit, used]
}

function refused(answer: Answer, quota: string, words: RegExp): void {
  assert.equal(answer.outcome, '429 quota_exceeded', answer.text)
  assert.equal(answer.error.quota, quota)
  assert.equal(answer.headers.get('x-should-retry'), 'false')
  assert.match(String(answer.error.message), words)
}

const limit = (amount = 5) => ({ body: { scope: 'project', metric: 'tokens', amount, window: 'day' } })

test('any key may read the quotas of its project, and another project has its own', async () => {
  await using server = await testServer()
  await server.upload()
  const { key } = await server.issue({ project: 'other', scopes: ['files:read'] })
  const theirs = await server.call('GET', '/v1/quotas', { key })
  assert.equal(theirs.json.plan, 'payg')
  assert.deepEqual(object(object(theirs.json.quotas).stored_bytes).used, 0)
  assert.deepEqual(await shown(server, 'stored_bytes'), [2 ** 40, ONE_LINE.length])
  assert.deepEqual(await shown(server, 'entities_per_batch'), [5000, null])
})

test('a process that does not know the plan of a project says so, and logs it once', async () => {
  const logged: string[] = []
  const log = pino({ level: 'error' }, { write: (line: string) => void logged.push(line) })
  await using server = await testServer({ log })
  const file = await server.processedFile()
  const { key } = await server.issue({ project: 'later', plan: 'platinum' })
  for (const answer of [
    await server.createBatch(file, { key }),
    await server.call('GET', '/v1/quotas', { key }),
  ]) {
    assert.equal(answer.outcome, '503 service_unavailable', answer.text)
    assert.match(String(answer.error.message), /does not know the plan of the project, `platinum`/)
    assert.equal(answer.headers.get('retry-after'), '5')
  }
  assert.equal((await server.call('GET', '/v1/batches', { key })).status, 200)
  assert.deepEqual(
    logged.map((line) => JSON.parse(line).plan),
    ['platinum'],
  )
})

test('open batches: an ended one frees its place, and concurrent calls do not exceed the quota', async () => {
  await using server = await serverWith({ open_batches: 3 })
  const file = await server.processedFile()
  const answers = await Promise.all(Array.from({ length: 8 }, () => server.createBatch(file)))
  const made = answers.filter(({ status }) => status === 200)
  assert.equal(made.length, 3)
  for (const answer of answers.filter(({ status }) => status !== 200))
    refused(answer, 'open_batches', /may have 3 unfinished batches; it has 3, .* cancel some/)
  assert.deepEqual(await shown(server, 'open_batches'), [3, 3])
  await server.deps.store.write((tx) => moveBatch(tx, made[0]!.id, 'failed', server.clock.now()))
  assert.equal((await server.createBatch(file)).status, 200)
})

test('queued lines', async () => {
  await using server = await serverWith({ queued_lines: 10 })
  const file = await server.processedFile({ line_count: 6 })
  assert.equal((await server.createBatch(file)).status, 200)
  refused(await server.createBatch(file), 'queued_lines', /it has 6, and this call would add 6/)
  assert.deepEqual(await shown(server, 'queued_lines'), [10, 6])
})

test('queued tokens count for each model by itself, and are free again as lines end', async () => {
  await using server = await serverWith({ queued_tokens: 1000 })
  const tokens = (model: string | null, output_tokens_max_given: number): TokenSums => ({
    ...{ ...emptySums(model, null), lines: 2, input_tokens: 100, output_tokens_max_given },
  })
  const of = (...groups: TokenSums[]): Promise<string> => server.processedFile({ line_count: 2, groups })
  const file = await of(tokens('sim-1', 500), tokens(null, 1))
  const first = await server.createBatch(file)
  assert.equal(first.status, 200)
  const words =
    /may have 1000 tokens of unfinished lines of one model; it has 600 of sim-1, and this call would add 600/
  refused(await server.createBatch(file), 'queued_tokens', words)
  assert.equal((await server.createBatch(await of(tokens('org/large', 800)))).status, 200, 'another model')
  refused(
    await server.createBatch(await of(tokens('sim-1', 901))),
    'queued_tokens',
    /alone would add 1001 of sim-1/,
  )
  const { json } = await server.call('GET', '/v1/quotas')
  assert.deepEqual(Object(json.quotas).queued_tokens, {
    ...{ limit: 1000, used: 900, by_model: { 'org/large': 900, 'sim-1': 600 } },
  })
  const ended = { entity: '', model: 'sim-1', cost_nanos: 0, tokens: 300, requests: 1 }
  await server.deps.store.write((tx) => reduceProjectedSpend(tx, first.id, [ended]))
  const answers = await Promise.all(Array.from({ length: 4 }, () => server.createBatch(file)))
  assert.equal(answers.filter(({ status }) => status === 200).length, 1)
})

test('stored bytes: deleting a file frees its bytes, and a rejected upload leaves nothing', async () => {
  await using server = await serverWith({ stored_bytes: ONE_LINE.length * 2 })
  const { id } = await server.upload()
  refused(await server.upload(`${ONE_LINE}${ONE_LINE}`), 'stored_bytes', /Delete files/)
  const headers = { 'idempotency-key': 'x' }
  const raw = uploadForm(ONE_LINE.repeat(2))
  refused(await server.call('POST', '/v1/files', { raw, headers }), 'stored_bytes', /Delete files/)
  assert.equal((await server.upload()).status, 200)
  refused(await server.upload('x'), 'stored_bytes', /it has/)
  await server.call('DELETE', `/v1/files/${id}`)
  assert.equal((await server.upload()).status, 200)
  const blobs: string[] = []
  for await (const { key } of server.blobs.list('')) blobs.push(key)
  assert.equal(blobs.length, 3, 'two files, and the one that was deleted')
})

test('a call under its Idempotency-Key gets the answer of the first, which filled the quota', async () => {
  await using server = await serverWith({ stored_bytes: ONE_LINE.length })
  const headers = { 'idempotency-key': 'x' }
  const send = (content: string) => server.call('POST', '/v1/files', { raw: uploadForm(content), headers })
  const first = await send(ONE_LINE)
  const again = await send(ONE_LINE)
  assert.deepEqual([again.text, again.headers.get('idempotency-replayed')], [first.text, 'true'])
  assert.equal((await send(ONE_LINE.replace('a', 'b'))).outcome, '409 idempotency_key_reused')
  refused(await send(ONE_LINE.repeat(2)), 'stored_bytes', /Delete files/)
  assert.deepEqual(await shown(server, 'stored_bytes'), [ONE_LINE.length, ONE_LINE.length])
})

test('the same holds for a message batch, whose lines are stored before they are known', async () => {
  const params = { model: 'm', max_tokens: 5, messages: [{ role: 'user', content: 'Hi' }] }
  const body = { requests: [{ custom_id: 'a', params }] }
  await using server = await serverWith({ stored_bytes: JSON.stringify(body).length + 100 })
  const headers = { 'idempotency-key': 'x', 'anthropic-version': '2023-06-01' }
  const send = () => server.call('POST', '/v1/messages/batches', { body, headers })
  const first = await send()
  assert.equal(first.status, 200, first.text)
  const again = await send()
  assert.deepEqual([again.text, again.headers.get('idempotency-replayed')], [first.text, 'true'])
})

test('limits and webhooks', async () => {
  await using server = await serverWith({ limits: 2, webhooks: 1 })
  const answers = await Promise.all(
    [1, 2, 3, 4].map((amount) => server.call('POST', '/v1/limits', limit(amount))),
  )
  assert.equal(answers.filter(({ status }) => status === 200).length, 2)
  refused(answers.find(({ status }) => status !== 200)!, 'limits', /may have 2 limits/)
  const webhook = { body: { url: 'https://example.com/hook' } }
  assert.equal((await server.call('POST', '/v1/webhooks', webhook)).status, 200)
  refused(await server.call('POST', '/v1/webhooks', webhook), 'webhooks', /Delete a webhook first/)
  assert.deepEqual(await shown(server, 'limits'), [2, 2])
  assert.deepEqual(await shown(server, 'webhooks'), [1, 1])
})

test('concurrent uploads: an upload frees its place, however it ends', async () => {
  await using server = await serverWith({ uploads: 1 })
  const socket = connect(server.port, '127.0.0.1')
  socket.write(
    `POST /v1/files HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${server.key.key}\r\n` +
      'content-type: multipart/form-data; boundary=b\r\ncontent-length: 5000\r\n\r\n--b\r\n',
  )
  while ((await shown(server, 'uploads'))[1] === 0) await setImmediate()
  const answer = await server.upload()
  refused(answer, 'uploads', /may have 1 concurrent upload;/)
  assert.equal(answer.headers.get('retry-after'), '1')
  socket.resetAndDestroy()
  while ((await shown(server, 'uploads'))[1] !== 0) await setImmediate()
  assert.equal((await server.upload()).status, 200)
})

test('without a quota there is no bound, and its value is null', async () => {
  await using server = await serverWith({ limits: null, uploads: null, stored_bytes: null })
  assert.equal((await server.call('POST', '/v1/limits', limit())).status, 200)
  assert.equal((await server.upload()).status, 200)
  assert.deepEqual(await shown(server, 'limits'), [null, 1])
})

test('different entities in one batch', async () => {
  await using server = await serverWith({ entities_per_batch: 3 })
  const groups = (entities: number): TokenSums[] =>
    Array.from({ length: entities }, (_, i) => ({ ...emptySums('sim-1', `user:${i}`), lines: 1 }))
  for (const [entities, outcome] of [
    [3, '200'],
    [4, '429 quota_exceeded'],
  ] as const) {
    const file = await server.processedFile({ line_count: entities, groups: groups(entities) })
    const answer = await server.createBatch(file)
    assert.equal(answer.outcome, outcome, answer.text)
    if (entities === 4)
      refused(answer, 'entities_per_batch', /may have 3 different entities in one batch; this batch has 4/)
  }
})

test('keys: a revoked one makes room, and only so many revoked ones are kept', async () => {
  await using server = await serverWith({ keys: 3 })
  const { key } = await server.issue({ scopes: ['keys:write', 'keys:read'] })
  const create = () => server.call('POST', '/v1/keys', { key, body: {} })
  const made = await create()
  assert.equal(made.status, 200)
  refused(await create(), 'keys', /may have 3 API keys; it has 3, .* Revoke keys/)
  const both = { key, headers: {} }
  assert.equal((await server.call('DELETE', `/v1/keys/${made.id}`, both)).status, 200)
  assert.equal((await create()).status, 200)
  assert.deepEqual(await shown(server, 'keys'), [3, 3])
})

test('streams: bounded for a project, and for each key and session', async () => {
  await using server = await serverWith({ streams: 18 })
  const { key: second } = await server.issue()
  const { key: foreign } = await server.issue({ project: 'other' })
  const left = new AbortController()
  // A response that nothing refers to is collected, and its stream ends.
  const streams: Response[] = []
  const watch = async (key = server.key.key): Promise<number> => {
    // A cookie says nothing where a key comes with the call.
    const cookie = `offpeak_console=${makeConsoleToken().token}`
    const headers = { authorization: `Bearer ${key}`, accept: 'text/event-stream', cookie }
    const response = await fetch(`${server.url}/v1/live`, { headers, signal: left.signal })
    if (response.status === 200) streams.push(response)
    else await response.text()
    return response.status
  }
  const some = await Promise.all(Array.from({ length: 16 }, () => watch()))
  assert.deepEqual([...new Set(some)], [200])
  assert.equal(await watch(), 429, 'of one key')
  assert.deepEqual([await watch(second), await watch(second), await watch(second)], [200, 200, 429])
  assert.deepEqual(await shown(server, 'streams'), [18, 18])
  assert.equal(await watch(foreign), 200)
  left.abort()
  while ((await shown(server, 'streams'))[1] !== 0);
  assert.equal((await server.call('GET', '/v1/live')).status, 200)
})

test('downloads: a slow reader has a slot until it leaves', async () => {
  await using server = await serverWith({ downloads: 1 }, 32 * 1024 * 1024)
  // More than the buffers of a connection hold.
  const { id } = await server.upload(randomBytes(6 * 1024 * 1024).toString('hex'))
  const slow = connect(server.port, '127.0.0.1')
  const path = `/v1/files/${id}/content`
  slow.write(`GET ${path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${server.key.key}\r\n\r\n`)
  while ((await shown(server, 'downloads'))[1] !== 1);
  const second = await server.call('GET', path)
  assert.deepEqual([second.outcome, second.error.quota], ['429 quota_exceeded', 'downloads'])
  assert.equal((await server.call('HEAD', path)).status, 200)
  slow.destroy()
  while ((await shown(server, 'downloads'))[1] !== 0);
  const after = await server.call('GET', path, { headers: { range: 'bytes=0-9' } })
  assert.equal(after.status, 206)
})
