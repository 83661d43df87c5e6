// The simulator as an OpenAI-compatible server, for load tests and crash tests. It uses plain node:http and does little
// per request, because it must be faster than the service that it measures.
import { once } from 'node:events'
import { createWriteStream, type WriteStream } from 'node:fs'
import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import { systemClock } from '../../domain/clock.ts'
import { ENDPOINT_PATHS } from '../../domain/endpoint.ts'
import { http } from '../../domain/http-module.ts'
import type { SimOptions } from '../../domain/simulated-server.ts'
import { SIM_CREATED } from './simulated-answer.ts'
import { errorText, type SimResponse, type SimStats, Simulator } from './simulator.ts'

export interface SimServerOptions extends SimOptions {
  /** The TCP port of the simulated server; 0 picks a free one. */
  port: number
  host?: string
  /** The file to which every call is appended on arrival: see CallLog. */
  log_file?: string | null
}

interface SimServer {
  /** The base URL for clients: `http://host:port/v1`. */
  base_url: string
  port: number
  stats(): SimStats
  /** Stops the server and breaks every open connection. */
  close(): Promise<void>
}

const BODY_BYTES_MAX = 64 * 1024 * 1024
const MODEL_WHEN_ANY = 'sim-1'

/** Starts a simulator. Resolves when it listens; rejects for a port that is taken, or invalid options. */
export async function simServer(options: SimServerOptions): Promise<SimServer> {
  const { host = '127.0.0.1' } = options
  const simulator = new Simulator(options)
  const log = options.log_file ? new CallLog(options.log_file) : null

  const server = http.createServer({ keepAliveTimeout: 65_000, requestTimeout: 0 }, (request, response) => {
    response.sendDate = false
    const endpoint = ENDPOINT_PATHS.find((path) => path === request.url)
    if (request.method === 'POST' && endpoint !== undefined) {
      readBody(request, response, (body) => {
        const { fate, sha256, label } = simulator.arrive(body, endpoint)
        log?.add(systemClock.now(), sha256, label, body)
        respond(fate, response, () => simulator.release())
      })
      return
    }
    request.resume()
    answerOther(request, response, simulator)
  })

  server.listen(options.port, host)
  await once(server, 'listening')
  const port = portOf(server)
  return {
    base_url: `http://${host.includes(':') ? `[${host}]` : host}:${port}/v1`,
    port,
    stats: () => simulator.stats,
    async close() {
      if (server.listening) {
        const closed = once(server, 'close')
        server.close()
        server.closeAllConnections()
        await closed
      }
      await log?.close()
    },
  }
}

function readBody(
  request: IncomingMessage,
  response: ServerResponse,
  then: (body: Uint8Array) => void,
): void {
  let first: Buffer | undefined
  let chunks: Buffer[] | undefined
  let bytes = 0
  request.on('data', (chunk: Buffer) => {
    bytes += chunk.length
    if (bytes > BODY_BYTES_MAX) return
    if (first === undefined) first = chunk
    else if (chunks === undefined) chunks = [first, chunk]
    else chunks.push(chunk)
  })
  request.on('end', () => {
    if (bytes > BODY_BYTES_MAX) {
      const message = `the body is larger than ${BODY_BYTES_MAX} bytes`
      reply(response, 413, errorText(message, 'invalid_request_error', null, 413))
      return
    }
    then(chunks === undefined ? (first ?? Buffer.alloc(0)) : Buffer.concat(chunks, bytes))
  })
}

/** Sends the decided response; calls `done` once, when its slot is free. */
function respond(fate: SimResponse, response: ServerResponse, done: () => void): void {
  if (fate.kind !== 'hang' && fate.after_ms === 0) {
    done()
    finish(fate, response)
    return
  }
  // A client that disconnects frees the slot, as on a server that notices.
  response.on('close', () => {
    cancel()
    done()
  })
  const cancel =
    fate.kind === 'hang' ? () => {} : systemClock.after(fate.after_ms, () => finish(fate, response))
}

