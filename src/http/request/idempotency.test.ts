import assert from 'node:assert/strict'
import { test } from 'node:test'
import {
  type Answer,
  type CallOptions,
  type TestServer,
  testServer,
} from '../../../test/support/test-server.ts'
import { forgetIdempotencyKeys } from '../../store/calls.ts'
import { Idempotency, KEPT_MS, KEYLESS_KEPT_MS } from './idempotency.ts'

function create(
  server: TestServer,
  file: string,
  headers: Record<string, string>,
  more: CallOptions & { body?: object } = {},
) {
  const body = {
    input_file_id: file,
    endpoint: '/v1/chat/completions',
    completion_window: '24h',
    ...more.body,
  }
  return server.call('POST', '/v1/batches', { ...more, body, headers })
}

const batches = async (server: TestServer): Promise<number> =>
  (await server.call('GET', '/v1/batches')).data.length

function assertNoRetry(answer: Answer): void {
  assert.equal(answer.headers.get('x-should-retry'), 'false')
}

test('without a key every call creates a batch', async () => {
  await using server = await testServer()
  const file = await server.processedFile()
  await create(server, file, {})
  await create(server, file, { 'x-stainless-retry-count': '0' })
  assert.equal(await batches(server), 2)
})

test('a key alone replays the first answer byte for byte, whatever status the batch has by now', async () => {
  await using server = await testServer()
  const file = await server.processedFile()
  const first = await create(
    server,
    file,
    { 'idempotency-key': 'job-1' },
    { body: { metadata: { a: '1', b: '2' } } },
  )
  assert.equal(first.headers.get('idempotency-replayed'), null)
  await server.call('POST', `/v1/batches/${first.id}/cancel`)
  const repeats: Record<string, string>[] = [
    {},
    { 'idempotency-mode': 'replay' },
    { 'x-stainless-retry-count': '2' },
  ]
  for (const headers of repeats) {
    const again = await create(
      server,
      file,
      { 'idempotency-key': 'job-1', ...headers },
      // The same request, its keys in another order.
      { body: { metadata: { b: '2', a: '1' } } },
    )
    assert.equal(again.status, 200)
    assert.equal(again.text, first.text)
    assert.equal(again.headers.get('idempotency-replayed'), 'true')
    assert.notEqual(again.request_id, first.request_id)
  }
  assert.equal(await batches(server), 1)
})

test('in implicit mode a repeated call is a 409 that names the original request', async () => {
  await using server = await testServer()
  const file = await server.processedFile()
  const headers = { 'idempotency-key': 'job-1', 'idempotency-mode': 'implicit' }
  const first = await create(server, file, headers)
  const again = await create(server, file, headers)
  assert.equal(again.outcome, '409 idempotency_cache_not_requested')
  assert.equal(again.error.original_request_id, first.request_id)
  assertNoRetry(again)
  const record = await server.call('GET', `/v1/requests/${again.error.original_request_id}`)
  assert.deepEqual(record.json.response, first.json)
})

test('a key that was used for another request is a 409', async () => {
  await using server = await testServer()
  const file = await server.processedFile()
  const headers = { 'idempotency-key': 'job-1' }
  await create(server, file, headers)
  const others: [Record<string, string>, object][] = [
    [{}, { metadata: { x: 'y' } }],
    [{ 'x-service-entity': 'user:1' }, {}],
    [{ 'idempotency-mode': 'implicit' }, { input_file_id: await server.processedFile() }],
  ]
  for (const [more, body] of others) {
    const other = await create(server, file, { ...headers, ...more }, { body })
    assert.equal(other.outcome, '409 idempotency_key_reused')
    assertNoRetry(other)
  }
  assert.equal(await batches(server), 1)
})

test('the same key of another project is another key', async () => {
  await using server = await testServer()
  const { key } = await server.issue({ project: 'other' })
  const headers = { 'idempotency-key': 'job-1' }
  const mine = await create(server, await server.processedFile(), headers)
  const theirs = await create(server, await server.processedFile({ key }), headers, { key })
  assert.equal(theirs.status, 200)
  assert.notEqual(theirs.id, mine.id)
})

test('a call that failed leaves its key free', async () => {
  await using server = await testServer()
  const { id: pending } = await server.upload()
  const headers = { 'idempotency-key': 'job-1' }
  assert.equal((await create(server, pending, headers)).outcome, '422 file_not_processed')
  await server.process(pending)
  assert.equal((await create(server, pending, headers)).status, 200)
})

