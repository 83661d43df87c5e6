// The HTTP server of `gather`: each call of a model API becomes a single request, and is answered when that has ended. A
// client that stops waiting leaves its request to the next equal call, such as its own retry.
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import { type EndpointPath, isEndpointPath } from '../../domain/endpoint.ts'
import { messageOf, ApiError as ServiceError } from '../../domain/errors.ts'
import { readWhole } from '../../domain/gathered-bytes.ts'
import { http } from '../../domain/http-module.ts'
import { isRecord, parsedJson } from '../../domain/json-record.ts'
import { withoutByteOrderMark } from '../../jsonl/byte-lines.ts'
import { membersOf } from '../../jsonl/json-members.ts'
import { Names } from '../../jsonl/json-scan.ts'
import { isMessagesPath, messagesError } from '../../wire/message-batch.ts'
import { ApiError } from '../client/client.ts'
import type { Connection } from '../client/connect.ts'
import type { EqualRequest, KnownRequests } from '../client/known-requests.ts'
import { type Ended, errorIn, type SingleRequests, textAt } from '../client/single-requests.ts'
import { eventStream } from './event-stream.ts'

export const HOST = '127.0.0.1'
const BACKLOG = 4096
/** The paths of the list of models, and of one model; without `..`. */
const MODELS = /^\/v1\/models(?!.*(?:\.|%2e){2})(?:\/|$)/i
const BODY_BYTES_MAX = 64 * 1024 * 1024

/** The terms of each request that are not in its call. */
export interface RequestTerms {
  /** The model that replaces the one in each call; undefined: that of the call. */
  model: string | undefined
  completion_window: string | undefined
  metadata: Readonly<Record<string, string>>
}

/** The counts of calls. Calls in progress are neither answered nor failed; disconnected ones are not counted. */
export interface Counts {
  sent: number
  answered: number
  failed: number
  /** The answered calls whose requests an earlier run has created; `cost_usd` excludes them. */
  known: number
  cost_usd: number
}

interface GatewayParts {
  client: Connection['client']
  requests: SingleRequests
  known: KnownRequests
  terms: RequestTerms
  onChange: (counts: Counts) => void
  /** Called with each code of an error at its first occurrence. */
  onError: (text: string) => void
}

export class Gateway {
  readonly counts: Counts = { sent: 0, answered: 0, failed: 0, known: 0, cost_usd: 0 }
  readonly #parts: GatewayParts
  readonly #server: Server
  readonly #told = new Set<string>()

  constructor(parts: GatewayParts) {
    this.#parts = parts
    this.#server = http.createServer({ requestTimeout: 0, keepAliveTimeout: 75_000 }, (request, response) => {
      void this.#handle(request, response)
    })
  }

  /** Listens on a port of the loopback address. Returns `http://127.0.0.1:PORT`. */
  async listen(port: number): Promise<string> {
    await once(this.#server.listen(port, HOST, BACKLOG), 'listening')
    const address = this.#server.address()
    return `http://${HOST}:${typeof address === 'object' ? address?.port : port}`
  }

  /** Stops the gateway's server and closes open connections. */
  close(): void {
    this.#server.close()
    this.#server.closeAllConnections()
  }

  async #handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const [pathname = '', query] = request.url?.split('?', 2) ?? []
    // Base URLs come with and without the version.
    const path = `/v1/${pathname.replace(/^\/+(?:v1\/+)*/, '')}`
    try {
      checkCaller(request)
      if (request.method === 'GET' && MODELS.test(path)) {
        const models = await this.#parts.client.bytes({
          method: 'GET',
          path: query ? `${path}?${query}` : path,
        })
        return reply(response, 200, models)
      }
      if (request.method !== 'POST' || !isEndpointPath(path))
        throw new ServiceError(
          'unknown_endpoint',
          `gather takes calls of models by POST, and GET /v1/models; ${request.method} ${pathname} is none.`,
        )
      const { bytes, isWhole } = await readWhole(request, BODY_BYTES_MAX)
      if (!isWhole)
        throw new ServiceError('payload_too_large', `The body is larger than ${BODY_BYTES_MAX} bytes.`)
      await this.#answer(path, readCall(withoutByteOrderMark(bytes), this.#parts.terms.model), response)
    } catch (error) {
      if (response.destroyed) return
      const told = errorOf(error)
      const { code, message } = told
      if (!this.#told.has(code)) this.#parts.onError(`${code}: ${message}`)
      this.#told.add(code)
      const wire = told.toWire()
      const id = String(response.getHeader('x-request-id') ?? '')
      const body = isMessagesPath(path)
        ? messagesError(wire, told.status, id)
        : { error: { param: null, ...wire } }
      // The service has already retried.
      if (code !== 'service_unavailable') response.setHeader('x-should-retry', 'false')
      reply(response, told.status, Buffer.from(JSON.stringify(body)))
    }
  }

  async #answer(endpoint: EndpointPath, call: ReadCall, response: ServerResponse): Promise<void> {
    const { counts } = this
    const change = (more: Partial<Counts>): void => {
      for (const name of COUNTED) counts[name] += more[name] ?? 0
      this.#parts.onChange(counts)
    }
    change({ sent: 1 })
    try {
      const { ended, isEarlier } = await this.#ask(endpoint, call.body, response)
      if (response.destroyed) throw new Error('its client has left')
      response.setHeader('x-request-id', ended.id)
      if (ended.end instanceof ServiceError) throw ended.end
      const stream = call.streams && eventStream(endpoint, parsedJson(ended.end.toString()), call.withUsage)
      if (stream) reply(response, 200, Buffer.from(stream), 'text/event-stream; charset=utf-8')
      else reply(response, 200, ended.end)
      change({ answered: 1, known: Number(isEarlier), cost_usd: isEarlier ? 0 : ended.cost_usd })
    } catch (error) {
      change(response.destroyed ? { sent: -1 } : { failed: 1 })
      throw error
    }
  }

  /** The end of the request of an earlier equal call, or of a new one. */
  async #ask(
    endpoint: EndpointPath,
    body: Buffer,
    response: ServerResponse,
  ): Promise<{ ended: Ended; isEarlier: boolean }> {
    const { known, requests } = this.#parts
    const hash = createHash('sha256').update(endpoint).update('\n').update(body).digest('base64url')
    let request: EqualRequest | undefined
    let isEnded = false
    response.once('close', () => {
      if (request && !(isEnded && response.writableFinished)) known.release(request)
    })
    for (;;) {
      request = known.take(hash)
      isEnded = false
      const isKnown = request.id !== undefined
      const id = request.id ?? (await this.#create(request, endpoint, body))
      const ended = await requests.ended(id, isKnown)
      isEnded = true
      if (ended && (ended.end instanceof Buffer || !isKnown || response.destroyed))
        return { ended, isEarlier: request.isEarlier }
      if (isKnown) continue
      throw new ServiceError('request_not_found', `The request ${id} is not on the service any more.`)
    }
  }

  async #create(request: EqualRequest, endpoint: EndpointPath, body: Buffer): Promise<string> {
    const { known, requests, terms } = this.#parts
    const { hash, number } = request
    const { completion_window, metadata } = terms
    const head = JSON.stringify({ endpoint, completion_window, metadata })
    const order = Buffer.concat([Buffer.from(`${head.slice(0, -1)},"body":`), body, Buffer.from('}')])
    const key = createHash('sha256').update(`${hash} ${number} ${head}`).digest('hex')
    request.id = await requests.create(order, `gather-${key}`)
    known.remember(request)
    return request.id
  }
}

