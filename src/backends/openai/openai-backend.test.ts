import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type IncomingMessage, type RequestListener, type ServerResponse } from 'node:http'
import { createServer as createTlsServer } from 'node:https'
import { createServer as createTcpServer, type Socket } from 'node:net'
import { buffer } from 'node:stream/consumers'
import test, { type TestContext } from 'node:test'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { getCACertificates, setDefaultCACertificates, type TLSSocket } from 'node:tls'
import { cert, key } from '../../../test/fakes/certificate.ts'
import { sendTo } from '../../../test/fakes/scripted-backend.ts'
import { listen } from '../../../test/support/listen.ts'
import { freePort } from '../../engines/engine-access.ts'
import type { BackendCall, BackendResult } from '../backend.ts'
import { type OpenAiBackendOptions, openaiBackend } from './openai-backend.ts'

const body = Buffer.from('{"model":"m","messages":[{"role":"user","content":"grüße"}]}')
const REQUEST: BackendCall = { endpoint: '/v1/chat/completions', project_id: 'p', body }
const completion = '{"choices":[{"message":{"content":"hi"}}]}'

/** An upstream that answers with `handler`, closed when the test ends. */
async function serve(t: TestContext, handler: RequestListener): Promise<string> {
  const { url, close } = await listen(createServer(handler))
  t.after(close)
  return `${url}/v1`
}

/** An upstream that speaks raw TCP. */
async function serveRaw(t: TestContext, handler: (socket: Socket) => void): Promise<string> {
  const server = createTcpServer((socket) => handler(socket.on('error', () => {})))
  const { url, close } = await listen(server)
  t.after(close)
  return `${url}/v1`
}

/** A server over TLS, whose answer has several records. */
async function serveTls(t: TestContext, onConnection: (socket: TLSSocket) => void): Promise<string> {
  const answer = JSON.stringify({ choices: [{ message: { content: 'ü'.repeat(60_000) } }] })
  const server = createTlsServer({ key, cert }, (request, response) => {
    request.resume().on('end', () => response.end(answer))
  })
  const { port, close } = await listen(server.on('secureConnection', onConnection))
  t.after(close)
  return `https://localhost:${port}/v1`
}

function connect(t: TestContext, base_url: string, options: Partial<OpenAiBackendOptions> = {}) {
  const backend = openaiBackend({
    name: 'upstream',
    base_url,
    timeout_ms: 10_000,
    connections_max: 4,
    ...options,
  })
  t.after(() => backend.close())
  return backend
}

function expectFailed(result: BackendResult, code: string, reason: RegExp): void {
  assert.ok(result.kind === 'failed', JSON.stringify(result))
  assert.equal(result.code, code)
  assert.match(result.reason, reason)
}

function operatorReasonOf(result: BackendResult): string {
  return String(result.kind === 'failed' && result.operatorReason)
}

test('the very bytes go out, with their length and our headers', async (t) => {
  const seen: { url?: string; headers?: IncomingMessage['headers']; bytes?: Buffer } = {}
  const base_url = await serve(t, async (request, response) => {
    Object.assign(seen, { url: request.url, headers: request.headers, bytes: await buffer(request) })
    response.end(completion)
  })
  // A view into a larger buffer, like the lines of a chunk.
  const chunk = Buffer.concat([Buffer.from('before '), body, Buffer.from(' after')])
  const view = new Uint8Array(chunk.buffer, chunk.byteOffset + 7, body.length)
  const backend = connect(t, `${base_url}/`, { api_key: 'sk-key', headers: { 'X-Team': 'batch' } })
  const result = await sendTo(backend, { ...REQUEST, body: view })
  assert.equal(result.kind, 'answered')
  assert.equal(seen.url, '/v1/chat/completions')
  assert.deepEqual(seen.bytes, body)
  assert.equal(seen.headers?.['content-length'], String(body.length))
  assert.equal(seen.headers?.['transfer-encoding'], undefined)
  assert.equal(seen.headers?.authorization, 'Bearer sk-key')
  assert.equal(seen.headers?.['x-team'], 'batch')
  assert.equal(seen.headers?.['content-type'], 'application/json')
})

