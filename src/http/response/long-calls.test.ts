import assert from 'node:assert/strict'
import { getEventListeners, once } from 'node:events'
import { type ClientRequest, createServer, get } from 'node:http'
import { type TestContext, test } from 'node:test'
import { testClock } from '../../../test/fakes/clock.ts'
import { ApiError } from '../../domain/errors.ts'
import { type HeavyRead, HeavyReads, together, WaitingCalls } from './long-calls.ts'

type Pieces = (read: HeavyRead, work: () => Promise<void>, name: string) => AsyncIterable<Buffer>

/** An HTTP server of heavy reads that records their steps. Their work waits until the test ends it. */
class Server {
  readonly received: string[] = []
  readonly opened: string[] = []
  readonly ended: string[] = []
  readonly failed = new Map<string, unknown>()
  readonly #working = new Map<string, () => void>()
  readonly #http = createServer()
  #changed = Promise.withResolvers<void>()

  static async start(t: TestContext, pieces: Pieces): Promise<Server> {
    const server = new Server()
    const reads = new HeavyReads()
    server.#http.on('request', async ({ url }, response) => {
      const name = String(url).slice(1)
      server.#tell(server.received, name)
      try {
        const read = await reads.open(name.charAt(0), response)
        server.#tell(server.opened, name)
        const stream = read.stream(pieces(read, () => server.#work(name), name))
        stream.once('error', () => response.destroy())
        stream.pipe(response)
      } catch (error) {
        server.failed.set(name, error)
        server.#tell([], name)
        response.writeHead(429).end()
      }
    })
    server.#http.listen(0, '127.0.0.1')
    await once(server.#http, 'listening')
    t.after(() => {
      server.#http.close()
      server.#http.closeAllConnections()
    })
    return server
  }

  get working(): string[] {
    return [...this.#working.keys()].sort()
  }

  /** Resolves when the server's state satisfies `isSo`. */
  async until(isSo: () => boolean): Promise<void> {
    while (!isSo()) await this.#changed.promise
  }

  /** Requests reads, one after the other; the first letter of a name is its project. */
  async call(...names: string[]): Promise<ClientRequest[]> {
    const requests: ClientRequest[] = []
    for (const name of names) {
      const address = this.#http.address()
      assert.ok(address !== null && typeof address === 'object')
      const request = get({ host: '127.0.0.1', port: address.port, path: `/${name}`, agent: false })
      request.on('error', () => {})
      request.on('response', (response) => {
        // Names that end with "!" are of readers that read nothing.
        if (!name.endsWith('!')) response.on('end', () => this.#tell(this.ended, name)).resume()
      })
      requests.push(request)
      await this.until(() => this.received.includes(name))
    }
    return requests
  }

  /** Ends the work of a read. */
  end(name: string): void {
    this.#working.get(name)?.()
    this.#working.delete(name)
  }

  async #work(name: string): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>()
    this.#working.set(name, resolve)
    this.#tell([], name)
    await promise
  }

  #tell(list: string[], name: string): void {
    list.push(name)
    this.#changed.resolve()
    this.#changed = Promise.withResolvers()
  }
}

async function* onePiece(_: HeavyRead, work: () => Promise<void>): AsyncGenerator<Buffer> {
  await work()
  yield Buffer.from('a piece')
}

test('a project has four reads open, of which two work; those of others do not wait for them', async (t) => {
  const server = await Server.start(t, onePiece)
  const requests = await server.call('a1', 'a2', 'a3', 'a4', 'a5', 'a6', 'a7', 'b1')
  await server.until(() => server.working.length === 3)
  assert.deepEqual(server.opened, ['a1', 'a2', 'a3', 'a4', 'b1'])
  assert.deepEqual(server.working, ['a1', 'a2', 'b1'])
  // A read that waits and one that is open lose their callers.
  requests[5]?.destroy()
  await server.until(() => server.failed.has('a6'))
  requests[3]?.destroy()
  await server.until(() => server.opened.includes('a5'))
  server.end('b1')
  await server.until(() => server.ended.includes('b1'))
  // Reads work in turn: a1 gets its second piece after the first pieces of others.
  server.end('a1')
  await server.until(() => server.working.includes('a3'))
  server.end('a2')
  await server.until(() => server.working.includes('a5'))
  assert.deepEqual([server.working, server.ended], [['a3', 'a5'], ['b1']])
  server.end('a3')
  await server.until(() => server.opened.includes('a7'))
  server.end('a5')
  await server.until(() => server.working.includes('a7'))
  server.end('a7')
  await server.until(() => server.ended.length === 6)
  assert.equal(server.opened.includes('a6'), false)
})

test('a project that has too many reads waiting is told to come again, and other projects are not', async (t) => {
  const server = await Server.start(t, onePiece)
  await server.call(...Array.from({ length: 104 }, (_, i) => `a${i}`), 'a-more', 'b1')
  await server.until(() => server.failed.size > 0 && server.working.includes('b1'))
  assert.deepEqual([...server.failed.keys()], ['a-more'])
  const error = server.failed.get('a-more')
  assert.ok(error instanceof ApiError)
  assert.deepEqual([error.code, error.retryAfterS], ['rate_limit_exceeded', 5])
})

test('a reader that takes no more pieces takes no turns', async (t) => {
  const server = await Server.start(t, async function* (_, __, name) {
    for (let i = 0; i < (name.endsWith('!') ? 1_000 : 3); i++) yield Buffer.alloc(1024 * 1024)
  })
  await server.call('a1!', 'a2!', 'a3!', 'a4')
  await server.until(() => server.ended.includes('a4'))
  assert.deepEqual(server.ended, ['a4'])
})

test('while a read waits for what works elsewhere, others have its turn', async (t) => {
  const server = await Server.start(t, async function* (read, work, name) {
    if (name === 'a3') return
    await read.outside(work)
    yield Buffer.from('a piece')
  })
  await server.call('a1', 'a2', 'a3')
  await server.until(() => server.ended.includes('a3') && server.working.length === 2)
  server.end('a2')
  server.end('a1')
  await server.until(() => server.ended.length === 3)
})

test('calls that wait look at the same time, by one read, and each ends when its turn has come', async () => {
  const clock = testClock()
  const closing = new AbortController()
  const waiting = new WaitingCalls(clock, closing.signal)
  const ended = new Set<string>()
  const reads: string[] = []
  const isOver = together(async (names: readonly string[]) => {
    reads.push(names.join(''))
    return names.map((name) => ended.has(name))
  })
  const over: string[] = []
  const wait = (name: string, ms: number): Promise<void> => {
    const call = { project_id: 'p', ms, signal: new AbortController().signal }
    return waiting.wait(call, () => isOver(name)).then(() => void over.push(name))
  }
  const pass = async (ms: number): Promise<void> => {
    for (let passed = 0; passed < ms; passed += 2) await clock.advance(2)
  }
  const calls = [wait('a', 60_000)]
  await pass(4_000)
  assert.ok(reads.length < 80, `${reads.length} reads`)
  calls.push(wait('b', 60_000), wait('c', 1_000))
  await pass(100)
  assert.ok(reads.includes('bc'), reads.join())
  // A call that has just come shortens the interval for all.
  const since = reads.slice(reads.indexOf('bc') + 1)
  assert.ok(since.length >= 5 && since.every((names) => names.length === 3), since.join())
  ended.add('a')
  await pass(20)
  assert.deepEqual(over, ['a'])
  await pass(1_000)
  assert.deepEqual(over, ['a', 'c'])
  closing.abort()
  await Promise.all(calls)
  assert.deepEqual(over, ['a', 'c', 'b'])
})

test('a call that has waited leaves no listener behind, which would keep its signal', async (t) => {
  const combined = t.mock.method(AbortSignal, 'any')
  const signal = new AbortController().signal
  const waiting = new WaitingCalls(testClock(), new AbortController().signal)
  await waiting.wait({ project_id: 'p', ms: 1, signal }, async () => true)
  const listeners = combined.mock.calls.map(({ result }) => getEventListeners(result!, 'abort').length)
  assert.deepEqual(listeners, [0])
})