test('fifty calls at once with one key create one batch', async () => {
  await using server = await testServer()
  const file = await server.processedFile()
  const calls = Array.from({ length: 50 }, () => create(server, file, { 'idempotency-key': 'job-1' }))
  const answers = await Promise.all(calls)
  const made = answers.filter((answer) => answer.status === 200)
  const waiting = answers.filter((answer) => answer.status !== 200)
  assert.equal(new Set(made.map((answer) => answer.text)).size, 1)
  for (const answer of waiting) {
    assert.equal(answer.outcome, '409 idempotency_in_progress')
    assert.equal(answer.headers.get('retry-after'), '1')
    assert.equal(answer.headers.get('x-should-retry'), null)
  }
  assert.equal(await batches(server), 1)
})

test('a second call while the first is running is a 409 idempotency_in_progress', async () => {
  await using server = await testServer()
  const { store, clock } = server.deps
  const idempotency = new Idempotency(store, clock)
  const call = {
    project_id: server.key.project_id,
    request_id: 'req_1',
    route: 'POST /v1/batches' as const,
    headers: { 'idempotency-key': 'k' },
    request: {},
  }
  let second: unknown
  const first = await idempotency.once(call, async () => {
    second = await idempotency.once(call, async () => 'never').catch((error: unknown) => error)
    return 'first'
  })
  assert.equal(first.text, 'first')
  assert.equal(Reflect.get(Object(second), 'code'), 'idempotency_in_progress')
  assert.equal((await idempotency.once(call, async () => 'never')).text, 'first')
})

test('a crash during the first call does not block retries', async () => {
  await using server = await testServer()
  const { store, clock } = server.deps
  const call = {
    project_id: server.key.project_id,
    request_id: 'req_1',
    route: 'POST /v1/batches' as const,
    headers: { 'idempotency-key': 'k' },
    request: {},
  }
  await assert.rejects(
    new Idempotency(store, clock).once(call, async () => {
      throw new Error('crash')
    }),
  )
  // Another process, which shares nothing but the database.
  const answer = await new Idempotency(store, clock).once(call, async () => 'done')
  assert.deepEqual(answer, { text: 'done', status: 200, replayed: false })
  assert.equal((await new Idempotency(store, clock).once(call, async () => 'twice')).text, 'done')
})

test('a key on another endpoint is another request', async () => {
  await using server = await testServer()
  const idempotency = new Idempotency(server.deps.store, server.deps.clock)
  const call = {
    project_id: server.key.project_id,
    request_id: 'req_1',
    headers: { 'idempotency-key': 'k' },
    request: {},
  }
  await idempotency.once({ ...call, route: 'POST /v1/batches' }, async () => 'done')
  await assert.rejects(
    idempotency.once({ ...call, route: 'POST /v1/limits' }, async () => 'never'),
    { code: 'idempotency_key_reused' },
  )
})

test('invalid headers are a 400', async () => {
  await using server = await testServer()
  const file = await server.processedFile()
  const cases: [Record<string, string>, string][] = [
    [{ 'idempotency-key': '' }, 'Idempotency-Key'],
    [{ 'idempotency-key': 'x'.repeat(256) }, 'Idempotency-Key'],
    [{ 'idempotency-mode': 'explicit' }, 'Idempotency-Mode'],
  ]
  for (const [headers, param] of cases) {
    const answer = await create(server, file, headers)
    assert.deepEqual([answer.outcome, answer.error.param], ['400 invalid_request', param])
  }
  assert.equal((await create(server, file, { 'idempotency-key': 'x'.repeat(255) })).status, 200)
})

test('a retry of a client library without a key gets the first answer for ten minutes', async () => {
  await using server = await testServer()
  const file = await server.processedFile()
  const resent = { 'x-stainless-retry-count': '1' }
  const first = await create(server, file, {})
  const again = await create(server, file, resent)
  assert.equal(again.text, first.text)
  assert.equal(again.headers.get('idempotency-replayed'), 'true')
  const other = await create(server, file, resent, { body: { metadata: { a: 'b' } } })
  assert.notEqual(other.id, first.id)
  const later = await create(server, file, {})
  assert.equal(
    (await create(server, file, resent)).text,
    later.text,
    'the latest call is the one that is resent',
  )
  await server.clock.advance(KEYLESS_KEPT_MS)
  assert.notEqual((await create(server, file, resent)).id, later.id)
})

test('a key is kept for a day and forgotten afterwards', async () => {
  await using server = await testServer()
  const file = await server.processedFile()
  const headers = { 'idempotency-key': 'job-1' }
  const first = await create(server, file, headers)
  await server.clock.advance(24 * 3_600_000)
  const { store, clock } = server.deps
  assert.equal(await store.write((tx) => forgetIdempotencyKeys(tx, clock.now(), 10)), 0)
  assert.equal((await create(server, file, headers)).text, first.text)
  await server.clock.advance(KEPT_MS)
  const anew = await create(server, file, headers)
  assert.notEqual(anew.id, first.id)
  await server.clock.advance(KEPT_MS)
  assert.equal(await store.write((tx) => forgetIdempotencyKeys(tx, clock.now(), 10)), 1)
})
