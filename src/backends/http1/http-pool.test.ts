import assert from 'node:assert/strict'
import { createServer, type Socket } from 'node:net'
import test, { type TestContext } from 'node:test'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { sendTo } from '../../../test/fakes/scripted-backend.ts'
import { listen } from '../../../test/support/listen.ts'
import { openaiBackend } from '../openai/openai-backend.ts'

interface Arrival {
  socket: Socket
  /** The text that the request asks the server to answer. */
  asks: string
}

/** A server on plain TCP. `onRequest` decides which bytes are sent, on which connection. */
async function serve(t: TestContext, onRequest: (arrival: Arrival, open: ReadonlySet<Socket>) => void) {
  const open = new Set<Socket>()
  let onClose = (): void => {}
  const server = createServer((socket) => {
    open.add(socket)
    socket.on('error', () => {})
    socket.on('close', () => {
      open.delete(socket)
      onClose()
    })
    socket.on('data', (bytes) => {
      for (const [, asks] of bytes.toString().matchAll(/"content":"([^"]*)"/g))
        onRequest({ socket, asks: asks ?? '' }, open)
    })
  })
  const { url, close } = await listen(server)
  t.after(close)
  return {
    base_url: `${url}/v1`,
    /** Resolves when at most `to` connections are open. */
    async shrinks(to: number) {
      while (open.size > to) await new Promise<void>((resolve) => (onClose = resolve))
    },
  }
}

function poolOf(t: TestContext, base_url: string, connections_max: number, sharesConnections = false) {
  const options = { name: 'upstream', base_url, timeout_ms: 10_000, connections_max, sharesConnections }
  const backend = openaiBackend(options)
  t.after(() => backend.close())
  return async (project_id: string, asks: string): Promise<string> => {
    const body = Buffer.from(JSON.stringify({ messages: [{ role: 'user', content: asks }] }))
    const result = await sendTo(backend, { endpoint: '/v1/chat/completions', body, project_id })
    if (result.kind !== 'answered') return JSON.stringify(result)
    return JSON.parse(result.body.toString()).choices[0].message.content
  }
}

function answerTo(asks: string): string {
  const body = JSON.stringify({ choices: [{ message: { content: asks } }] })
  return `HTTP/1.1 200 OK\r\ncontent-length: ${body.length}\r\n\r\n${body}`
}

test('an answer sent twice never reaches another project, however late the second comes', async (t) => {
  const last = new Map<Socket, string>()
  const { base_url } = await serve(t, ({ socket, asks }) => {
    // A second copy of the previous answer, at the moment in which it does most harm.
    socket.write((last.get(socket) ?? '') + answerTo(asks))
    last.set(socket, answerTo(asks))
  })
  const ask = poolOf(t, base_url, 1)
  for (let i = 0; i < 10; i++) {
    assert.match(await ask('one', `one ${i}`), /^one/)
    assert.match(await ask('two', `two ${i}`), /^two/)
  }
  const both = await Promise.all(
    Array.from({ length: 40 }, (_, i) => ask(i % 2 ? 'one' : 'two', `${i % 2 ? 'one' : 'two'} ${i}`)),
  )
  for (const [i, said] of both.entries()) assert.match(said, i % 2 ? /^one/ : /^two/)
})

test('an answer sent twice is not taken for the next one, since its connection rests before it is used again', async (t) => {
  // On a busy machine more time than a connection rests may pass between two calls.
  const now = performance.now()
  t.mock.method(performance, 'now', () => now)
  let late: Arrival[] = []
  const { base_url } = await serve(t, (arrival) => {
    for (const { socket, asks } of late) socket.write(answerTo(asks))
    late = [arrival]
    arrival.socket.write(answerTo(arrival.asks))
  })
  const ask = poolOf(t, base_url, 8)
  for (let i = 0; i < 20; i++) assert.equal(await ask('one', `line ${i}`), `line ${i}`)
})

