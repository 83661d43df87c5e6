// Calls the API. The client retries calls on 429, 5xx and broken connections, with growing delays and never before
// Retry-After. A call fails at once when no connection to the server was ever made; otherwise the client retries, because
// the server may be restarting. An error answer becomes a message with the advice from the table of errors.
import { hash } from 'node:crypto'
import Type, { type Static, type TSchema } from 'typebox'
import { Value } from 'typebox/value'
import type { Agent, Dispatcher, FormData } from 'undici'
import { type Clock, sleep } from '../../domain/clock.ts'
import { ERRORS, type ErrorCode, isErrorCode } from '../../domain/errors.ts'
import { readWhole } from '../../domain/gathered-bytes.ts'
import { http } from '../../domain/http-module.ts'
import { isRecord, parsedJson } from '../../domain/json-record.ts'
import { retryAfterMs } from '../../domain/retry-after.ts'
import { visible } from '../../domain/text.ts'
import { orNull } from '../../wire/shape.ts'
import { Failure, hasCode, Interrupted } from '../terminal/failure.ts'
import { readAnswer, Unreadable } from './read-answer.ts'

interface ClientOptions {
  /** The base URL of the service, with or without `/v1` at its end. */
  baseUrl: string
  apiKey: string
  clock: Clock
  /** Aborts running calls; every call then throws Interrupted. */
  signal?: AbortSignal | undefined
  /** Called before a retry with its reason, its delay, and the time since the first attempt. */
  onRetry?: (reason: string, delayMs: number, triedMs: number) => void
  /** The time in ms for which calls to a server that has answered before are retried. */
  patienceMs?: number
  /** The version of this program, sent with each call. */
  version?: string
}

export interface Call {
  method: 'GET' | 'POST' | 'DELETE'
  /** The path of the call, beginning with `/v1`. */
  path: string
  query?: Record<string, string | number | undefined>
  headers?: Record<string, string>
  /** Makes the body, JSON or a form; called once per attempt. */
  body?: (() => string | Buffer | Promise<FormData>) | undefined
  /** Whether the call is not sent again once it may have had its effect, which a second call would have again. */
  once?: true
}

interface Page {
  headers: Dispatcher.ResponseData['headers']
  bytes: Buffer
  next: string
  hasMore: boolean
}

const PATIENCE_MS = 300_000
/** The time in ms for retries before the first answer: the server may speak another protocol. */
const FIRST_PATIENCE_MS = 30_000
/** The timeout in ms of asking for the version, which a healthy service answers at once. */
const VERSION_TIMEOUT_MS = 2_000
/** The timeout of an answer's headers in ms: validation follows an upload's answer, and downloads start at once. */
const HEADERS_TIMEOUT_MS = 60_000
const PAGE_MAX = 100

async function openAgent(): Promise<Agent> {
  const { Agent } = await import('undici')
  return new Agent({ headersTimeout: HEADERS_TIMEOUT_MS, bodyTimeout: HEADERS_TIMEOUT_MS })
}

export class ApiClient {
  readonly baseUrl: string
  #agent: Promise<Agent> | null = null
  readonly #options: ClientOptions
  #reached = false
  #isClosed = false

  constructor(options: ClientOptions) {
    this.baseUrl = options.baseUrl.replace(/\/+$/, '').replace(/\/v1$/, '')
    this.#options = options
  }