const COUNTED = ['sent', 'answered', 'failed', 'known', 'cost_usd'] as const

/** Rejects calls of browsers: any visited page could otherwise spend money here. */
function checkCaller({ headers }: IncomingMessage): void {
  const isLocal = /^(?:127\.0\.0\.1|localhost|\[::1\])(?::\d+)?$/.test(headers.host ?? '')
  if (isLocal && headers.origin === undefined && headers['sec-fetch-site'] === undefined) return
  throw new ServiceError(
    'cross_site_request',
    'gather answers programs on this machine, at 127.0.0.1 or localhost, and no browser.',
  )
}

interface ReadCall {
  /** The body of the single request: not streamed, and with the replaced model. */
  body: Buffer
  streams: boolean
  withUsage: boolean
}

const NAMES = new Names('model', 'stream', 'stream_options')

/** Parses the body of a call. Throws a SyntaxError. */
function readCall(bytes: Buffer, model: string | undefined): ReadCall {
  const found = membersOf(bytes, NAMES)
  const streams = textAt(bytes, found.stream) === 'true'
  const options = streams ? parsedJson(textAt(bytes, found.stream_options)) : null
  const changes = [
    ...(model !== undefined && found.model ? [{ ...found.model, text: JSON.stringify(model) }] : []),
    ...(streams && found.stream ? [{ ...found.stream, text: 'false' }] : []),
    ...(streams && found.stream_options ? [{ ...found.stream_options, text: 'null' }] : []),
  ].toSorted((a, b) => a.start - b.start)
  let at = 0
  const pieces = changes.flatMap(({ start, end, text }) => {
    const piece = [bytes.subarray(at, start), Buffer.from(text)]
    at = end
    return piece
  })
  const body = Buffer.concat([...pieces, bytes.subarray(at)])
  return { body, streams, withUsage: isRecord(options) && options.include_usage === true }
}

function errorOf(error: unknown): ServiceError {
  if (error instanceof ServiceError) return error
  if (error instanceof SyntaxError)
    return new ServiceError('invalid_json', `The body is no JSON object: ${error.message}.`)
  const answer = error instanceof ApiError ? parsedJson(error.body) : null
  const told = isRecord(answer) ? errorIn(answer.error) : null
  return told ?? new ServiceError('service_unavailable', messageOf(error))
}

function reply(response: ServerResponse, status: number, body: Buffer, type = 'application/json'): void {
  response.writeHead(status, { 'content-type': type, 'content-length': body.length }).end(body)
}
