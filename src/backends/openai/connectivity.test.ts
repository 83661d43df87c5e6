// Tests how model servers are reached: private authorities, client certificates, proxies, IPv6, query strings, key
// files.
import assert from 'node:assert/strict'
import { generateKeyPairSync } from 'node:crypto'
import { mkdtempSync, readFileSync, rmSync, utimesSync, writeFileSync } from 'node:fs'
import { createServer, type IncomingMessage, type RequestListener, request, type Server } from 'node:http'
import { createServer as createTlsServer } from 'node:https'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, test } from 'node:test'
import type { TLSSocket } from 'node:tls'
import { cert, key } from '../../../test/fakes/certificate.ts'
import { sendTo } from '../../../test/fakes/scripted-backend.ts'
import { completion } from '../../../test/fakes/upstream.ts'
import { type Listening, listen } from '../../../test/support/listen.ts'
import type { BackendResult } from '../backend.ts'
import { certificateFiles, keyFile } from '../secret-files.ts'
import { type OpenAiBackendOptions, openaiBackend } from './openai-backend.ts'

const folder = mkdtempSync(join(tmpdir(), 'offpeak-connectivity-'))
const servers: Listening[] = []
after(async () => {
  for (const server of servers) await server.close()
  rmSync(folder, { recursive: true })
})

const CA = Buffer.from(cert)

async function listening(server: Server, host = '127.0.0.1'): Promise<number> {
  const at = await listen(server, 0, host)
  servers.push(at)
  return at.port
}

function answering(seen: IncomingMessage[]): RequestListener {
  return (incoming, response) => {
    seen.push(incoming)
    incoming.resume().on('end', () => response.end(completion('hello')))
  }
}

async function ask(options: Partial<OpenAiBackendOptions> & { base_url: string }): Promise<BackendResult> {
  const backend = openaiBackend({ name: 'u', timeout_ms: 5_000, connections_max: 2, ...options })
  try {
    return await sendTo(backend, {
      endpoint: '/v1/chat/completions',
      body: Buffer.from('{}'),
      project_id: 'p',
    })
  } finally {
    await backend.close()
  }
}

test('a private authority is trusted where its file is named, and only there', async () => {
  const seen: IncomingMessage[] = []
  const port = await listening(createTlsServer({ key, cert }, answering(seen)))
  const base_url = `https://localhost:${port}/v1`
  const refused = await ask({ base_url })
  assert.equal(refused.kind, 'failed')
  assert.match(refused.kind === 'failed' ? (refused.operatorReason ?? '') : '', /self-signed certificate/)
  assert.equal((await ask({ base_url, certificates: () => ({ ca: CA }) })).kind, 'answered')
  assert.equal(seen.length, 1)
})

test('at an address of its own, a server is still asked for by its name', async () => {
  const seen: IncomingMessage[] = []
  const port = await listening(createTlsServer({ key, cert }, answering(seen)), '127.0.0.2')
  const base_url = `https://localhost:${port}/v1`
  const certificates = () => ({ ca: CA })
  assert.equal((await ask({ base_url, certificates, address: '127.0.0.2' })).kind, 'answered')
  assert.equal((await ask({ base_url, certificates })).kind, 'failed')
  assert.equal(seen.length, 1)
  assert.equal(seen[0]?.headers.host, `localhost:${port}`)
  const socket = seen[0]?.socket as (TLSSocket & { servername?: string }) | undefined
  assert.equal(socket?.servername, 'localhost')
})

test('a client certificate is shown to a server that asks for one', async () => {
  const seen: IncomingMessage[] = []
  const options = { key, cert, ca: cert, requestCert: true, rejectUnauthorized: true }
  const port = await listening(createTlsServer(options, answering(seen)))
  const base_url = `https://localhost:${port}/v1`
  assert.equal((await ask({ base_url, certificates: () => ({ ca: CA }) })).kind, 'failed')
  const certificates = () => ({ ca: CA, cert: CA, key: Buffer.from(key) })
  assert.equal((await ask({ base_url, certificates })).kind, 'answered')
  const socket = seen[0]?.socket as TLSSocket | undefined
  assert.equal(socket?.authorized, true)
})