test('a query of the base URL stays behind the path, and a header of the configuration has its way', async (t) => {
  let seen: IncomingMessage | undefined
  const base_url = await serve(t, (request, response) => {
    seen = request
    response.end(completion)
  })
  const headers = { Authorization: 'Token abc' }
  const backend = connect(t, `${base_url}?api-version=2026-01-01`, { api_key: 'sk-key', headers })
  await sendTo(backend, REQUEST)
  assert.equal(seen?.url, '/v1/chat/completions?api-version=2026-01-01')
  assert.equal(seen?.headers.authorization, 'Token abc')
})

test('connections are kept and used again', async (t) => {
  const ports = new Set<number | undefined>()
  const base_url = await serve(t, (request, response) => {
    ports.add(request.socket.remotePort)
    response.end(completion)
  })
  const backend = connect(t, base_url)
  for (let i = 0; i < 20; i++) assert.equal((await sendTo(backend, REQUEST)).kind, 'answered')
  // Two connections: the next request may come before the pool has the last connection again.
  assert.ok(ports.size <= 2, `${ports.size} connections`)
})

test('a request that finds its connection closed before anything went out takes another', async (t) => {
  const answer = `HTTP/1.1 200 OK\r\ncontent-length: ${completion.length}\r\n\r\n${completion}`
  const sockets: Socket[] = []
  const base_url = await serveRaw(t, (socket) => {
    sockets.push(socket)
    socket.on('data', () => socket.write(answer))
  })
  const backend = connect(t, base_url)
  assert.equal((await sendTo(backend, REQUEST)).kind, 'answered')
  const finished = once(sockets[0]!, 'finish')
  sockets[0]!.end()
  await finished
  await nextTurn()
  assert.equal((await sendTo(backend, REQUEST)).kind, 'answered')
  assert.equal(sockets.length, 2)
})

test('a farewell to an idle connection is not taken for the answer to what is sent next', async (t) => {
  const answer = `HTTP/1.1 200 OK\r\ncontent-length: ${completion.length}\r\n\r\n${completion}`
  const sockets: Socket[] = []
  const base_url = await serveRaw(t, (socket) => {
    sockets.push(socket)
    socket.on('data', () => socket.write(answer))
  })
  const backend = connect(t, base_url)
  assert.equal((await sendTo(backend, REQUEST)).kind, 'answered')
  const said = Promise.withResolvers<void>()
  sockets[0]!.write('HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n', () => said.resolve())
  await said.promise
  await nextTurn()
  assert.equal((await sendTo(backend, REQUEST)).kind, 'answered')
  assert.equal(sockets.length, 2)
})

test('an answer that comes before the request is out ends its connection', async (t) => {
  const connections: Socket[] = []
  const base_url = await serveRaw(t, (socket) => {
    connections.push(socket)
    socket.once('readable', () => {
      // The server reads nothing, so a large body stays with its sender.
      if (connections.length === 1) socket.write('HTTP/1.1 413 No\r\ncontent-length: 0\r\n\r\n')
      else socket.end(`HTTP/1.1 200 OK\r\ncontent-length: ${completion.length}\r\n\r\n${completion}`)
    })
  })
  const backend = connect(t, base_url, { connections_max: 1 })
  const large = Buffer.alloc(32 * 1024 * 1024, 'x')
  assert.equal((await sendTo(backend, { ...REQUEST, body: large })).status, 413)
  assert.equal((await sendTo(backend, REQUEST)).kind, 'answered')
  assert.equal(connections.length, 2)
})

test('a large body goes out whole', async (t) => {
  const large = Buffer.from(JSON.stringify({ model: 'm', messages: [{ content: 'ü'.repeat(3_000_000) }] }))
  let seen: Buffer | null = null
  const base_url = await serve(t, async (request, response) => {
    seen = await buffer(request)
    response.end(completion)
  })
  assert.equal((await sendTo(connect(t, base_url), { ...REQUEST, body: large })).kind, 'answered')
  assert.ok(large.equals(seen ?? Buffer.alloc(0)))
})

