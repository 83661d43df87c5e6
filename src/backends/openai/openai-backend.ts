// A server that speaks OpenAI's API: vLLM, SGLang, llama.cpp, Ollama or a hosted provider. The body of a request is
// sent byte for byte. HTTP/1.1 with keep-alive carries one request per connection at a time, so a slow answer delays no
// other.
import { type Certificates, NO_CERTIFICATES } from '../../domain/credentials.ts'
import { type EndpointPath, endpointOf } from '../../domain/endpoint.ts'
import {
  AbortWatch,
  type Backend,
  type BackendCall,
  type BackendResult,
  type Done,
  ownFailure,
  unanswered,
} from '../backend.ts'
import { Exchange, type Exchanged, unsendable, withHeader } from '../http1/exchange.ts'
import { HttpPool } from '../http1/http-pool.ts'
import { proxyOf } from '../http1/proxy.ts'
import { ResponseMemory } from '../response-memory.ts'
import type { SecretFiles } from '../secret-files.ts'
import { classify, type Secrets } from '../verdict/classify.ts'
import { secretsOf } from '../verdict/redact.ts'
import { headersOf, headOf, serverAddressOf } from './server-address.ts'
import { SideReader } from './server-facts.ts'
import { queryUrl, type SeriesQuery, TrafficReader } from './server-traffic.ts'

export interface OpenAiBackendOptions {
  /** The name of the upstream in audit records, logs and metrics. */
  name: string
  /** The base URL, such as `http://127.0.0.1:8000/v1`; the endpoint's path below `/v1` is added to it. */
  base_url: string
  /** The key sent as `Authorization: Bearer`, unless `headers` has one. */
  api_key?: string | null
  /** The longest time from the sending of a request to the last byte of its answer. */
  timeout_ms: number
  /** The limit of open connections to the server; further calls wait for one. */
  connections_max: number
  /** Whether a connection may serve several projects, because the server never confuses answers. */
  sharesConnections?: boolean
  /** The limit on the memory of answers, shared with other backends of this process. */
  budget?: ResponseMemory
  /** The file of the API key, in place of `api_key`. */
  keyFile?: SecretFiles<string> | null
  /** Returns the current certificate authorities, client certificate and key. */
  certificates?: (() => Certificates) | undefined
  /** The address of the server, in place of the one that its name resolves to. */
  address?: string | null
  /** A Unix socket to connect to instead of the URL's host. */
  socket?: string | null
  /** Checks that a connection just established leads to the right server; nothing is sent before. */
  isOwn?: (() => Promise<boolean>) | null
  /** The address of a proxy before the server. */
  proxy?: string | null
  /** Configured headers that every request to the server has. */
  headers?: Readonly<Record<string, string>>
  /** The header, in lower case, that names the project of a request; null: none does. */
  fairness_header?: string | null
  metrics_url?: string | null
  /** The query where `metrics_url` is the address of a Prometheus; null: it is the metrics page of the server. */
  query?: SeriesQuery | null
}

const ANSWER_BYTES_MAX = 64 * 1024 * 1024
/** The longest time that a timer of Node can wait: 24 days, in ms. */
const TIMER_MS_MAX = 2 ** 31 - 1
const CONNECT_TIMEOUT_MS_MAX = 10_000
/** The timeout of reading traffic: a later answer would be outdated. */
const TRAFFIC_TIMEOUT_MS = 900
const PROBE_TIMEOUT_MS = 5_000
/** Statuses of a key that may send lines though it may not list models. */
const NOT_ALLOWED: ReadonlySet<number> = new Set([401, 403])