test('through a proxy, plain requests carry the whole address and TLS goes through a tunnel', async () => {
  const plain: IncomingMessage[] = []
  const secure: IncomingMessage[] = []
  const plainPort = await listening(createServer(answering(plain)))
  const tlsPort = await listening(createTlsServer({ key, cert }, answering(secure)))
  const forwarded: string[] = []
  const proxy = createServer((incoming, response) => {
    forwarded.push(`${incoming.url} ${incoming.headers['proxy-authorization']}`)
    const { headers, method } = incoming
    const onward = request(incoming.url ?? '', { headers, method }, (answer) => answer.pipe(response))
    incoming.pipe(onward)
  })
  proxy.on('connect', ({ url, headers }, socket) => {
    forwarded.push(`CONNECT ${url} ${headers['proxy-authorization']}`)
    if (headers['proxy-authorization'] === undefined) {
      socket.end('HTTP/1.1 407 Proxy Authentication Required\r\n\r\n')
      return
    }
    const onward = connect(Number(url?.split(':')[1]), '127.0.0.1', () => {
      socket.write('HTTP/1.1 200 Connection established\r\n\r\n')
      onward.pipe(socket).pipe(onward)
    })
  })
  const address = `127.0.0.1:${await listening(proxy)}`
  const withUser = `http://user:pass@${address}`
  const authorization = `Basic ${Buffer.from('user:pass').toString('base64')}`
  assert.equal(
    (await ask({ base_url: `http://127.0.0.1:${plainPort}/v1`, proxy: withUser })).kind,
    'answered',
  )
  const base_url = `https://localhost:${tlsPort}/v1`
  const certificates = () => ({ ca: CA })
  assert.equal((await ask({ base_url, proxy: withUser, certificates })).kind, 'answered')
  assert.deepEqual(forwarded, [
    `http://127.0.0.1:${plainPort}/v1/chat/completions ${authorization}`,
    `CONNECT localhost:${tlsPort} ${authorization}`,
  ])
  const refused = await ask({ base_url, proxy: `http://${address}`, certificates })
  assert.ok(refused.kind === 'failed' && refused.unreachable)
  assert.match(refused.operatorReason ?? '', /the proxy answered CONNECT with 407/)
  assert.deepEqual([plain.length, secure.length], [1, 1])
})

test('an IPv6 address and a query string reach the server as they are', async (t) => {
  const seen: IncomingMessage[] = []
  const port = await listening(createServer(answering(seen)), '::1').catch(() => null)
  if (port === null) return t.skip('no IPv6 on this machine')
  assert.equal((await ask({ base_url: `http://[::1]:${port}/v1?api-version=7` })).kind, 'answered')
  assert.equal(seen[0]?.url, '/v1/chat/completions?api-version=7')
  assert.equal(seen[0]?.headers.host, `[::1]:${port}`)
})

test('a key file is read again when it has changed, and a missing one changes nothing', () => {
  const path = join(folder, 'key')
  writeFileSync(path, 'first\n')
  const problems: string[] = []
  const file = keyFile(path, (problem) => problems.push(problem))
  assert.equal(file.read(0), 'first')
  writeFileSync(path, 'second\n')
  utimesSync(path, 1, 1)
  assert.equal(file.read(999), 'first')
  assert.equal(file.read(1_000), 'second')
  rmSync(path)
  assert.equal(file.read(2_000), 'second')
  assert.equal(file.read(3_000), 'second')
  assert.equal(problems.length, 1, 'a problem is reported once')
})

const UNSENDABLE: [what: string, content: string | Buffer][] = [
  ['two lines', 'sk-old-key\nsk-new-key\n'],
  ['UTF-16', Buffer.from('\ufeffsk-new-key\n', 'utf16le')],
  ['JSON on one line', '{"api_key":"sk-new-key"}'],
  ['JSON on several lines', '{\n  "api_key": "sk-new-key"\n}\n'],
  ['an assignment', 'API_KEY=sk-new-key'],
  ['an exported assignment', 'export API_KEY=sk-new-key'],
  ['YAML', 'api_key: sk-new-key'],
  ['quotes', '"sk-new-key"'],
  ['letters that no header carries', 'sk-nеw-kеy'],
  ['nothing', '\n'],
  ['a certificate', cert],
]