test('an answer in many pieces is put together, characters split between them included', async (t) => {
  const text = JSON.stringify({ choices: [{ message: { content: 'żółć'.repeat(50_000) } }] })
  const bytes = Buffer.from(text)
  const base_url = await serve(t, (_request, response) => {
    for (let at = 0; at < bytes.length; at += 9_973) response.write(bytes.subarray(at, at + 9_973))
    response.end()
  })
  const result = await sendTo(connect(t, base_url), REQUEST)
  assert.ok(result.kind === 'answered')
  assert.equal(result.body.toString(), text)
})

test('interim answers are passed over', async (t) => {
  const base_url = await serve(t, (_request, response) => {
    response.writeProcessing()
    response.end(completion)
  })
  assert.equal((await sendTo(connect(t, base_url), REQUEST)).kind, 'answered')
})

test('a 429 names the time to wait, in milliseconds', async (t) => {
  const base_url = await serve(t, (_request, response) => {
    response.writeHead(429, { 'retry-after': '3' }).end('{"error":{"message":"slow down"}}')
  })
  assert.deepEqual(await sendTo(connect(t, base_url), REQUEST), {
    kind: 'throttled',
    status: 429,
    reason: '429',
    words: 'slow down',
    retry_after_ms: 3000,
  })
})

test('a port where nobody listens is an upstream that is not available', async (t) => {
  const port = await freePort()
  const result = await sendTo(connect(t, `http://127.0.0.1:${port}/v1`), REQUEST)
  expectFailed(result, 'upstream_unavailable', /^no connection to the server \(ECONNREFUSED\)$/)
  assert.equal(result.status, null)
  assert.match(operatorReasonOf(result), new RegExp(`127.0.0.1:${port}`))
})

test('nothing is sent where another process listens in place of the server', async (t) => {
  const got: Buffer[] = []
  const server = createTcpServer((socket) => socket.on('data', (piece) => got.push(Buffer.from(piece))))
  const { url, close } = await listen(server)
  t.after(close)
  for (const isOwn of [async () => false, () => Promise.reject(new Error('nobody can tell'))]) {
    const backend = connect(t, `${url}/v1`, { isOwn })
    const closed = once(server, 'connection').then(([socket]) => once(socket, 'close'))
    const result = await sendTo(backend, REQUEST)
    expectFailed(result, 'upstream_unavailable', /^another process listens where the server should$/)
    assert.ok(result.kind === 'failed' && result.unreachable)
    await closed
  }
  assert.deepEqual(got, [])
})

test('a name that does not resolve is an upstream that is not available', async (t) => {
  const result = await sendTo(connect(t, 'http://no-such-host.invalid/v1'), REQUEST)
  expectFailed(result, 'upstream_unavailable', /\(ENOTFOUND|EAI_AGAIN\)$/)
  assert.match(operatorReasonOf(result), /no-such-host\.invalid/)
})

test('TLS to a server that speaks none is an upstream that is not available', async (t) => {
  const base_url = await serve(t, (_request, response) => response.end(completion))
  const result = await sendTo(connect(t, base_url.replace('http:', 'https:')), REQUEST)
  expectFailed(result, 'upstream_unavailable', /./)
  assert.match(
    operatorReasonOf(result),
    /^wrong version number \(ERR_SSL_WRONG_VERSION_NUMBER\): it does not speak TLS; write http:\/\/ in `base_url`$/,
  )
})

test('a server that speaks TLS alone is asked for by https', async (t) => {
  const base_url = await serveTls(t, () => {})
  const result = await sendTo(connect(t, base_url.replace('https:', 'http:')), REQUEST)
  expectFailed(result, 'upstream_unavailable', /^the server closed the connection before it answered$/)
  assert.match(
    operatorReasonOf(result),
    /before it answered; if it speaks TLS, write https:\/\/ in `base_url`$/,
  )
})