  /** A hash that identifies the API key in stored files. */
  get keyHash(): string {
    return hash('sha256', this.#options.apiKey)
  }

  async get<T extends TSchema>(shape: T, path: string, query: Call['query'] = {}): Promise<Static<T>> {
    return await this.object(shape, { method: 'GET', path, query })
  }

  /** Sends a POST with `body` as JSON, if given. */
  async post<T extends TSchema>(
    shape: T,
    path: string,
    body?: unknown,
    headers: Record<string, string> = {},
  ): Promise<Static<T>> {
    const json = body === undefined ? undefined : () => JSON.stringify(body)
    return await this.object(shape, { method: 'POST', path, headers, body: json })
  }

  /** Sends a POST as `post`, but not again once it may have had its effect. */
  async postOnce<T extends TSchema>(shape: T, path: string, body: object): Promise<Static<T>> {
    return await this.object(shape, { method: 'POST', path, body: () => JSON.stringify(body), once: true })
  }

  /** Calls the API and returns the answer's bytes, unparsed. */
  async bytes(call: Call): Promise<Buffer> {
    return await this.#exchange(call, ({ body }) => bytesOf(body))
  }

  async delete<T extends TSchema>(shape: T, path: string): Promise<Static<T>> {
    return await this.object(shape, { method: 'DELETE', path })
  }

  /** Lists up to `count` objects, newest first, from as many pages as needed. */
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
      for (const data of page.data) found.push(readAnswer(shape, data, `GET ${path}`))
      if (!page.has_more || page.next_cursor === null) break
      cursor = page.next_cursor
    }
    return found
  }

  /** Opens the body of an answer as a stream. The caller handles a broken connection while the body is read. */
  async stream(path: string, headers: Record<string, string> = {}): Promise<Dispatcher.ResponseData> {
    return await this.#exchange({ method: 'GET', path, headers }, async (response) => response)
  }

  /** Streams the body of an answer that cannot be resumed; throws a Failure when its connection breaks. */
  async *whole(
    path: string,
    query: Call['query'],
    headers: Record<string, string> = {},
  ): AsyncGenerator<Buffer, void> {
    const asked = withQuery(path, query)
    const { body } = await this.stream(asked, headers)
    try {
      yield* body
    } catch (error) {
      if (this.#options.signal?.aborted) throw new Interrupted()
      throw new Failure(
        `the connection broke (${reasonOf(error)}, GET ${asked}), so what was printed is not complete; run the command again`,
        undefined,
        { cause: error },
      )
    }
  }

  /** Reads a page of JSONL completely, with the cursor of the next page, and whether there is one. */
  async page(path: string, query: Call['query']): Promise<Page> {
    return await this.#exchange({ method: 'GET', path, query }, async ({ headers, body }) => {
      const next = String(headers['x-next-after'])
      return { headers, bytes: await bytesOf(body), next, hasMore: headers['x-has-more'] === 'true' }
    })
  }

  /** The version of the service; null where the service does not report it. */
  async serviceVersion(): Promise<string | null> {
    try {
      const { body } = await this.#request(
        { method: 'GET', path: '/readyz' },
        AbortSignal.timeout(VERSION_TIMEOUT_MS),
      )
      const said = parsedJson(await body.text())
      return isRecord(said) && typeof said.version === 'string' ? said.version : null
    } catch {
      return null
    }
  }

  /** Closes connections. Calls in progress end as if they were interrupted. */
  async close(): Promise<void> {
    this.#isClosed = true
    await (await this.#agent)?.destroy()
  }

  /** Calls the API and returns the answer, JSON of the shape. */
  async object<T extends TSchema>(shape: T, call: Call): Promise<Static<T>> {
    const parsed = parsedJson((await this.bytes(call)).toString())
    if (parsed === undefined)
      throw new Unreadable(
        `the answer to ${call.method} ${call.path} is not JSON; check that ${this.baseUrl} is an Offpeak server`,
      )
    return readAnswer(shape, parsed, `${call.method} ${call.path}`)
  }

  /** Retries until an answer has been read, its failure is final, or the time for retries is over. */
  async #exchange<T>(call: Call, read: (response: Dispatcher.ResponseData) => Promise<T>): Promise<T> {
    const { clock, signal } = this.#options
    const began = clock.now()
    for (let attempt = 1; ; attempt++) {
      if (signal?.aborted || this.#isClosed) throw new Interrupted()
      const outcome = await this.#attempt(call, read)
      if ('answer' in outcome) return outcome.answer
      const patienceMs = this.#reached ? (this.#options.patienceMs ?? PATIENCE_MS) : FIRST_PATIENCE_MS
      if (outcome.final || clock.now() >= began + patienceMs) throw outcome.failure
      const delayMs = retryDelayMs(attempt, outcome.retryAfterDelayMs, Math.random())
      if (delayMs > 1000) this.#options.onRetry?.(outcome.failure.message, delayMs, clock.now() - began)
      await sleep(clock, delayMs, signal)
    }
  }

  async #attempt<T>(
    call: Call,
    read: (response: Dispatcher.ResponseData) => Promise<T>,
  ): Promise<{ answer: T } | { failure: Failure; final: boolean; retryAfterDelayMs: number | null }> {
    const { clock, signal } = this.#options
    const name = `${call.method} ${call.path}`
    try {
      const response = await this.#request(call)
      this.#reached = true
      const status = response.statusCode
      if (status >= 200 && status < 300) return { answer: await read(response) }
      const text = (await bytesOf(response.body).catch(() => '')).toString()
      const requestId = response.headers['x-service-request-id']
      const error = readError(text)
      return {
        failure: new ApiError(name, {
          status,
          requestId: typeof requestId === 'string' ? requestId : null,
          text: text === '' ? (http.STATUS_CODES[status] ?? '') : text,
        }),
        final:
          error?.never_fits === true ||
          !worthRetrying(status, error?.code ?? null) ||
          (call.once === true && status !== 429 && status !== 503),
        retryAfterDelayMs: retryAfterMs(response.headers, clock.now(), Number.POSITIVE_INFINITY) ?? null,
      }
    } catch (error) {
      if (signal?.aborted) throw new Interrupted()
      const isBroken = BROKEN.some((code) => hasCode(error, code))
      const final = isBroken ? call.once === true : !this.#reached
      return { failure: this.#unreachable(name, error, isBroken && final), final, retryAfterDelayMs: null }
    }
  }

  async #request(call: Call, signal = this.#options.signal): Promise<Dispatcher.ResponseData> {
    const url = new URL(`${this.baseUrl}${withQuery(call.path, call.query)}`)
    const body = await call.body?.()
    this.#agent ??= openAgent()
    const agent = await this.#agent
    return await agent.request({
      origin: url.origin,
      path: url.pathname + url.search,
      method: call.method,
      headers: {
        authorization: `Bearer ${this.#options.apiKey}`,
        'user-agent': `offpeak/${this.#options.version ?? ''}`,
        // Answers have the API's own form, whatever the compatibility mode of the key.
        'x-offpeak-compat': 'none',
        ...((typeof body === 'string' || Buffer.isBuffer(body)) && { 'content-type': 'application/json' }),
        ...call.headers,
      },
      body: body ?? null,
      signal: signal ?? null,
    })
  }

  #unreachable(name: string, error: unknown, isReceived: boolean): Unreadable {
    const advice = isReceived
      ? 'the call may have had its effect: look before you repeat it'
      : 'start it with "offpeak serve", or check OFFPEAK_BASE_URL'
    return new Unreadable(
      `${this.baseUrl} cannot be reached (${reasonOf(error)}, ${name}); ${advice}`,
      undefined,
      { cause: error },
    )
  }
}

