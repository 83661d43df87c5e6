// The API as the commands call it. A call is made again while it may still succeed: on 429, 5xx and broken
// connections, with growing delays and never sooner than Retry-After says. A server that was never reached
// is given up on at once; one that was is waited for, since it may only be restarting.

import { STATUS_CODES } from 'node:http'
import type { Readable } from 'node:stream'
import type { Static, TSchema } from 'typebox'
import { Value } from 'typebox/value'
import { Agent, type Dispatcher } from 'undici'
import { type Clock, sleep } from '../../domain/clock.ts'
import { retryAfterMs } from '../../domain/retry-after.ts'
import { Failure, Interrupted } from '../terminal/failure.ts'
import { ApiError, errorCode } from './api-error.ts'
import { retryDelayMs, worthRetrying } from './retry-delay.ts'
import { ListPage } from './shapes.ts'

export interface ClientOptions {
  /** With or without `/v1` at its end. */
  base_url: string
  api_key: string
  clock: Clock
  /** Ends whatever is going on; every call then throws Interrupted. */
  signal?: AbortSignal | undefined
  /** Told why a call is about to be made again, and in how many milliseconds. */
  onRetry?: (reason: string, delay_ms: number) => void
  /** For how long a server that was reached before is waited for. */
  patience_ms?: number
}

export interface Call {
  method: 'GET' | 'POST' | 'DELETE'
  /** From `/v1` on. */
  path: string
  query?: Record<string, string | number | undefined>
  headers?: Record<string, string>
  /** Asked for once per attempt. */
  body?: () => { content: string | Readable; headers: Record<string, string> }
}

const PATIENCE_MS = 300_000
/** An upload is validated after its answer, a download starts at once: only a dead server is this slow. */
const HEADERS_TIMEOUT_MS = 60_000
const PAGE_MAX = 100

export class ApiClient {
  readonly base_url: string
  readonly #agent = new Agent({ headersTimeout: HEADERS_TIMEOUT_MS, bodyTimeout: HEADERS_TIMEOUT_MS })
  readonly #options: ClientOptions
  #reached = false

  constructor(options: ClientOptions) {
    this.base_url = options.base_url.replace(/\/+$/, '').replace(/\/v1$/, '')
    this.#options = options
  }

  async get<T extends TSchema>(shape: T, path: string, query: Call['query'] = {}): Promise<Static<T>> {
    return await this.#object(shape, { method: 'GET', path, query })
  }

