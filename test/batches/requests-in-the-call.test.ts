// A batch that is created in one call, with its lines.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect } from 'node:net'
import { test } from 'node:test'
import { createKey } from '../../src/admin/create-key.ts'
import { HeavyReads } from '../../src/http/response/long-calls.ts'
import { echo, send, testUpstream } from '../fakes/upstream.ts'
import { configFor, TestService, type WireBatch, type WireFile, type WireLine } from '../service.ts'
import { type TestServer, testServer } from '../support/test-server.ts'

const CHAT = '/v1/chat/completions'
const ORDER = { endpoint: CHAT, completion_window: '24h' }
const MIB = 1024 * 1024

function request(text: string) {
  return { body: { model: 'm', messages: [{ role: 'user', content: text }], max_tokens: 5 } }
}

interface Listed {
  data: WireFile[]
}

test('lines in the call become a file like any other, and are sent byte for byte', async () => {
  await using upstream = await testUpstream(echo)
  await using service = await TestService.start(configFor(upstream.base_url))
  const body = '{"max_tokens":5.0,"model":"m", "messages":[{"role":"user","content":"\\u0061é"}]}'
  const text = `{"endpoint":"${CHAT}","requests":[{"body":${body}},\n{"custom_id":"mine","body":${body}}],"completion_window":"24h","metadata":{"entity":"user:1"}}`
  const answer = await service.request('POST', '/v1/batches', text, { 'content-type': 'application/json' })
  const batch = (await answer.json()) as WireBatch
  assert.deepEqual([answer.status, batch.request_counts.total], [200, 2])
  const ended = await service.ended(batch.id)
  assert.deepEqual([ended.status, ended.request_counts.completed], ['completed', 2])
  const { data } = await service.json<Listed>('GET', '/v1/files?purpose=batch')
  const [file] = data
  assert.deepEqual(
    [data.length, file?.id, file?.filename, file?.purpose, file?.status, file?.line_count],
    [1, batch.input_file_id, 'requests.jsonl', 'batch', 'processed', 2],
  )
  const head = `"method":"POST","url":"${CHAT}","body":${body}`
  assert.equal(
    await service.content(batch.input_file_id),
    `{"custom_id":"request-1",${head}}\n{"method":"POST","url":"${CHAT}","custom_id":"mine","body":${body}}\n`,
  )
  assert.deepEqual(
    upstream.calls.map(({ bytes }) => bytes.toString()),
    [body, body],
  )
  const results = await service.lines(ended.output_file_id)
  assert.deepEqual(results.map(({ custom_id }) => custom_id).sort(), ['mine', 'request-1'])
})

/** By what a body says of a stream: what its server is sent, which takes a boolean, and options or null. */
const UNSTREAMED = {
  '"stream":false': '"stream":false',
  '"stream": null': '"stream": false',
  '"stream_options":null,"stream":false': '"stream_options":null,"stream":false',
  '"stream_options":false': '"stream_options":null',
}

for (const [name, yaml] of [
  ['as they are', ''],
  ['with a priority', ', priority: deadline'],
] as const)
  test(`lines that ask for no stream run from every door, and are sent ${name}`, async () => {
    await using upstream = await testUpstream(echo)
    await using service = await TestService.start(`
models:
  - {id: m, endpoints: [chat/completions, messages], upstreams: [{type: openai, base_url: "${upstream.base_url}"${yaml}}]}`)
    const given = Object.keys(UNSTREAMED).map((stream, i) => ({
      id: `l${i}`,
      body: `{"model":"m",${stream},"max_tokens":5,"messages":[{"role":"user","content":"${i}"}]}`,
    }))
    const sent = Object.entries(UNSTREAMED).map(([from, to], i) => {
      const body = given[i]!.body.replace(from, to)
      return yaml === '' ? body : `${body.slice(0, -1)},"priority":5}`
    })
    const json = { 'content-type': 'application/json' }
    const lines = given.map(
      ({ id, body }) => `{"custom_id":"${id}","method":"POST","url":"${CHAT}","body":${body}}`,
    )
    const fromFile = await service.create((await service.upload(lines.join('\n'))).id)
    const inline = await service.request(
      'POST',
      '/v1/batches',
      `{"endpoint":"${CHAT}","completion_window":"24h","requests":[${lines}]}`,
      json,
    )
    const messages = await service.request(
      'POST',
      '/v1/messages/batches',
      `{"requests":[${given.map(({ id, body }) => `{"custom_id":"${id}","params":${body}}`)}]}`,
      json,
    )
    const ids = [fromFile.id, ((await inline.json()) as WireBatch).id]
    const { id } = (await messages.json()) as { id: string }
    for (const batch of [...ids, id.replace(/^msgbatch_/, 'batch_')])
      assert.deepEqual((await service.ended(batch)).request_counts, { total: 4, completed: 4, failed: 0 })
    assert.deepEqual(
      upstream.calls.map(({ bytes }) => bytes.toString()).sort(),
      [...sent, ...sent, ...sent].sort(),
    )
  })