/** Adds the query parameters that are defined to a path. */
function withQuery(path: string, query: Call['query'] = {}): string {
  const given = Object.entries(query).flatMap(([name, value]) =>
    value === undefined ? [] : [[name, String(value)]],
  )
  return given.length === 0 ? path : `${path}?${new URLSearchParams(given)}`
}

function reasonOf(error: unknown): string {
  const said = error instanceof Error ? error.message || error.name : String(error)
  // OpenSSL's message for an answer in HTTP.
  return /wrong version number/.test(said) ? 'it does not speak TLS: try http://' : said.trim()
}

/** The path of an object: `/v1/batches/batch_01k0…`. */
export function pathOf(kind: string, id: string): string {
  return `/v1/${kind}/${encodeURIComponent(id)}`
}

// Delays between the attempts of an API call, and which answers are retried.

const FIRST_MS = 250
const LONGEST_MS = 10_000

/**
 * The milliseconds before attempt `attempt` + 1 (attempts count from 1): doubling, with jitter from half to whole, and
 * never less than Retry-After. `random` is in [0, 1).
 */
export function retryDelayMs(attempt: number, retryAfterDelayMs: number | null, random: number): number {
  const ceiling = Math.min(LONGEST_MS, FIRST_MS * 2 ** (attempt - 1))
  return Math.max(ceiling * (0.5 + random / 2), retryAfterDelayMs ?? 0)
}

/** Error codes of an established connection that broke: the server may have received the call. */
const BROKEN = [
  ...['ECONNRESET', 'EPIPE', 'UND_ERR_SOCKET', 'UND_ERR_HEADERS_TIMEOUT', 'UND_ERR_BODY_TIMEOUT'],
  'UND_ERR_RES_CONTENT_LENGTH_MISMATCH',
]

/** Whether a retry may help. An exceeded spending limit is a 429 for which a short wait does not help. */
export function worthRetrying(status: number, code: string | null): boolean {
  if (code === 'idempotency_in_progress') return true
  if (status === 429) return code !== 'usage_limit_exceeded'
  return status === 500 || status === 502 || status === 503 || status === 504
}

// Shapes of answers that the command line needs and src/wire does not have, or has in a stricter form. Other fields
// of an answer are kept, and shown by --json.

/** The shape of an answer that is shown unchanged. */
export const AnyObject = Type.Object({})

export const DeletedObject = Type.Object({ id: Type.String() })

/** A page of any list; its items are checked one by one. */
const ListPage = Type.Object({
  data: Type.Array(Type.Unknown()),
  has_more: Type.Boolean(),
  next_cursor: orNull(Type.String()),
})

/** An error of the API of any version, with codes that this version may not know. */
const ErrorAnswer = Type.Object({
  error: Type.Object({
    code: Type.String(),
    message: Type.String(),
    param: Type.Optional(orNull(Type.String())),
    never_fits: Type.Optional(Type.Boolean()),
    limit_id: Type.Optional(Type.String()),
  }),
})