function finish(fate: Exclude<SimResponse, { kind: 'hang' }>, response: ServerResponse): void {
  if (fate.kind === 'reset') {
    response.socket?.resetAndDestroy()
    return
  }
  reply(response, fate.status, fate.text, fate.retry_after_ms)
}

function reply(
  response: ServerResponse,
  status: number,
  text: string,
  retry_after_ms: number | null = null,
): void {
  const bytes = Buffer.byteLength(text)
  const headers = ['content-type', 'application/json', 'content-length', String(bytes)]
  if (retry_after_ms !== null) {
    headers.push(
      'retry-after',
      String(Math.ceil(retry_after_ms / 1000)),
      'retry-after-ms',
      String(retry_after_ms),
    )
  }
  response.writeHead(status, headers)
  // ASCII text, as in nearly every answer, needs no encoding.
  response.end(text, bytes === text.length ? 'latin1' : 'utf8')
}

function answerOther(request: IncomingMessage, response: ServerResponse, simulator: Simulator): void {
  const path = request.method === 'GET' ? request.url?.split('?', 1)[0] : undefined
  if (path === '/health' || path === '/healthz') reply(response, 200, '{"status":"ok","simulated":true}')
  else if (path === '/stats') reply(response, 200, JSON.stringify(simulator.stats))
  else if (path === '/v1/models')
    reply(response, 200, modelList(simulator.settings.models ?? [MODEL_WHEN_ANY]))
  else reply(response, 404, errorText('there is no such endpoint', 'not_found_error', null, 404))
}

function modelList(models: readonly string[]): string {
  const data = models.map((id) => ({
    id,
    object: 'model',
    created: SIM_CREATED,
    owned_by: 'offpeak-sim',
    endpoints: ENDPOINT_PATHS,
  }))
  return JSON.stringify({ object: 'list', data })
}

function portOf(server: Server): number {
  const address = server.address()
  if (address === null || typeof address === 'string') throw new Error('the simulator listens on no port')
  return address.port
}

// An independent log of the calls that reached the model server: one line per call, written on arrival and before the
// response, so that a test which kills the service can count what was sent, and how often.

class CallLog {
  readonly #file: WriteStream
  #lines = ''
  #scheduled = false
  #error: Error | undefined

  /** Creates a log that appends to `path`. */
  constructor(path: string) {
    this.#file = createWriteStream(path, { flags: 'a' })
    this.#file.on('error', (error) => {
      this.#error ??= error
    })
  }

  /**
   * Adds `{"at": Unix ms, "sha256": of the body, "fate": "answer", "refused", "over_capacity" or a fault, "user"?}`.
   */
  add(at: number, sha256: string, fate: string, body: Uint8Array): void {
    const user = userOf(body)
    this.#lines += `{"at":${at},"sha256":"${sha256}","fate":"${fate}"${user}}\n`
    if (this.#scheduled) return
    this.#scheduled = true
    // One write for all calls of this turn of the event loop.
    setImmediate(() => this.#flush())
  }

  /** Closes the log. Throws when a line could not be written: a log with gaps proves nothing. */
  async close(): Promise<void> {
    this.#flush()
    if (this.#error === undefined && !this.#file.closed) {
      this.#file.end()
      await once(this.#file, 'close')
    }
    if (this.#error !== undefined) throw this.#error
  }

  #flush(): void {
    this.#scheduled = false
    if (this.#lines !== '') this.#file.write(this.#lines)
    this.#lines = ''
  }
}

const USER = /"user"\s*:\s*("(?:[^"\\]|\\.){1,256}")/

/** Finds the `user` of a request, its only field that marks it, without parsing the body. */
function userOf(body: Uint8Array): string {
  const match = USER.exec(Buffer.from(body.buffer, body.byteOffset, body.byteLength).toString('utf8'))
  return match?.[1] === undefined ? '' : `,"user":${match[1]}`
}