interface WithResults extends WireBatch {
  results?: WireLine[]
}

test('a small job is one call, and its results come with the answer', async () => {
  await using upstream = await testUpstream((call) =>
    call.body.messages[0]?.content === 'b'
      ? send(call.response, 400, '{"error":{"message":"no"}}')
      : echo(call),
  )
  await using service = await TestService.start(configFor(upstream.base_url))
  const order = { ...ORDER, requests: ['a', 'b', 'c'].map(request), wait: '60s' }
  const answer = await service.request('POST', '/v1/batches', order)
  const text = await answer.text()
  const batch = JSON.parse(text) as WithResults
  assert.deepEqual([batch.status, batch.request_counts.completed], ['completed', 2])
  const { results, ...rest } = batch
  assert.deepEqual(
    results?.map(({ custom_id, error }) => [custom_id, error?.code]),
    [
      ['request-1', undefined],
      ['request-2', 'upstream_rejected'],
      ['request-3', undefined],
    ],
  )
  // Byte for byte as in the files.
  for (const id of [batch.output_file_id, batch.error_file_id])
    for (const line of (await service.content(id)).trimEnd().split('\n')) assert.ok(text.includes(line))
  assert.deepEqual(rest, await service.get(batch.id))
  // Answers of the model are not part of the record of the call.
  const record = await service.json<{ response: object }>(
    'GET',
    `/v1/requests/${answer.headers.get('x-service-request-id')}`,
  )
  assert.deepEqual(record.response, rest)
})

test('results that are large, or that the key may not read, do not come with the answer', async () => {
  await using upstream = await testUpstream(echo)
  await using service = await TestService.start(configFor(upstream.base_url))
  const create = (text: string) =>
    service.json<WithResults>('POST', '/v1/batches', { ...ORDER, requests: [request(text)], wait: '60s' })
  const large = await create('x'.repeat(2 * MIB))
  assert.deepEqual([large.status, large.results], ['completed', undefined])
  const { store } = service.stores
  const scopes = ['batches:write', 'files:write'] as const
  const { key } = await createKey(store, store.clock, 'local', { project: 'p', plan: 'payg', scopes })
  service.key = key
  const writer = await create('a')
  assert.deepEqual([writer.status, writer.results], ['completed', undefined])
})

test('results that were deleted do not come with the answer to a call that is repeated later', async () => {
  await using upstream = await testUpstream(echo)
  await using service = await TestService.start(configFor(upstream.base_url))
  const order = { ...ORDER, requests: [request('a'), { body: { model: 'none' } }], wait: '60s' }
  const create = async (): Promise<WithResults> => {
    const answer = await service.request('POST', '/v1/batches', order, { 'idempotency-key': 'k' })
    return JSON.parse(await answer.text())
  }
  const { results, output_file_id } = await create()
  assert.equal(results?.length, 2)
  await service.request('DELETE', `/v1/files/${output_file_id}`)
  const again = await create()
  assert.deepEqual([again.status, again.results], ['completed', undefined])
})