test('TLS to a server whose certificate nobody vouches for is an upstream that is not available', async (t) => {
  const base_url = await serveTls(t, () => {})
  const result = await sendTo(connect(t, base_url), REQUEST)
  expectFailed(result, 'upstream_unavailable', /DEPTH_ZERO_SELF_SIGNED_CERT/)
  assert.match(
    operatorReasonOf(result),
    /^self-signed certificate \(DEPTH_ZERO_SELF_SIGNED_CERT\): name a PEM file .* `ca_file`/,
  )
})

test('over TLS answers come whole, and later connections resume the session of the first', async (t) => {
  const trusted = getCACertificates('default')
  setDefaultCACertificates([...trusted, cert])
  t.after(() => setDefaultCACertificates(trusted))
  const resumed: boolean[] = []
  const base_url = await serveTls(t, (socket) => resumed.push(socket.isSessionReused()))
  const backend = connect(t, base_url)
  assert.equal((await sendTo(backend, REQUEST)).kind, 'answered')
  const results = await Promise.all(Array.from({ length: 40 }, () => sendTo(backend, REQUEST)))
  assert.ok(results.every((result) => result.kind === 'answered' && result.body.length > 120_000))
  assert.deepEqual(resumed, [false, true, true, true])
})

test('a connection that breaks before or within the answer is an upstream that is not available', async (t) => {
  const breaks: Record<string, (socket: Socket) => void> = {
    reset: (socket) => socket.once('data', () => socket.resetAndDestroy()),
    closed: (socket) => socket.once('data', () => socket.end()),
    'closed within': (socket) => {
      socket.once('data', () => socket.end('HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{"choices"'))
    },
  }
  for (const [how, handler] of Object.entries(breaks)) {
    const result = await sendTo(connect(t, await serveRaw(t, handler)), REQUEST)
    assert.ok(
      result.kind === 'failed' && result.code === 'upstream_unavailable',
      `${how}: ${JSON.stringify(result)}`,
    )
    assert.equal(result.status, null)
  }
})

test('what is not HTTP is no answer', async (t) => {
  const base_url = await serveRaw(t, (socket) =>
    socket.once('data', () => socket.end('SSH-2.0-OpenSSH_9\r\n')),
  )
  expectFailed(
    await sendTo(connect(t, base_url), REQUEST),
    'upstream_invalid_response',
    /does not match the HTTP/,
  )
})

test('an answer that never begins times out', async (t) => {
  const base_url = await serve(t, () => {})
  const result = await sendTo(connect(t, base_url, { timeout_ms: 40 }), REQUEST)
  expectFailed(result, 'upstream_timeout', /40 ms/)
  assert.equal(result.status, null)
})

test('a time limit beyond what timers can wait is no limit that has passed', async (t) => {
  const base_url = await serve(t, (_request, response) => setImmediate(() => response.end(completion)))
  const result = await sendTo(connect(t, base_url, { timeout_ms: 90 * 86_400_000 }), REQUEST)
  assert.equal(result.kind, 'answered')
})

test('an answer that trickles on for too long times out, though something always comes', async (t) => {
  const base_url = await serve(t, (_request, response) => {
    response.writeHead(200)
    const timer = setInterval(() => response.write(' '), 5)
    response.on('close', () => clearInterval(timer))
  })
  expectFailed(await sendTo(connect(t, base_url, { timeout_ms: 60 }), REQUEST), 'upstream_timeout', /60 ms/)
})

test('an answer that never stops growing is broken off', async (t) => {
  const megabyte = Buffer.alloc(1024 * 1024, 32)
  let closed: Promise<unknown> | undefined
  const base_url = await serve(t, (_request, response) => {
    closed = once(response, 'close')
    const more = (): void => {
      while (!response.destroyed && response.write(megabyte)) {}
    }
    response.on('drain', more)
    more()
  })
  const result = await sendTo(connect(t, base_url), REQUEST)
  expectFailed(result, 'upstream_invalid_response', /larger than 67108864 bytes/)
  await closed
})

