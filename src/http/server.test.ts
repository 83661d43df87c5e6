// Tests what every call goes through, whatever its endpoint.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect, Socket } from 'node:net'
import { Readable } from 'node:stream'
import { text } from 'node:stream/consumers'
import { test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { pino } from 'pino'
import { Registry } from 'prom-client'
import { Answer, object, testServer } from '../../test/support/test-server.ts'
import { isId } from '../domain/ids.ts'
import { revokeKey } from '../store/projects.ts'
import { readOwn } from '../store/rows.ts'
import { ReceivedRequest } from './connection/received-request.ts'
import { publicRoute } from './route.ts'
import { buildServer } from './server.ts'

/** Sends bytes on a bare connection and reads until it ends. */
async function sendRaw(port: number, bytes: string): Promise<Answer> {
  const socket = connect(port, '127.0.0.1')
  socket.write(bytes)
  return parse(await text(socket))
}

function parse(raw: string): Answer {
  const [head = '', body = ''] = raw.split('\r\n\r\n')
  const [status = '', ...lines] = head.split('\r\n')
  const pairs = lines.map((line): [string, string] => [line.split(': ')[0] ?? '', line.split(': ')[1] ?? ''])
  return new Answer(Number(status.split(' ')[1]), new Headers(pairs), body)
}

test('every response carries its request ID under both names, errors too', async () => {
  await using server = await testServer()
  for (const [method, path] of [
    ['GET', '/v1/models'],
    ['GET', '/nowhere'],
    ['GET', '/v1/files/file_x'],
    ['GET', '/healthz'],
  ] as const) {
    const answer = await server.call(method, path)
    assert.ok(isId('request', answer.request_id), path)
    assert.equal(answer.headers.get('x-request-id'), answer.request_id)
  }
  assert.ok(isId('request', (await server.call('GET', '/v1/models', { key: null })).request_id))
})

test('an unknown path is a 404, with a key and without', async () => {
  await using server = await testServer()
  assert.equal((await server.call('GET', '/v1/nothing')).outcome, '404 unknown_endpoint')
  assert.equal(
    (await server.call('POST', '/nothing', { key: null, raw: 'x' })).outcome,
    '404 unknown_endpoint',
  )
})

test('a path without the version gets a 404 with the right path', async () => {
  await using server = await testServer()
  const answer = await server.call('GET', '/files')
  assert.equal(answer.outcome, '404 unknown_endpoint')
  assert.equal(answer.error.message, 'There is no GET /files. Did you mean /v1/files?')
  for (const path of [
    '/v1/chat/completions',
    '/chat/completions',
    '/openai/deployments/m/chat/completions',
  ]) {
    const live = await server.call('POST', path, { body: { model: 'sim-1', messages: [] } })
    assert.equal(live.outcome, path.startsWith('/openai') ? '404 unknown_url' : '404 unknown_endpoint')
    assert.match(
      String(live.error.message),
      /in batches only.*POST \/v1\/batches.*"endpoint":"\/v1\/chat\/completions".*"requests"/,
    )
  }
  const embedding = await server.call('POST', '/v1/embeddings', { key: null, body: {} })
  assert.match(String(embedding.error.message), /"endpoint":"\/v1\/embeddings"/)
  assert.equal((await server.call('GET', '/nothing')).error.message, 'There is no GET /nothing.')
})

test('a QUERY is a 405, with a body and without', async () => {
  await using server = await testServer()
  for (const call of [{}, { body: {} }]) {
    const answer = await server.call('QUERY', '/v1/models?limit=1', call)
    assert.deepEqual([answer.outcome, answer.headers.get('allow')], ['405 method_not_allowed', 'GET, HEAD'])
  }
})

test('an unknown Expect header is answered with an ordinary error', async () => {
  await using server = await testServer()
  const head = 'GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\nexpect: 200-ok\r\n\r\n'
  assert.equal((await sendRaw(server.port, head)).outcome, '401 invalid_api_key')
})

test('a known path with another method is a 405 that names the methods', async () => {
  await using server = await testServer()
  const answer = await server.call('PUT', '/v1/files/file_1', { body: {} })
  assert.equal(answer.outcome, '405 method_not_allowed')
  assert.equal(answer.headers.get('allow'), 'DELETE, GET, HEAD')
  assert.equal((await server.call('DELETE', '/v1/batches')).headers.get('allow'), 'GET, HEAD, POST')
  assert.equal((await server.call('OPTIONS', '/v1/models/org/large')).headers.get('allow'), 'GET, HEAD')
})

test('a body that is not JSON is a 400 with the reason', async () => {
  await using server = await testServer()
  const headers = { 'content-type': 'application/json' }
  const broken = await server.call('POST', '/v1/batches', { raw: '{"a":', headers })
  assert.equal(broken.outcome, '400 invalid_json')
  assert.match(String(broken.error.message), /JSON/)
  const empty = await server.call('POST', '/v1/batches', { raw: '', headers })
  assert.equal(empty.outcome, '400 invalid_request')
  assert.equal(empty.error.message, 'The request body must be a JSON object; it is empty.')
  const list = await server.call('POST', '/v1/batches', { body: [] })
  assert.equal(list.error.message, 'The request body must be a JSON object; it is an array.')
})

test('another content type is a 415, a body beyond the limit a 413', async () => {
  await using server = await testServer()
  const type = await server.call('POST', '/v1/batches', {
    raw: 'a=1',
    headers: { 'content-type': 'text/plain' },
  })
  assert.equal(type.outcome, '415 unsupported_media_type')
  assert.match(String(type.error.message), /`Content-Type: application\/json`/)
  const big = await server.call('POST', '/v1/batches', { body: { metadata: 'x'.repeat(1_100_000) } })
  assert.equal(big.outcome, '413 payload_too_large')
})

test('JSON bodies take memory before they are read, and no project takes all of it', async () => {
  await using server = await testServer()
  const { key: other } = await server.issue({ project: 'other' })
  const head = (key: string): string =>
    `POST /v1/limits HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${key}\r\ncontent-type: application/json\r\ncontent-length: 1048576\r\n\r\n{`
  const sockets = Array.from({ length: 20 }, () => connect(server.port, '127.0.0.1'))
  const refused: string[] = []
  const fourRefused = Promise.withResolvers<void>()
  for (const socket of sockets) {
    socket.once('data', (answer: Buffer) => {
      refused.push(parse(answer.toString()).outcome)
      if (refused.length === 4) fourRefused.resolve()
    })
    socket.write(head(server.key.key))
  }
  await fourRefused.promise
  assert.deepEqual([...new Set(refused)], ['503 service_unavailable'])
  const limit = { scope: 'project', metric: 'tokens', amount: 5, window: 'day' }
  assert.equal((await server.call('POST', '/v1/limits', { key: other, body: limit })).status, 200)
  for (const socket of sockets) socket.destroy()
  // The server notices closed connections one after the other.
  let outcome = ''
  while (outcome !== '200') outcome = (await server.call('POST', '/v1/limits', { body: limit })).outcome
})

test('calls without a key have small bodies', async () => {
  await using server = await testServer()
  const body = { api_key: 'x'.repeat(65 * 1024) }
  const headers = { 'x-offpeak-console': '1' }
  const answer = await server.call('POST', '/console/session', { key: null, body, headers })
  assert.equal(answer.outcome, '413 payload_too_large')
})

test('a broken percent-encoding in the URL is a 400', async () => {
  await using server = await testServer()
  const answer = await server.call('GET', '/v1/files/%zz')
  assert.equal(answer.outcome, '400 invalid_request')
  assert.ok(isId('request', answer.request_id))
})

test('input that is not HTTP gets the same error envelope', async () => {
  await using server = await testServer()
  const answer = await sendRaw(server.port, 'HELLO\r\n\r\n')
  assert.equal(answer.outcome, '400 invalid_request')
  assert.ok(isId('request', answer.request_id))
  const headers = await sendRaw(server.port, `GET / HTTP/1.1\r\nx: ${'y'.repeat(20_000)}\r\n\r\n`)
  assert.equal(headers.outcome, '400 invalid_request')
})

test('headers that never end are a 408', async () => {
  await using server = await testServer({ timeouts: { headersMs: 50 } })
  const answer = await sendRaw(server.port, 'GET / HTTP/1.1\r\nhost:')
  assert.equal(answer.outcome, '408 request_timeout')
})

test('a body that arrives too slowly is a 408', async () => {
  await using server = await testServer()
  for (const [path, headers, body] of [
    ['/v1/batches', 'content-type: application/json\r\ncontent-length: 1000', '{'],
    ['/v1/batches', 'content-type: application/json\r\ntransfer-encoding: chunked', '1\r\n{\r\n'],
    ['/v1/messages/batches', 'content-type: application/json\r\ncontent-length: 1000', '{"requests":['],
    ['/v1/files', 'content-type: multipart/form-data; boundary=b\r\ncontent-length: 1000', '--b'],
  ] as const) {
    const socket = connect(server.port, '127.0.0.1')
    const answered = text(socket)
    socket.write(
      `POST ${path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${server.key.key}\r\n${headers}\r\n\r\n${body}`,
    )
    // The watch has begun once its alarm is set.
    while (server.clock.waiting === 0) await setImmediate()
    await server.clock.advance(30_000)
    await server.clock.advance(30_000)
    const answer = parse(await answered)
    assert.equal(answer.outcome, '408 request_timeout', path)
    assert.ok(isId('request', answer.request_id))
    assert.equal(server.clock.waiting, 0)
  }
})

/** The beginning of a form with a file, up to the file's content. */
const FORM =
  '--b\r\ncontent-disposition: form-data; name="file"; filename="a.jsonl"\r\ncontent-type: application/octet-stream\r\n\r\n'

test('a body in tiny pieces ends early with an error, at every endpoint that reads one', async () => {
  await using server = await testServer()
  const upload = await server.call('POST', '/v1/uploads', {
    body: { purpose: 'batch', filename: 'a.jsonl', bytes: 100_000, mime_type: 'text/plain' },
  })
  const key = `\r\nauthorization: Bearer ${server.key.key}`
  const form = 'multipart/form-data; boundary=b'
  for (const [path, sender, type, begin] of [
    ['/console/session', '', 'application/json', '{"api_key":"'],
    ['/v1/batches', key, 'application/json', '{"x":"'],
    ['/v1/webhooks', key, 'application/json', '{"x":"'],
    ['/v1/messages/batches', key, 'application/json', '{"requests":[{"custom_id":"'],
    ['/v1/files', key, form, FORM],
    [`/v1/uploads/${upload.json.id}/parts`, key, form, FORM.replace('"file"', '"data"')],
  ] as const) {
    const socket = connect(server.port, '127.0.0.1')
    const answered = once(socket, 'data')
    const chunks = '1\r\nx\r\n'.repeat(5_000)
    socket.write(
      `POST ${path} HTTP/1.1\r\nhost: x${sender}\r\ncontent-type: ${type}\r\ntransfer-encoding: chunked\r\n\r\n${begin.length.toString(16)}\r\n${begin}\r\n${chunks}`,
    )
    const answer = parse(String(await answered))
    assert.equal(answer.outcome, '400 invalid_request', path)
    assert.match(String(answer.error.message), /in pieces of less than 32 bytes/, path)
    // The rest stays with its sender until the connection is closed.
    const closed = once(socket, 'close')
    socket.on('error', () => {})
    await server.clock.advance(10_000)
    await closed
  }
  assert.equal((await server.call('GET', '/v1/models')).status, 200)
})

test('pieces that their reader has not taken are held as one', () => {
  const request = new ReceivedRequest(new Socket())
  for (let i = 0; i < 900; i++) request.push(Buffer.from('x'))
  assert.equal(request.readableLength, 0)
  assert.equal(String(request.read()), 'x'.repeat(900))
})

test('the sender of a large wrong body reads its error, wherever the mistake is', async () => {
  await using server = await testServer({ file_bytes_max: 100 * 2 ** 20 })
  const request = `{"custom_id":"a","params":{"x":"${'x'.repeat(2 ** 20)}"}}`
  const many = Array(12).fill(request).join(',')
  const wrong = `{"requests":[7,${many}]}`
  for (const raw of [wrong, `{"requests":[${many},7,${many}]}`, `{"requests":[${many}]]`]) {
    const headers = { 'content-type': 'application/json' }
    const answer = await server.call('POST', '/v1/messages/batches', { raw, headers })
    assert.equal(answer.status, 400, answer.text.slice(0, 200))
  }
  const form = { 'content-type': 'multipart/form-data; boundary=b' }
  const file = await server.call('POST', '/v1/files', {
    raw: `${FORM.replace('"file"', '"other"')}${wrong}\r\n--b--`,
    headers: form,
  })
  assert.equal(file.outcome, '400 invalid_request')
  const packed = { ...form, 'content-encoding': 'gzip' }
  const broken = await server.call('POST', '/v1/files', { raw: wrong, headers: packed })
  assert.equal(broken.outcome, '400 invalid_multipart')
})

test('an internal error is a 500 that does not show its text', async () => {
  await using server = await testServer({
    ready: async () => {
      throw new Error('secret detail')
    },
  })
  const answer = await server.call('GET', '/readyz')
  assert.equal(answer.outcome, '500 internal_error')
  assert.doesNotMatch(answer.text, /secret/)
})

test('readiness is a 503 with Retry-After until the service is ready', async () => {
  let ready = false
  await using server = await testServer({ ready: async () => ready })
  const answer = await server.call('GET', '/readyz', { key: null })
  assert.equal(answer.outcome, '503 service_unavailable')
  assert.equal(answer.headers.get('retry-after'), '5')
  ready = true
  assert.equal((await server.call('GET', '/readyz', { key: null })).status, 200)
  assert.equal((await server.call('GET', '/healthz', { key: null })).status, 200)
})

test('readiness says since when no worker has run', async () => {
  let since: number | null = null
  await using server = await testServer({ noWorkerSince: () => since })
  assert.equal(
    (await server.call('GET', '/readyz', { key: null })).text,
    '{"status":"ready","version":"0.0.0-test","no_worker_since":null}',
  )
  since = 1_767_225_600_999
  const answer = await server.call('GET', '/readyz', { key: null })
  assert.deepEqual([answer.status, JSON.parse(answer.text).no_worker_since], [200, 1_767_225_600])
})

test('a path of any length is looked up and not found', async () => {
  await using server = await testServer()
  assert.equal((await server.call('GET', `/v1/files/${'x'.repeat(9000)}`)).outcome, '404 file_not_found')
})

test('a call with a key is recorded before it is answered, whatever its result', async () => {
  await using server = await testServer()
  const { read } = server.deps.store
  for (const [method, path, status] of [
    ['GET', '/v1/models?limit=1', 200],
    ['GET', '/v1/nowhere', 404],
    ['POST', '/v1/batches', 400],
    ['DELETE', '/v1/files/file_1', 404],
  ] as const) {
    const answer = await server.call(method, path, method === 'POST' ? { body: {} } : {})
    const row = await readOwn(read, 'http_requests', server.key.project_id, answer.request_id)
    assert.equal(row?.status, status)
    assert.equal(row.path, path.split('?')[0])
    assert.equal(row.response, method === 'GET' ? null : answer.text)
  }
})

test('content that cannot be read is recorded as the error that is answered', async () => {
  await using server = await testServer()
  const { read } = server.deps.store
  const { id } = await server.upload()
  for await (const { key } of server.blobs.list('')) await server.blobs.delete(key)
  const answer = await server.call('GET', `/v1/files/${id}/content`)
  assert.equal(answer.outcome, '500 content_damaged')
  const row = await readOwn(read, 'http_requests', server.key.project_id, answer.request_id)
  assert.equal(row?.status, 500)
})

test('a call without a valid key is recorded for operators only', async () => {
  await using server = await testServer()
  const operator = (await server.issue({ scopes: ['operator'] })).key
  const unknown = `opk_local_${'0'.repeat(26)}_${'x'.repeat(43)}`
  const broken = await sendRaw(server.port, 'HELLO\r\n\r\n')
  for (const [answer, method, path, key_id] of [
    [await server.call('GET', '/v1/models?limit=1', { key: null }), 'GET', '/v1/models', null],
    [
      await server.call('POST', '/v1/batches', { key: unknown }),
      'POST',
      '/v1/batches',
      `key_${'0'.repeat(26)}`,
    ],
    [await server.call('GET', '/nowhere', { key: null }), 'GET', '/nowhere', null],
    [await server.call('DELETE', '/healthz', { key: null }), 'DELETE', '/healthz', null],
    [await server.call('GET', '/v1/files/%zz', { key: null }), 'GET', '/v1/files/%zz', null],
    [broken, '', '', null],
  ] as const) {
    const where = `/v1/requests/${answer.request_id}`
    assert.equal((await server.call('GET', where)).outcome, '404 request_not_found')
    const { json } = await server.call('GET', where, { key: operator })
    assert.deepEqual(
      [json.status_code, json.method, json.path, json.api_key_id, json.address],
      [answer.status, method, path, key_id, '127.0.0.1'],
    )
  }
})

test('a slow call without a key is recorded with its address', async () => {
  await using server = await testServer()
  const socket = connect(server.port, '127.0.0.1')
  const answered = text(socket)
  socket.write(
    'POST /console/session HTTP/1.1\r\nhost: x\r\nx-offpeak-console: 1\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{',
  )
  while (server.clock.waiting === 0) await setImmediate()
  await server.clock.advance(30_000)
  await server.clock.advance(30_000)
  assert.equal(parse(await answered).outcome, '408 request_timeout')
  const { read } = server.deps.store
  let rows: { status: number; address: string }[] = []
  for (let turns = 0; rows.length === 0 && turns < 500; turns++) {
    await setImmediate()
    rows = await read.selectFrom('anonymous_requests').select(['status', 'address']).execute()
  }
  assert.deepEqual(
    rows.map(({ status, address }) => [status, address]),
    [[408, '127.0.0.1']],
  )
})

test('a broken URL is recorded for the key that sent it', async () => {
  await using server = await testServer()
  for (const path of ['/v1/files/%zz', '/v1/batches/%ff/cancel', '/%']) {
    const answer = await server.call('GET', path)
    assert.equal(answer.outcome, '400 invalid_request', path)
    const { json } = await server.call('GET', `/v1/requests/${answer.request_id}`)
    assert.deepEqual([json.status_code, json.path], [400, path])
  }
})

test('an error response has a Content-Language', async () => {
  await using server = await testServer()
  const answer = await server.call('GET', '/v1/files/file_x')
  assert.deepEqual(
    [answer.headers.get('content-language'), answer.headers.get('vary')],
    ['en', 'accept-language'],
  )
})

test('concurrent calls are all recorded', async () => {
  await using server = await testServer()
  const answers = await Promise.all(Array.from({ length: 40 }, () => server.call('GET', '/v1/models')))
  for (const { request_id } of answers)
    assert.ok(await readOwn(server.deps.store.read, 'http_requests', server.key.project_id, request_id))
})

test('what a call takes is free again if its caller left before it was admitted', async () => {
  await using server = await testServer({ requests_per_minute: 100_000 })
  const file = (await server.upload()).id
  const { store } = server.deps
  const commit = store.writeAsyncCommit
  const gate = Promise.withResolvers<void>()
  store.writeAsyncCommit = async (change) => {
    await gate.promise
    return await commit(change)
  }
  await server.clock.advance(60_000)
  const heads = [
    'POST /v1/batches HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: 1000000',
    'GET /v1/live HTTP/1.1\r\naccept: text/event-stream',
    `GET /v1/files/${file}/content HTTP/1.1`,
  ]
  const calls = heads.flatMap((head) => Array.from({ length: 20 }, () => head))
  const closed: Promise<unknown>[] = []
  const arrived = Promise.withResolvers<void>()
  server.app.server.on('request', (_request, answer) => {
    closed.push(once(answer, 'close'))
    if (closed.length === calls.length) arrived.resolve()
  })
  const sockets = calls.map((head) => {
    const socket = connect(server.port, '127.0.0.1')
    socket.write(`${head}\r\nhost: x\r\nauthorization: Bearer ${server.key.key}\r\n\r\n`)
    return socket
  })
  await arrived.promise
  // A body that ends early would be answered, and its record would wait.
  for (const socket of sockets) socket.resetAndDestroy()
  await Promise.all(closed)
  gate.resolve()
  assert.equal((await server.call('POST', '/v1/batches', { body: {} })).outcome, '400 invalid_request')
  const { json } = await server.call('GET', '/v1/quotas')
  const { downloads, streams } = object(json.quotas)
  assert.deepEqual([object(downloads).used, object(streams).used], [0, 0])
})

test('metrics count every call by endpoint and status; without a registry there is no such endpoint', async () => {
  const metrics = new Registry()
  await using server = await testServer({ metrics })
  await server.call('GET', '/v1/files/file_1')
  await server.call('GET', '/v1/files/file_2')
  await server.call('GET', '/nowhere')
  assert.equal((await server.call('GET', '/metrics', { key: null })).status, 401)
  assert.equal((await server.call('GET', '/metrics')).outcome, '403 missing_scope')
  const { key } = await server.issue({ scopes: ['operator'] })
  const { text } = await server.call('GET', '/metrics', { key })
  assert.match(text, /_count\{method="GET",route="\/v1\/files\/:file_id",status="404"\} 2/)
  assert.match(text, /_count\{method="GET",route="none",status="404"\} 1/)
  const again = await server.call('GET', '/metrics', { key })
  assert.ok(again.text === text, 'it is made once a second')
  await using bare = await testServer()
  assert.equal((await bare.call('GET', '/metrics')).status, 404)
})

test('metrics on a port of their own are no endpoint of the API', async () => {
  await using server = await testServer({ metrics: new Registry(), metrics_elsewhere: true })
  assert.equal((await server.call('GET', '/metrics')).status, 404)
})

test('no response may be cached or sniffed, whatever its status', async () => {
  await using server = await testServer()
  for (const [method, path, key] of [
    ['GET', '/v1/models', undefined],
    ['GET', '/v1/files/none', undefined],
    ['GET', '/v1/files', null],
    ['POST', '/v1/batches', undefined],
    ['GET', '/nowhere', undefined],
    ['GET', '/healthz', null],
    ['GET', '/v1/files/%zz', undefined],
  ] as const) {
    const { headers } = await server.call(method, path, { key })
    assert.equal(headers.get('x-content-type-options'), 'nosniff', path)
    assert.equal(headers.get('cache-control'), 'no-store', path)
  }
})

test('a connection that was opened in advance does not keep the service from closing', async () => {
  const server = await testServer()
  const socket = connect(Number(new URL(server.url).port), '127.0.0.1')
  await once(socket, 'connect')
  // A call on another connection has been answered: the server has noticed both.
  await fetch(`${server.url}/healthz`).then((response) => response.text())
  const ended = once(socket.resume(), 'close')
  await server[Symbol.asyncDispose]()
  await ended
})

test('an answer that breaks off is logged, whatever it is', async () => {
  await using server = await testServer()
  const lines: string[] = []
  const log = pino({}, { write: (line) => void lines.push(line) })
  await using app = buildServer({ ...server.deps, log })
  publicRoute(app, 'GET /broken', { handler: (_, reply) => reply.send(Readable.from(brokenOff())) })
  const url = await app.listen({ host: '127.0.0.1', port: 0 })
  await assert.rejects((await fetch(`${url}/broken`)).text())
  const told = lines.map((line) => JSON.parse(line)).filter(({ level }) => level === 50)
  assert.deepEqual(
    told.map(({ msg, err, path, request_id }) => [msg, err.message, path, isId('request', request_id)]),
    [['an answer broke off', 'the disk is gone', '/broken', true]],
  )
})

test('a HEAD of an answer that is a stream begins no stream', async () => {
  const logged: string[] = []
  await using server = await testServer({
    log: pino({ level: 'error' }, { write: (row) => void logged.push(row) }),
  })
  const { id } = (await server.createBatch(await server.processedFile())).json
  const { waiting } = server.clock
  const headers = { accept: 'text/event-stream' }
  for (const path of ['/v1/live', `/v1/batches/${id}/results`, '/v1/batches?format=csv'])
    assert.equal((await server.call('HEAD', path, { headers })).status, 200, path)
  assert.equal(server.clock.waiting, waiting, 'nobody follows the batches')
  assert.deepEqual(logged, [])
})

test('a stream of live updates ends with its key, also for a reader that is behind', async () => {
  await using server = await testServer()
  await using app = buildServer(server.deps)
  let isReading = false
  let read = (): void => {}
  app.addHook('onRequest', async (_, { raw }) => {
    const write = raw.write.bind(raw)
    Object.assign(raw, { write: (piece: Buffer) => write(piece) && isReading })
    read = () => void raw.emit('drain')
  })
  const url = await app.listen({ host: '127.0.0.1', port: 0 })
  const { id, key } = await server.issue()
  const headers = { accept: 'text/event-stream', authorization: `Bearer ${key}` }
  const response = await fetch(`${url}/v1/live`, { headers })
  const body = { scope: 'project', metric: 'tokens', amount: 1, window: 'day' }
  const passed = async (): Promise<void> => {
    await server.call('POST', '/v1/limits', { body })
    await server.clock.advance(2_000)
  }
  await passed()
  await server.deps.store.write((tx) => revokeKey(tx, id, server.clock.now()))
  await passed()
  await passed()
  isReading = true
  read()
  assert.equal((await response.text()).split('event: update\n').length - 1, 3)
})

test('a stream of live updates that a call opens while the server closes ends at once', async () => {
  await using server = await testServer()
  await using app = buildServer(server.deps)
  const isClosing = Promise.withResolvers<void>()
  let closed: Promise<unknown> = Promise.resolve()
  app.addHook('preClose', async () => isClosing.resolve())
  app.addHook('onRequest', async () => {
    closed = app.close()
    await isClosing.promise
  })
  const url = await app.listen({ host: '127.0.0.1', port: 0 })
  const headers = { accept: 'text/event-stream', authorization: `Bearer ${server.key.key}` }
  const response = await fetch(`${url}/v1/live`, { headers })
  assert.match(await response.text(), /^event: update\n/)
  await closed
})

async function* brokenOff(): AsyncGenerator<string> {
  yield 'a beginning'
  await setImmediate()
  throw new Error('the disk is gone')
}