/** Creates the backend of a server. Throws a TypeError for a base_url that cannot be used. */
export function openaiBackend(options: OpenAiBackendOptions): Backend {
  const { name, timeout_ms, connections_max, fairness_header = null, keyFile = null } = options
  const address = serverAddressOf(options.base_url)
  const proxy = options.proxy ? proxyOf(options.proxy) : null
  const headOfEndpoint = (path: EndpointPath, api_key: string | null): Buffer => {
    const own = Object.entries(endpointOf(path).headers ?? {})
    const known = headersOf({ ...options, api_key })
    const headers = new Map([['content-type', 'application/json'], ...own, ...known])
    return headOf(address, path.slice('/v1'.length), headers, proxy, 'POST')
  }
  // An answer in flight may quote the previous key.
  const prepare = (api_key: string | null, previous: string | null): Prepared => ({
    api_key,
    heads: new Map(),
    secrets: secretsOf([
      api_key,
      previous,
      proxy?.authorization?.replace(/^Basic /, ''),
      ...Object.values(options.headers ?? {}),
    ]),
  })
  let prepared = prepare(keyFile ? keyFile.read() : (options.api_key ?? null), null)
  const current = (): Prepared => {
    const api_key = keyFile ? keyFile.read() : prepared.api_key
    if (api_key !== prepared.api_key) prepared = prepare(api_key, prepared.api_key)
    return prepared
  }
  const watch = new AbortWatch()
  const own = { socket: options.socket ?? null, isOwn: options.isOwn ?? null }
  const pool = new HttpPool(
    {
      ...address,
      ...own,
      connectHost: options.address ?? address.host,
      timeout_ms: Math.min(timeout_ms, TIMER_MS_MAX),
      connectTimeoutMs: Math.min(timeout_ms, CONNECT_TIMEOUT_MS_MAX),
      answerBytesMax: ANSWER_BYTES_MAX,
      redact: (text) => prepared.secrets.redact(text),
      proxy,
      certificates: options.certificates ?? (() => NO_CERTIFICATES),
      budget: options.budget ?? new ResponseMemory(ANSWER_BYTES_MAX),
    },
    connections_max,
  )

  // A configured header wins.
  const tracesItself = Object.keys(options.headers ?? {}).some((key) => key.toLowerCase() === 'traceparent')

  // Most requests of a chunk have the same head, and follow each other.
  let last: { of: Buffer; project: string | null; trace: string | null; head: Buffer } | null = null

  function headFor({ endpoint, traceparent, project_id }: BackendCall): Buffer {
    const { heads, api_key } = current()
    let of = heads.get(endpoint)
    if (of === undefined) {
      of = headOfEndpoint(endpoint, api_key)
      heads.set(endpoint, of)
    }
    const project = fairness_header === null ? null : project_id
    const trace = tracesItself ? null : (traceparent ?? null)
    if (project === null && trace === null) return of
    if (last?.of !== of || last.project !== project || last.trace !== trace) {
      let head = of
      if (fairness_header !== null) head = withHeader(head, fairness_header, project_id)
      if (trace !== null) head = withHeader(head, 'traceparent', trace)
      last = { of, project, trace, head }
    }
    return last.head
  }

  function resultOf(outcome: Exchanged, endpoint: EndpointPath): BackendResult {
    const { secrets } = prepared
    if (outcome.kind === 'whole') return classify(outcome, endpoint, secrets)
    const { code, reason, words, operatorReason, unreachable } = outcome
    return unanswered(code, secrets.redact(reason), {
      ...(words === undefined ? {} : { words: secrets.redact(words) }),
      ...(operatorReason === undefined ? {} : { operatorReason: secrets.redact(operatorReason) }),
      ...(unreachable === true ? { unreachable } : {}),
    })
  }

  function conclude(outcome: Exchanged, { endpoint }: BackendCall, done: Done): void {
    let result: BackendResult
    try {
      result = resultOf(outcome, endpoint)
    } catch (error) {
      done(ownFailure(), error)
      return
    }
    done(result)
  }

  /** An answer comes from a socket. Other outcomes may come while a caller aborts attempts, or sends one. */
  function end(outcome: Exchanged, call: BackendCall, done: Done): void {
    if (outcome.kind === 'whole') conclude(outcome, call, done)
    else queueMicrotask(() => conclude(outcome, call, done))
  }

  const beside = (url: string, resource: '' | '/models', accept: string, timeout_ms: number): SideReader =>
    new SideReader({
      url,
      resource,
      timeout_ms,
      own,
      connectHostOf: (origin) => (origin === address.origin ? (options.address ?? null) : null),
      certificates: options.certificates,
      proxy,
      headers: (origin) => {
        // A key is sent only to the origin that it is configured for.
        const isOwn = origin === address.origin
        const headers = headersOf(isOwn ? { ...options, api_key: current().api_key } : {})
        headers.delete('content-type')
        return headers.set('accept', accept).set('accept-encoding', 'identity')
      },
    })
  const { metrics_url = null, query = null } = options
  const page =
    metrics_url === null
      ? null
      : query === null
        ? beside(metrics_url, '', 'text/plain', TRAFFIC_TIMEOUT_MS)
        : beside(queryUrl(metrics_url, query), '', 'application/json', query.timeout_ms)
  const traffic = page && new TrafficReader(() => page.read(), query)
  const models = beside(options.base_url, '/models', 'application/json', PROBE_TIMEOUT_MS)

  return {
    name,
    ...(traffic && { readTraffic: (tell) => traffic.read(tell) }),

    async probe() {
      const found = await models.read()
      if (found.kind === 'broken') {
        const { reason, operatorReason } = found
        return { isUp: false, reason: prepared.secrets.redact(operatorReason ?? reason) }
      }
      const { status } = found
      const isUp =
        status >= 502 && status <= 504 ? false : status < 500 && !NOT_ALLOWED.has(status) ? true : null
      return { isUp, reason: isUp === false ? `GET /models answered ${status}` : null }
    },

    send(call, done) {
      const { body, signal } = call
      const project_id = options.sharesConnections ? '' : call.project_id
      let head: Buffer
      try {
        head = headFor(call)
      } catch (error) {
        return end(unsendable(error), call, done)
      }
      const exchange = new Exchange(head, body, project_id, (outcome) => {
        if (signal !== undefined) watch.leave(signal, exchange)
        end(outcome, call, done)
      })
      if (signal?.aborted) return exchange.abort()
      if (signal !== undefined) watch.enter(signal, exchange)
      pool.dispatch(exchange)
    },

    async close() {
      pool.close()
      page?.close()
      models.close()
    },
  }
}

interface Prepared {
  api_key: string | null
  /** The heads of requests by endpoint, each built when the first line of the endpoint is sent. */
  heads: Map<EndpointPath, Buffer>
  secrets: Secrets
}