test('results that come with the answer are a large read like any other', async (t) => {
  await using upstream = await testUpstream(echo)
  await using service = await TestService.start(configFor(upstream.base_url))
  const opened = t.mock.method(HeavyReads.prototype, 'open')
  const order = { ...ORDER, requests: [request('a')], wait: '60s' }
  const { results } = await service.json<WithResults>('POST', '/v1/batches', order)
  assert.deepEqual([results?.length, opened.mock.callCount()], [1, 1])
})

test('lines that do not validate make a batch that fails and names them', async () => {
  await using service = await TestService.start('models: [{id: m, upstreams: [{type: sim}]}]')
  const requests = [request('a'), 7, { ...request('b'), method: 'GET' }, { custom_id: 'request-1', body: {} }]
  const made = await service.json<WireBatch>('POST', '/v1/batches', { ...ORDER, requests })
  const failed = await service.ended(made.id)
  const { data } = failed.errors as { data: { line: number; code: string }[] }
  assert.equal(failed.status, 'failed')
  assert.deepEqual(
    data.map(({ line, code }) => [line, code]),
    [
      [2, 'not_an_object'],
      [3, 'invalid_method'],
      [4, 'duplicate_custom_id'],
    ],
  )
})

test('a batch of lines that no worker validates yet waits for one', async () => {
  await using server = await testServer()
  const body = { ...ORDER, requests: [request('a')] }
  const made = await server.call('POST', '/v1/batches', { body })
  assert.deepEqual([made.status, made.json.status], [200, 'validating'])
  assert.ok(server.woken() > 0)
})

test('a batch has one input; a dry run needs a file', async () => {
  await using server = await testServer()
  const requests = [request('a')]
  for (const [path, body, param, words] of [
    ['/v1/batches', { ...ORDER, requests, input_file_id: 'file_1' }, 'requests', /one input/],
    ['/v1/batches', ORDER, 'input_file_id', /`requests`/],
    ['/v1/batches', { ...ORDER, requests: [] }, 'requests', /1 to 10000/],
    ['/v1/batches', { ...ORDER, requests: 'x' }, 'requests', /an array/],
    ['/v1/batches', { ...ORDER, requests: null }, 'requests', /an array/],
    ['/v1/batches', { ...ORDER, endpoint: 'x', requests }, 'endpoint', /one of/],
    [
      '/v1/batches',
      { ...ORDER, endpoint: 'x', requests, reask: { max: 1, mode: 'repeat' } },
      'endpoint',
      /one of/,
    ],
    ['/v1/batches?dry_run=true', { ...ORDER, requests }, 'requests', /needs a file/],
  ] as const) {
    const answer = await server.call('POST', path, { body })
    assert.deepEqual([answer.outcome, answer.error.param], ['400 invalid_request', param])
    assert.match(String(answer.error.message), words)
  }
  const late = await server.call('POST', '/v1/batches', {
    body: { ...ORDER, requests, completion_window: '4h' },
  })
  assert.equal(late.outcome, '403 plan_lacks_feature')
  assert.deepEqual((await server.call('GET', '/v1/files')).data, [])
})

test('lines in the call need the scope of an upload, and its quotas', async () => {
  await using server = await testServer()
  const { key } = await server.issue({ scopes: ['batches:write'] })
  const body = { ...ORDER, requests: [request('a')] }
  const refused = await server.call('POST', '/v1/batches', { key, body })
  assert.equal(refused.outcome, '403 missing_scope')
  assert.match(String(refused.error.message), /files:write/)

  await using service = await TestService.start(
    'models: [{id: m, upstreams: [{type: sim}]}]\nplans: {payg: {quotas: {stored_bytes: 1KiB}}}',
  )
  const large = { ...ORDER, requests: [request('x'.repeat(2000))] }
  const full = await service.request('POST', '/v1/batches', large)
  const { error } = (await full.json()) as { error: { code: string; quota: string } }
  assert.deepEqual([full.status, error.code, error.quota], [429, 'quota_exceeded', 'stored_bytes'])
  const none = await service.json<Listed>('GET', '/v1/files')
  assert.deepEqual(none.data, [])
})