export const ResultLine = Type.Object({
  custom_id: Type.String(),
  error: orNull(
    Type.Object({ code: Type.String(), message: Type.String(), limit_id: Type.Optional(Type.String()) }),
  ),
})

interface Answer {
  status: number
  /** The service's request ID; null when another server answered. */
  requestId: string | null
  text: string
}

export class ApiError extends Failure {
  readonly status: number
  /** The code of the API's error; null when the answer is no such error. */
  readonly code: string | null
  /** The unparsed body of an error answer. */
  readonly body: string

  /** Makes the error of a call, named by its method and path: `GET /v1/files/file_x`. */
  constructor(call: string, answer: Answer) {
    const error = readError(answer.text)
    const place = [
      error === null ? String(answer.status) : `${answer.status} ${error.code}`,
      call,
      ...(error?.param ? [`parameter ${error.param}`] : []),
      ...(answer.requestId === null ? [] : [`request ${answer.requestId}`]),
    ]
    const what = error === null ? 'a proxy or another server answered instead of Offpeak' : error.message
    const advice = error === null ? (PROXY_ADVICE[answer.status] ?? CHECK_ADDRESS) : adviceFor(error)
    super(visible(`${what.replace(/\.$/, '')} (${place.join(', ')}).${advice === null ? '' : ` ${advice}`}`))
    this.name = 'ApiError'
    this.status = answer.status
    this.code = error?.code ?? null
    this.body = answer.text
  }
}

/** The answer of a call; `otherwise` where the service answered with one of the statuses. */
export async function unless<T, U>(
  statuses: readonly number[],
  answer: Promise<T>,
  otherwise: U,
): Promise<T | U> {
  return await answer.catch((error: unknown) => {
    if (error instanceof ApiError && statuses.includes(error.status)) return otherwise
    throw error
  })
}

const CHECK_ADDRESS = 'Check OFFPEAK_BASE_URL.'
const UNANSWERED =
  'A proxy before the service has no answer from it: see whether the service runs, and try again.'
/** The advice by status for answers of a proxy rather than the API. */
const PROXY_ADVICE: Partial<Record<number, string>> = {
  413: 'A proxy before the service takes no body of this size: raise its limit (nginx: client_max_body_size).',
  429: 'A proxy before the service takes no more calls now: try again later.',
  502: UNANSWERED,
  503: UNANSWERED,
  504: UNANSWERED,
}

/** Reads an error of the API; null when `text` is none. */
function readError(text: string) {
  const parsed = parsedJson(text)
  return Value.Check(ErrorAnswer, parsed) ? parsed.error : null
}

/** Advice that replaces calls and fields of the API in the table's advice. Null: the message is enough. */
const ADVICE: Partial<Record<ErrorCode, string | null>> = {
  invalid_request: null,
  method_not_allowed: CHECK_ADDRESS,
  invalid_api_key: 'Check the key in OFFPEAK_API_KEY, or in the file api-key of the data folder.',
  range_not_satisfiable: null,
  context_length_exceeded: null,
  request_not_found: 'Check the ID; each line of a result file has one.',
  model_not_found: 'Choose a model that "offpeak models list" shows.',
  endpoint_not_supported:
    'Choose a model that serves it; "offpeak models get ID" shows the `endpoints` of one.',
  idempotency_cache_not_requested: null,
  upload_completing: 'Wait a moment, then look whether the file is there.',
  webhook_disabled: 'Delete the webhook, and create it again.',
  rate_limit_exceeded: 'Wait a moment and run the command again.',
  usage_limit_exceeded:
    'Raise the limit with "offpeak limits set ID --amount N", or wait until its window ends.',
  quota_exceeded:
    'Follow the advice in the message; "offpeak quotas" shows each quota and how much of it is used.',
  service_unavailable: 'Wait a moment and run the command again.',
}

/** The advice for an error; null when there is none, or this version does not know its code. */
export function adviceFor({
  code,
  limit_id,
}: {
  code: string
  limit_id?: string | undefined
}): string | null {
  if (!isErrorCode(code)) return null
  const here = ADVICE[code]
  const advice = here === undefined ? ERRORS[code].advice : here
  return limit_id === undefined
    ? advice
    : (advice?.replace('limits set ID', `limits set ${limit_id}`) ?? null)
}

async function bytesOf(body: Dispatcher.ResponseData['body']): Promise<Buffer> {
  return (await readWhole(body, Number.POSITIVE_INFINITY)).bytes
}