test('an abort settles the attempt at once and closes its connection', async (t) => {
  const arrived = Promise.withResolvers<{ closed: Promise<unknown> }>()
  const base_url = await serve(t, (_request, response) => {
    arrived.resolve({ closed: once(response, 'close') })
  })
  const abort = new AbortController()
  const sending = sendTo(connect(t, base_url), {
    endpoint: '/v1/chat/completions',
    project_id: 'p',
    body,
    signal: abort.signal,
  })
  const { closed } = await arrived.promise
  abort.abort()
  expectFailed(await sending, 'upstream_unavailable', /^aborted$/)
  // Only a client that disconnects closes this connection.
  await closed
})

test('an abort while the answer is coming in leaves no half answer', async (t) => {
  const base_url = await serve(t, (_request, response) => {
    response.writeHead(200, { 'content-length': '1000' })
    response.write('{"choices":')
    setImmediate(() => abort.abort())
  })
  const abort = new AbortController()
  const result = await sendTo(connect(t, base_url), {
    endpoint: '/v1/chat/completions',
    project_id: 'p',
    body,
    signal: abort.signal,
  })
  assert.deepEqual(result, { kind: 'failed', status: null, code: 'upstream_unavailable', reason: 'aborted' })
})

test('an attempt aborted while it waits for a connection is never sent', async (t) => {
  let requests = 0
  const arrived = Promise.withResolvers<ServerResponse>()
  const base_url = await serve(t, (_request, response) => {
    requests += 1
    if (requests === 1) arrived.resolve(response)
    else response.end(completion)
  })
  const backend = connect(t, base_url, { connections_max: 1 })
  const first = sendTo(backend, REQUEST)
  const response = await arrived.promise
  const abort = new AbortController()
  const second = sendTo(backend, {
    endpoint: '/v1/chat/completions',
    project_id: 'p',
    body,
    signal: abort.signal,
  })
  abort.abort()
  expectFailed(await second, 'upstream_unavailable', /aborted/)
  response.end(completion)
  assert.equal((await first).kind, 'answered')
  assert.equal((await sendTo(backend, REQUEST)).kind, 'answered')
  assert.equal(requests, 2)
})

test('one signal shared by many attempts aborts each of them', async (t) => {
  let arrived = 0
  const all = Promise.withResolvers<void>()
  const base_url = await serve(t, () => {
    arrived += 1
    if (arrived === 20) all.resolve()
  })
  const backend = connect(t, base_url, { connections_max: 20 })
  const abort = new AbortController()
  const attempts = Array.from({ length: 20 }, () =>
    sendTo(backend, { endpoint: '/v1/chat/completions', project_id: 'p', body, signal: abort.signal }),
  )
  await all.promise
  abort.abort()
  for (const result of await Promise.all(attempts)) expectFailed(result, 'upstream_unavailable', /aborted/)
})

test('a key that the server quotes is struck out of what is reported', async (t) => {
  const said = JSON.stringify({ error: { message: 'no: sk-very-secret, team-secret-1' } })
  const options = { api_key: 'sk-very-secret', headers: { 'api-key': 'Key team-secret-1' } }
  for (const status of [400, 403, 429, 500]) {
    const base_url = await serve(t, (_request, response) => response.writeHead(status).end(said))
    const result = await sendTo(connect(t, base_url, options), REQUEST)
    assert.doesNotMatch(JSON.stringify(result), /secret/, `status ${status}`)
    assert.match(JSON.stringify(result), /\[redacted\]/, `status ${status}`)
  }
})