test('what nobody asked for ends an idle connection', async (t) => {
  const arrivals: Arrival[] = []
  const { base_url, shrinks } = await serve(t, (arrival) => {
    arrivals.push(arrival)
    arrival.socket.write(answerTo(arrival.asks))
  })
  const ask = poolOf(t, base_url, 8)
  assert.equal(await ask('one', 'first'), 'first')
  arrivals[0]?.socket.write(answerTo('unasked'))
  await shrinks(0)
  assert.equal(await ask('one', 'second'), 'second')
})

test('connections that other projects left idle make room, and there are never more than may be', async (t) => {
  let most = 0
  let busy = 0
  const { base_url, shrinks } = await serve(t, ({ socket, asks }) => {
    busy++
    most = Math.max(most, busy)
    setImmediate(() => {
      busy--
      socket.write(answerTo(asks))
    })
  })
  const few = poolOf(t, base_url, 3)
  const asked = Array.from({ length: 60 }, (_, i) => `${i % 12} ${i}`)
  const said = await Promise.all(asked.map((asks) => few(asks.split(' ', 1)[0] ?? '', asks)))
  assert.deepEqual(said, asked)
  assert.ok(most <= 3, `${most} requests at once`)

  const many = poolOf(t, base_url, 1000)
  for (let i = 0; i < 40; i++) assert.equal(await many(`project ${i}`, `${i}`), `${i}`)
  // Three connections of the first pool, and as many of the second as one project would have had.
  await shrinks(3 + 2)
})

test('many projects that take turns open a connection each, and a few together where connections are shared', async (t) => {
  const sockets = new Set<Socket>()
  const { base_url } = await serve(t, ({ socket, asks }) => {
    sockets.add(socket)
    socket.write(answerTo(asks))
  })
  const opened = async (sharesConnections: boolean): Promise<number> => {
    sockets.clear()
    const ask = poolOf(t, base_url, 2, sharesConnections)
    for (let i = 0; i < 60; i++) assert.equal(await ask(`project ${i % 20}`, `${i}`), `${i}`)
    return sockets.size
  }
  assert.equal(await opened(false), 60)
  assert.ok((await opened(true)) <= 2)
})

test('a request that has waited for a connection leaves nothing behind, though others always wait', async (t) => {
  const { base_url } = await serve(t, ({ socket, asks }) => socket.write(answerTo(asks)))
  const backend = openaiBackend({ name: 'upstream', base_url, timeout_ms: 10_000, connections_max: 1 })
  t.after(() => backend.close())
  const bodies: WeakRef<Uint8Array>[] = []
  const ask = (): Promise<unknown> => {
    const body = Buffer.from(JSON.stringify({ messages: [{ role: 'user', content: 'x' }] }))
    bodies.push(new WeakRef(body))
    return sendTo(backend, { endpoint: '/v1/chat/completions', body, project_id: 'one' })
  }
  const waiting = Array.from({ length: 4 }, ask)
  for (let i = 0; i < 40; i++) {
    await waiting.shift()
    waiting.push(ask())
  }
  collectGarbage()
  const left = bodies.filter((body) => body.deref() !== undefined)
  assert.ok(left.length <= 2 * waiting.length, `${left.length} of ${bodies.length} are left`)
  await Promise.all(waiting)
})

function collectGarbage(): void {
  setFlagsFromString('--expose-gc')
  runInNewContext('gc')()
}

test('connections receive into memory that they share', async (t) => {
  const { base_url } = await serve(t, ({ socket, asks }) => socket.write(answerTo(asks)))
  const send = poolOf(t, base_url, 8)
  const { mock } = t.mock.method(Buffer, 'allocUnsafeSlow')
  const texts = Array.from({ length: 8 }, (_, i) => `text ${i}`)
  assert.deepEqual(await Promise.all(texts.map((text) => send('project', text))), texts)
  assert.equal(mock.callCount(), 0)
})
