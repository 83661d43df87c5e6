import assert from 'node:assert/strict'
import { once } from 'node:events'
import { Agent, get, type IncomingMessage } from 'node:http'
import { type TestContext, test } from 'node:test'
import fastify from 'fastify'
import { type TestClock, testClock } from '../../../test/fakes/clock.ts'
import { closeIdleConnectionsAtEnd, GracefulShutdown } from './graceful-shutdown.ts'

const DELAY_MS = 5_000
const DRAIN_MS = 8_000

interface Going {
  clock: TestClock
  shutdown: GracefulShutdown
  url: string
  /** Starts the graceful shutdown; resolves like `go`. */
  go(): Promise<number>
  /** Answers the call of /slow. */
  answer(): void
  /** Resolves when a call of /slow has arrived. */
  arrived: Promise<void>
}

async function server(t: TestContext): Promise<Going> {
  const clock = testClock()
  const shutdown = new GracefulShutdown({ clock, delay_ms: DELAY_MS, drain_ms: DRAIN_MS })
  const app = fastify()
  const slow = Promise.withResolvers<void>()
  const arrived = Promise.withResolvers<void>()
  app.get('/quick', async () => 'quick')
  app.get('/slow', async () => {
    arrived.resolve()
    await slow.promise
    return 'slow'
  })
  shutdown.watch(app)
  closeIdleConnectionsAtEnd(app)
  const url = await app.listen({ host: '127.0.0.1', port: 0 })
  t.after(() => app.close())
  return {
    clock,
    shutdown,
    url,
    go: () => shutdown.shutDown(app),
    answer: slow.resolve,
    arrived: arrived.promise,
  }
}

/** Calls over a connection that both ends would keep. */
async function ask(url: string, agent: Agent): Promise<IncomingMessage> {
  const [response] = await once(get(url, { agent }), 'response')
  response.resume()
  await once(response, 'end')
  return response
}

test('a polled API keeps answering for a while, and closes each connection with its response', async (t) => {
  const { clock, shutdown, url, go } = await server(t)
  const agent = new Agent({ keepAlive: true })
  t.after(() => agent.destroy())
  assert.equal((await ask(`${url}/quick`, agent)).headers.connection, 'keep-alive')
  shutdown.polled()
  const gone = go()
  assert.ok(shutdown.isShuttingDown)
  await clock.advance(DELAY_MS - 1)
  const last = await ask(`${url}/quick`, agent)
  assert.equal(last.statusCode, 200)
  assert.equal(last.headers.connection, 'close')
  await clock.advance(1)
  assert.equal(await gone, 0)
  await assert.rejects(ask(`${url}/quick`, agent), { code: 'ECONNREFUSED' })
})

test('an API that is not polled stops at once', async (t) => {
  const { url, go } = await server(t)
  const agent = new Agent({ keepAlive: true })
  t.after(() => agent.destroy())
  await ask(`${url}/quick`, agent)
  assert.equal(await go(), 0)
})

test('a call in flight is finished, and its connection is closed', async (t) => {
  const { url, go, answer, arrived } = await server(t)
  const agent = new Agent({ keepAlive: true })
  t.after(() => agent.destroy())
  const asked = ask(`${url}/slow`, agent)
  await arrived
  const gone = go()
  answer()
  assert.equal((await asked).statusCode, 200)
  assert.equal(await gone, 0)
})

test('the connection of a call that takes too long is closed', async (t) => {
  const { clock, url, go, arrived } = await server(t)
  const agent = new Agent({ keepAlive: true })
  t.after(() => agent.destroy())
  const asked = assert.rejects(ask(`${url}/slow`, agent), { code: 'ECONNRESET' })
  await arrived
  const gone = go()
  await clock.advance(DRAIN_MS)
  await asked
  assert.equal(await gone, 1)
})