test('a key is struck out before anything is cut, from every field that others get to read', async (t) => {
  const api_key = 'sk-very-secret-0123456789'
  const half = /secret|sk-very/
  for (let pad = 560; pad <= 600; pad += 8) {
    const long = `${'x'.repeat(pad)} ${api_key}`
    const bodies: [status: number, body: string][] = [
      [
        400,
        JSON.stringify({
          error: { message: long, param: `${'p'.repeat(pad - 480)}${api_key}`, code: api_key },
        }),
      ],
      [422, JSON.stringify({ detail: [{ loc: ['body', api_key], msg: long }] })],
      [502, `<html><p>${long}</p></html>`],
      [200, JSON.stringify({ error: { message: long } })],
      [200, JSON.stringify({ error: { message: long, code: 400 } })],
      [200, long],
      [
        200,
        `{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":"${api_key}"},"warning":{"sent":"Bearer ${api_key}"}}`,
      ],
      [200, `{"debug":"${api_key}","choices":[{"message":{"content":"${api_key}"},"error":"${api_key}"}]}`],
    ]
    for (const [status, said] of bodies) {
      const base_url = await serve(t, (_request, response) => response.writeHead(status).end(said))
      const result = await sendTo(connect(t, base_url, { api_key }), REQUEST)
      const told = result.kind === 'answered' ? result.body.toString() : JSON.stringify(result)
      assert.doesNotMatch(told, half, said)
      if (result.kind !== 'answered') continue
      const { isUsageRejected, cost } = result.answer
      assert.equal(JSON.parse(told).choices.length, 1)
      if (isUsageRejected) assert.equal(told.slice(cost.start, cost.end), '{"prompt_tokens":"[redacted]"}')
    }
  }
})

test('a key in what is no HTTP is struck out before it is quoted, and no half of it is', async (t) => {
  const api_key = 'sk-very-secret-0123456789'
  for (const said of [
    `HTTP/1.1 200 OK\r\nabcdefghijklmnopqrstuv ${api_key}\r\n\r\n`,
    `HTTP/1.1 200 abc\r\ncontent-length: ${api_key}\r\n\r\n`,
    `HTTP/1.1 200 OK\r\ntransfer-encoding: ${'a'.repeat(25)}${api_key}\r\n\r\n`,
    `HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n${'a'.repeat(25)}${api_key}\r\n`,
    `who is ${api_key}?\r\n`,
    'Bearer sk-very-secret',
    `HTTP/1.1 ${'x'.repeat(20)}${api_key}\r\n\r\n`,
  ]) {
    const base_url = await serveRaw(t, (socket) => socket.once('data', () => socket.end(said)))
    const result = await sendTo(connect(t, base_url, { api_key }), REQUEST)
    assert.equal(result.kind, 'failed', said)
    assert.doesNotMatch(JSON.stringify(result), /secret|sk-very/, said)
  }
})

test('a base URL that cannot be used is refused without being quoted', () => {
  for (const base_url of ['ftp://host/v1', 'not a url', 'http://user:hunter22@host/v1']) {
    assert.throws(
      () => openaiBackend({ name: 'x', base_url, timeout_ms: 1, connections_max: 1 }),
      (error) => error instanceof TypeError && !error.message.includes('hunter22'),
    )
  }
})

test('the header for fair shares names the project of each request, beside its trace context', async (t) => {
  const heard: (readonly unknown[])[] = []
  const base_url = await serve(t, (request, response) => {
    heard.push([request.headers['x-fairness-id'], request.headers.traceparent])
    request.resume().on('end', () => response.end(completion))
  })
  const backend = connect(t, base_url, { fairness_header: 'x-fairness-id', connections_max: 1 })
  const traceparent = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
  const call = { body, endpoint: '/v1/chat/completions' } as const
  for (const more of [{ traceparent }, {}])
    for (const project_id of ['proj_a', 'proj_b', 'proj_b'])
      assert.equal((await sendTo(backend, { ...call, ...more, project_id })).kind, 'answered')
  const named = ['proj_a', 'proj_b', 'proj_b']
  assert.deepEqual(heard, [
    ...named.map((project) => [project, traceparent]),
    ...named.map((project) => [project, undefined]),
  ])
})