  /** `body` is sent as JSON; left out, nothing is sent. */
  async post<T extends TSchema>(
    shape: T,
    path: string,
    body?: unknown,
    headers: Record<string, string> = {},
  ): Promise<Static<T>> {
    return await this.#object(shape, {
      method: 'POST',
      path,
      headers,
      ...(body === undefined
        ? {}
        : {
            body: () => ({
              content: JSON.stringify(body),
              headers: { 'content-type': 'application/json' },
            }),
          }),
    })
  }

  async send<T extends TSchema>(shape: T, call: Call): Promise<Static<T>> {
    return await this.#object(shape, call)
  }

  async delete<T extends TSchema>(shape: T, path: string): Promise<Static<T>> {
    return await this.#object(shape, { method: 'DELETE', path })
  }

  /** Up to `count` objects of a list, newest first, over as many pages as it takes. */
  async list<T extends TSchema>(
    shape: T,
    path: string,
    count: number,
    query: Call['query'] = {},
  ): Promise<Static<T>[]> {
    const found: Static<T>[] = []
    let cursor: string | undefined
    while (found.length < count) {
      const limit = Math.min(PAGE_MAX, count - found.length)
      const page = await this.get(ListPage, path, { ...query, limit, starting_after: cursor })
      for (const item of page.data) found.push(checked(shape, item, `GET ${path}`))
      if (!page.has_more || page.next_cursor === null) break
      cursor = page.next_cursor
    }
    return found
  }

  /** The answer's body as it arrives; what breaks while it is read is the reader's to mend. */
  async stream(path: string, headers: Record<string, string> = {}): Promise<Dispatcher.ResponseData> {
    return await this.#exchange({ method: 'GET', path, headers })
  }

  async close(): Promise<void> {
    await this.#agent.destroy()
  }

  async #object<T extends TSchema>(shape: T, call: Call): Promise<Static<T>> {
    const response = await this.#exchange(call)
    const text = await this.#orInterrupted(response.body.text())
    let parsed: unknown
    try {
      parsed = JSON.parse(text)
    } catch {
      throw new Failure(
        `the answer to ${call.method} ${call.path} is not JSON; is ${this.base_url} an Offpeak server?`,
      )
    }
    return checked(shape, parsed, `${call.method} ${call.path}`)
  }

  /** The first answer that is not worth another attempt, if it is a good one. */
  async #exchange(call: Call): Promise<Dispatcher.ResponseData> {
    const { clock, signal } = this.#options
    const give_up_at = clock.now() + (this.#options.patience_ms ?? PATIENCE_MS)
    for (let attempt = 1; ; attempt++) {
      if (signal?.aborted) throw new Interrupted()
      const outcome = await this.#attempt(call)
      if ('response' in outcome) return outcome.response
      if (outcome.final || clock.now() >= give_up_at) throw outcome.failure
      const delay_ms = retryDelayMs(attempt, outcome.retry_after_ms, Math.random())
      if (delay_ms > 1000) this.#options.onRetry?.(outcome.failure.message, delay_ms)
      await sleep(clock, delay_ms, signal)
    }
  }

  async #attempt(
    call: Call,
  ): Promise<
    | { response: Dispatcher.ResponseData }
    | { failure: Failure; final: boolean; retry_after_ms: number | null }
  > {
    const { clock, signal } = this.#options
    const name = `${call.method} ${call.path}`
    let response: Dispatcher.ResponseData
    try {
      response = await this.#request(call)
    } catch (error) {
      if (signal?.aborted) throw new Interrupted()
      return { failure: this.#unreachable(name, error), final: !this.#reached, retry_after_ms: null }
    }
    this.#reached = true
    const status = response.statusCode
    if (status >= 200 && status < 300) return { response }
    const text = await this.#orInterrupted(response.body.text().catch(() => ''))
    const request_id = response.headers['x-service-request-id']
    return {
      failure: new ApiError(name, {
        status,
        request_id: typeof request_id === 'string' ? request_id : null,
        text: text === '' ? (STATUS_CODES[status] ?? '') : text,
      }),
      final: !worthRetrying(status, errorCode(text)),
      retry_after_ms: retryAfterMs(response.headers, clock.now(), Number.POSITIVE_INFINITY) ?? null,
    }
  }

  async #request(call: Call): Promise<Dispatcher.ResponseData> {
    const url = new URL(`${this.base_url}${call.path}`)
    for (const [name, value] of Object.entries(call.query ?? {})) {
      if (value !== undefined) url.searchParams.set(name, String(value))
    }
    const body = call.body?.()
    return await this.#agent.request({
      origin: url.origin,
      path: url.pathname + url.search,
      method: call.method,
      headers: {
        authorization: `Bearer ${this.#options.api_key}`,
        ...call.headers,
        ...body?.headers,
      },
      body: body?.content ?? null,
      signal: this.#options.signal ?? null,
    })
  }

  #unreachable(name: string, error: unknown): Failure {
    const reason = error instanceof Error ? error.message || error.name : String(error)
    return new Failure(
      `${this.base_url} cannot be reached (${reason}, ${name}); start it with "offpeak serve", or check OFFPEAK_BASE_URL`,
      undefined,
      { cause: error },
    )
  }

  async #orInterrupted<T>(reading: Promise<T>): Promise<T> {
    try {
      return await reading
    } catch (error) {
      if (this.#options.signal?.aborted) throw new Interrupted()
      throw error
    }
  }
}

function checked<T extends TSchema>(shape: T, value: unknown, call: string): Static<T> {
  if (Value.Check(shape, value)) return value
  const [first] = Value.Errors(shape, value)
  const where = first === undefined ? '' : ` (${first.instancePath || 'the answer'} ${first.message})`
  throw new Failure(`the answer to ${call} has another form than expected${where}; is it an Offpeak server?`)
}