for (const [what, content] of UNSENDABLE)
  test(`a key file that is replaced by one with ${what} is reported, and the last good key stays`, () => {
    const path = join(folder, `key with ${what}`)
    writeFileSync(path, 'sk-old-key\n')
    const problems: string[] = []
    const file = keyFile(path, (problem) => problems.push(problem))
    assert.equal(file.read(0), 'sk-old-key')
    writeFileSync(path, content)
    assert.equal(file.read(1_000), 'sk-old-key')
    assert.equal(file.read(2_000), 'sk-old-key')
    assert.match(problems.join('|'), /^[^|]*key with [^|]*expected the API key alone[^|]*$/)
    assert.doesNotMatch(problems[0] ?? '', /new-key/)
    writeFileSync(path, 'c2VjcmV0LWtleQ==\r\n')
    assert.equal(file.read(3_000), 'c2VjcmV0LWtleQ==', 'the padding of base64 is no assignment')
  })

test('requests carry the key of the file', async () => {
  const seen: IncomingMessage[] = []
  const port = await listening(createServer(answering(seen)))
  const path = join(folder, 'key-in-use')
  writeFileSync(path, 'sk-from-file')
  const options = { base_url: `http://127.0.0.1:${port}/v1`, keyFile: keyFile(path, assert.fail) }
  assert.equal((await ask(options)).kind, 'answered')
  assert.equal(seen[0]?.headers.authorization, 'Bearer sk-from-file')
})

test('a request that cannot be sent as the upstream is configured is no fault of its line', async () => {
  const port = await listening(createServer(answering([])))
  const base_url = `http://127.0.0.1:${port}/v1`
  for (const more of [{ api_key: 'sk-one\nsk-two' }, { headers: { 'X-Team': 'a\nb' } }]) {
    const result = await ask({ base_url, ...more })
    assert.ok(result.kind === 'failed' && result.unreachable, JSON.stringify(result))
    assert.equal(result.code, 'upstream_unavailable')
    assert.match(result.operatorReason ?? '', /the value of the header .* cannot be sent: correct the key/)
    const backend = openaiBackend({ name: 'u', timeout_ms: 1_000, connections_max: 1, base_url, ...more })
    assert.equal((await backend.probe?.())?.isUp, false)
    await backend.close()
  }
})

test('replaced certificates are used by the next connection, and damaged ones by none', async () => {
  const port = await listening(createTlsServer({ key, cert }, answering([])))
  const at = (name: string): string => join(folder, name)
  const other = generateKeyPairSync('ec', { namedCurve: 'P-256' }).privateKey
  writeFileSync(at('ca.pem'), cert)
  writeFileSync(at('client.pem'), cert)
  writeFileSync(at('client.key'), key)
  const files = {
    ca_file: at('ca.pem'),
    client_cert_file: at('client.pem'),
    client_key_file: at('client.key'),
  }
  const problems: string[] = []
  const first = certificateFiles(files, assert.fail).read()
  const certificates = () => first ?? {}
  assert.equal((await ask({ base_url: `https://localhost:${port}/v1`, certificates })).kind, 'answered')
  for (const [name, content, problem] of [
    [
      'client.key',
      String(other.export({ type: 'pkcs8', format: 'pem' })),
      /does not hold the key of the cert/,
    ],
    ['client.key', 'no key', /client_key_file holds no private key/],
    ['ca.pem', cert.slice(0, 200), /ca_file holds no certificate/],
  ] as const) {
    const watched = certificateFiles(files, (one) => problems.push(one))
    const good = watched.read(0)
    const before = readFileSync(at(name))
    writeFileSync(at(name), content)
    assert.equal(watched.read(1_000), good, name)
    assert.match(problems.pop() ?? '', problem)
    writeFileSync(at(name), Buffer.concat([before, Buffer.from('\n')]))
    assert.deepEqual(watched.read(2_000)?.cert?.subarray(0, 100), first?.cert?.subarray(0, 100))
    assert.notEqual(watched.read(2_000), good, 'what is whole again is taken')
  }
  assert.deepEqual(problems, [])
})