test('without a batch there is no file', async () => {
  await using service = await TestService.start(
    'models: [{id: m, upstreams: [{type: sim}]}]\nplans: {payg: {quotas: {queued_lines: 1}}}',
  )
  const body = { ...ORDER, requests: [request('a'), request('b')] }
  assert.equal((await service.request('POST', '/v1/batches', body)).status, 429)
  assert.deepEqual((await service.json<Listed>('GET', '/v1/files')).data, [])
})

test('the same lines under one Idempotency-Key make one batch and one file', async () => {
  await using server = await testServer()
  const headers = { 'idempotency-key': 'job' }
  const body = { ...ORDER, requests: [request('a')] }
  const first = await server.call('POST', '/v1/batches', { body, headers })
  const again = await server.call('POST', '/v1/batches', { body, headers })
  assert.deepEqual([again.text, again.headers.get('idempotency-replayed')], [first.text, 'true'])
  const other = { ...ORDER, requests: [request('b')] }
  const reused = await server.call('POST', '/v1/batches', { body: other, headers })
  assert.equal(reused.outcome, '409 idempotency_key_reused')
  // Nothing was stored for the others, not even for a while.
  const files = await server.deps.store.read.selectFrom('files').select('id').execute()
  assert.deepEqual(
    files.map(({ id }) => id),
    [first.json.input_file_id],
  )
})

test('a call beyond the limit is a 413 before it is read; the fields beside the lines stay small', async () => {
  await using server = await testServer({ file_bytes_max: 64 * MIB })
  const lines = (bytes: number) => ({ ...ORDER, requests: [request('x'.repeat(bytes))] })
  const large = await server.call('POST', '/v1/batches', { body: lines(8 * MIB) })
  assert.equal(large.status, 200)
  const metadata = await server.call('POST', '/v1/batches', {
    body: { ...ORDER, requests: [request('a')], metadata: { a: 'x'.repeat(2 * MIB) } },
  })
  assert.equal(metadata.outcome, '413 payload_too_large')

  // Told by its head alone.
  assert.match(await sent(server, `content-length: ${32 * MIB + 1}\r\n\r\n{`), /^HTTP\/1.1 413 /)
  // Nobody has said how long it is.
  const unknown = await sent(server, `transfer-encoding: chunked\r\n\r\n${chunk(' '.repeat(MIB + 1))}`)
  assert.match(unknown, /^HTTP\/1.1 413 /)
  assert.match(unknown, /Content-Length/)
  const json = JSON.stringify(lines(1000))
  const small = await sent(server, `transfer-encoding: chunked\r\n\r\n${chunk(json)}0\r\n\r\n`)
  assert.match(small, /^HTTP\/1.1 200 /)
})

test('one project has one large call in memory, and leaves room for small ones and for others', async () => {
  await using server = await testServer({ file_bytes_max: 64 * MIB })
  const { key: other } = await server.issue({ project: 'other' })
  const body = { ...ORDER, requests: [request('x'.repeat(20 * MIB))] }
  // It has sent its head only: it may still take as much as it has announced.
  const socket = connect(server.port, '127.0.0.1')
  socket.write(`${head(server)}content-length: ${32 * MIB}\r\n\r\n{`)
  let refused = await server.call('POST', '/v1/batches', { body })
  while (refused.status === 200) refused = await server.call('POST', '/v1/batches', { body })
  assert.equal(refused.outcome, '503 service_unavailable')
  const small = { ...ORDER, requests: [request('a')] }
  assert.equal((await server.call('POST', '/v1/batches', { body: small })).status, 200)
  assert.equal((await server.call('POST', '/v1/batches', { body, key: other })).status, 200)
  socket.destroy()
})

function chunk(text: string): string {
  return `${text.length.toString(16)}\r\n${text}\r\n`
}

function head({ key }: TestServer): string {
  return `POST /v1/batches HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${key.key}\r\ncontent-type: application/json\r\n`
}

/** The beginning of the answer to a call with this rest of its head, and this body. */
async function sent(server: TestServer, rest: string): Promise<string> {
  const socket = connect(server.port, '127.0.0.1')
  try {
    socket.write(head(server) + rest)
    const [answer] = await once(socket, 'data')
    return String(answer)
  } finally {
    socket.destroy()
  }
}
