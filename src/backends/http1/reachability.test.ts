import assert from 'node:assert/strict'
import { createServer, type Socket } from 'node:net'
import test, { type TestContext } from 'node:test'
import { listen } from '../../../test/support/listen.ts'
import { NO_CERTIFICATES } from '../../domain/credentials.ts'
import { ResponseMemory } from '../response-memory.ts'
import { Exchange, type Exchanged } from './exchange.ts'
import { HttpPool, tryTcp } from './http-pool.ts'

const EVERY_MS = 2

test('a request to a server that can no longer be connected to fails long before its timeout', async (t) => {
  const { pool, ask } = await silentServer(t, async () => false)
  const answer = await ask(pool)
  assert.ok(answer.kind === 'broken')
  assert.equal(answer.code, 'upstream_unavailable')
  assert.equal(answer.reason, 'the server became unreachable before it answered')
})

test('a slow server that accepts connections, or sends something, is waited for', async (t) => {
  let tries = 0
  const { pool, ask, arrived } = await silentServer(t, async () => {
    tries++
    // Every third connection is established: a busy server.
    if (tries < 30) return tries % 3 === 0
    const [socket] = arrived
    socket?.write('HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}')
    return true
  })
  const answer = await ask(pool)
  assert.equal(answer.kind, 'whole')
})

test('a refused connection proves that the machine of a server runs', async () => {
  const { port, close } = await listen(createServer())
  assert.equal(await tryTcp({ host: '127.0.0.1', port }, 5_000), true)
  await close()
  assert.equal(await tryTcp({ host: '127.0.0.1', port }, 5_000), true)
})

/** A server that accepts requests and answers none. */
async function silentServer(t: TestContext, tryConnection: () => Promise<boolean>) {
  const arrived: Socket[] = []
  const server = createServer((socket) => {
    socket.on('error', () => {})
    socket.on('data', () => arrived.push(socket))
  })
  const { port, close } = await listen(server)
  const target = {
    tls: false,
    host: '127.0.0.1',
    connectHost: '127.0.0.1',
    port,
    authority: `127.0.0.1:${port}`,
    proxy: null,
    certificates: () => NO_CERTIFICATES,
    timeout_ms: 600_000,
    connectTimeoutMs: 5_000,
    answerBytesMax: 1_000_000,
    redact: (text: string) => text,
    budget: new ResponseMemory(1_000_000),
  }
  const pool = new HttpPool(target, 1, { tryConnection, everyMs: EVERY_MS })
  t.after(() => {
    pool.close()
    return close()
  })
  const head = Buffer.from('POST / HTTP/1.1\r\nhost: x\r\ncontent-length: ')
  return {
    arrived,
    pool,
    ask: (over: HttpPool): Promise<Exchanged> =>
      new Promise((resolve) => over.dispatch(new Exchange(head, Buffer.from('{}'), 'p', resolve))),
  }
}
