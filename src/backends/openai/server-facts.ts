// Reads what a server says of itself: the models that it offers, with their endpoints, context windows and base models.

import { type Certificates, NO_CERTIFICATES } from '../../domain/credentials.ts'
import { type EndpointPath, endpointPathOf } from '../../domain/endpoint.ts'
import { isRecord, parsedJson } from '../../domain/json-record.ts'
import type { Target } from '../http1/connection.ts'
import { Exchange, type Exchanged, unsendable } from '../http1/exchange.ts'
import { HttpPool } from '../http1/http-pool.ts'
import { type HttpProxy, proxyOf } from '../http1/proxy.ts'
import { ResponseMemory } from '../response-memory.ts'
import { secretsOf } from '../verdict/redact.ts'
import { readUpstreamError } from '../verdict/upstream-error.ts'
import { headersOf, headOf, serverAddressOf } from './server-address.ts'

const TIMEOUT_MS = 10_000
/** The largest size of a list of models in bytes. */
const LIST_BYTES_MAX = 8 * 1024 * 1024
/** The most models that are read from a list. */
export const LISTED_MAX = 10_000

/** The error when no server answers at the address. */
export class ServerDown extends Error {}

export interface ListedModel extends ServedFacts {
  id: string
  /** The endpoints that the model serves; null where the server does not name them. */
  endpoints: EndpointPath[] | null
}

/** The options by which the server is reached, those of its lines. */
export interface ListOptions {
  api_key?: string | null
  headers?: Readonly<Record<string, string>>
  certificates?: (() => Certificates) | undefined
  proxy?: string | null
  timeout_ms?: number
}

/**
 * Reads the models of `GET base_url/models`, in the server's order, at least one. Throws an Error whose message says
 * how to fix the address, the key or the server.
 */
export async function listUpstreamModels(
  base_url: string,
  options: ListOptions = {},
): Promise<ListedModel[]> {
  const { api_key, headers = {}, timeout_ms = TIMEOUT_MS } = options
  const address = serverAddressOf(base_url)
  const where = `GET ${address.origin}${address.path('/models').split('?', 1)[0]}`
  const { redact } = secretsOf([api_key, ...Object.values(headers)])
  const reader = new SideReader({
    url: base_url,
    resource: '/models',
    timeout_ms,
    answerBytesMax: LIST_BYTES_MAX,
    certificates: options.certificates,
    proxy: options.proxy ? proxyOf(options.proxy) : null,
    headers: () => headersOf({ api_key, headers }),
  })
  const answer = await reader.read().finally(() => reader.close())
  if (answer.kind === 'broken') {
    const { code, reason, operatorReason } = answer
    if (code === 'upstream_invalid_response') throw new Error(`${where}: ${reason}.`)
    throw new ServerDown(
      `${where} got no answer (${redact(operatorReason ?? reason)}). Is the server running?`,
    )
  }
  const { status, body } = answer
  if (status === 401 || status === 403) throw new Error(`${where} answered ${status}: check the API key.`)
  if (status === 404) throw new Error(`${where} answered 404: does the base URL end in /v1?`)
  if (status !== 200) {
    throw new Error(
      `${where} answered ${status}: ${readUpstreamError(body, redact).message || 'no reason given'}`,
    )
  }
  const models = modelsOf(body)
  if (models === null) throw new Error(`${where} did not answer with a list of models.`)
  if (models.length === 0) throw new Error(`${where} lists no model.`)
  return models
}

function modelsOf(body: Buffer): ListedModel[] | null {
  const parsed = parsedJson(body.toString())
  // Together answers with the bare list.
  const data = isRecord(parsed) ? parsed.data : parsed
  // Ollama with nothing pulled says `"data": null`.
  if (data === null && isRecord(parsed) && parsed.object === 'list') return []
  if (!Array.isArray(data)) return null
  const models = new Map<string, ListedModel>()
  for (const model of data) {
    if (models.size === LISTED_MAX) break
    if (!isRecord(model) || typeof model.id !== 'string' || model.id === '' || models.has(model.id)) continue
    models.set(model.id, { id: model.id, endpoints: servedEndpoints(model), ...servedFacts(model) })
  }
  return [...models.values()]
}

// Servers name the endpoints of a model in different fields of their lists of models:
// - `endpoints`, `supported_endpoints`: paths (this service and its simulator, LiteLLM, GitHub)
// - `capabilities`: words, or words that are true (Infinity, Mistral)
// - `type`: a word (LM Studio, Together)

const GENERATES: readonly EndpointPath[] = ['/v1/chat/completions', '/v1/completions', '/v1/responses']

/** The endpoints of models that LM Studio calls by these words. */
const ALSO_MESSAGES: readonly EndpointPath[] = [...GENERATES, '/v1/messages']

const WORDS: Readonly<Record<string, readonly EndpointPath[]>> = {
  chat: GENERATES,
  completion: GENERATES,
  completion_chat: GENERATES,
  language: GENERATES,
  llm: ALSO_MESSAGES,
  vlm: ALSO_MESSAGES,
  embed: ['/v1/embeddings'],
  embedding: ['/v1/embeddings'],
  embeddings: ['/v1/embeddings'],
  rerank: ['/v1/rerank'],
  score: ['/v1/score'],
}

/** The endpoints of a listed model; null where the server names none that are known. */
function servedEndpoints(model: Readonly<Record<string, unknown>>): EndpointPath[] | null {
  const paths = [model.endpoints, model.supported_endpoints]
    .flatMap(words)
    .map(endpointPathOf)
    .filter((path) => path !== null)
  const said = [model.capabilities, model.type].flatMap(words)
  const meant = said.flatMap((word) => (Object.hasOwn(WORDS, word) ? (WORDS[word] ?? []) : []))
  const served = paths.length > 0 ? paths : meant
  return served.length === 0 ? null : [...new Set(served)]
}

function words(value: unknown): string[] {
  if (typeof value === 'string') return [value.toLowerCase()]
  if (Array.isArray(value)) return value.filter((one) => typeof one === 'string')
  return isRecord(value) ? Object.keys(value).filter((key) => value[key] === true) : []
}

// Servers describe a model in different fields as well:
// - `max_model_len`: vLLM, SGLang; `meta.n_ctx`, in older versions `meta.n_ctx_train` alone: llama.cpp
// - `context_window`, `context_length`, `loaded_context_length`, `max_context_length`: this service, Groq, OpenRouter,
//   Together, LM Studio, Mistral
// - `max_input_tokens`, and `max_output_tokens` beside it: LiteLLM
// - `parent`: the model that a LoRA adapter belongs to, `root`: the weights behind a name (vLLM, SGLang)

const WINDOW_MIN = 16
const WINDOW_MAX = 2 ** 30

interface ServedFacts {
  /** Tokens of input and output together; null where the server does not say. */
  context_window: number | null
  /** The ID of the base model of a LoRA adapter. */
  parent: string | null
  /** The ID of the model's weights: two IDs with the same root are names of one model. */
  root: string | null
}

export function servedFacts(model: Readonly<Record<string, unknown>>): ServedFacts {
  const meta = isRecord(model.meta) ? model.meta : {}
  const windows = [
    model.max_model_len,
    meta.n_ctx,
    model.context_window,
    model.loaded_context_length,
    model.context_length,
    model.max_context_length,
    meta.n_ctx_train,
    sumOf(model.max_input_tokens, model.max_output_tokens),
  ]
  return {
    context_window: windows.find(isWindow) ?? null,
    parent: textOf(model.parent),
    root: textOf(model.root),
  }
}

/** Whether a context window is plausible: an impossible one would reject every line, or none. */
function isWindow(value: unknown): value is number {
  return Number.isInteger(value) && Number(value) >= WINDOW_MIN && Number(value) <= WINDOW_MAX
}

function sumOf(input: unknown, output: unknown): unknown {
  return typeof input === 'number' && typeof output === 'number' ? input + output : input
}

function textOf(value: unknown): string | null {
  return typeof value === 'string' && value !== '' ? value : null
}

/** The largest size of a metrics page in bytes. */
const ANSWER_BYTES_MAX = 4 * 1024 * 1024

interface SideReaderOptions {
  url: string
  /** The path below the server's URL; '' for its metrics. */
  resource: '' | '/models'
  timeout_ms: number
  answerBytesMax?: number
  certificates: (() => Certificates) | undefined
  proxy: HttpProxy | null
  /** The address to connect to instead of the URL's host; null: the host. */
  connectHostOf?: (origin: string) => string | null
  /** The way to a server that the worker has started. */
  own?: Pick<Target, 'socket' | 'isOwn'>
  /** Returns the headers of each request to an origin. */
  headers: (origin: string) => ReadonlyMap<string, string>
}

/** Reads the metrics or the models of a server over its own connection, since those for lines may all be busy. */
export class SideReader {
  readonly #options: SideReaderOptions
  readonly #address: ReturnType<typeof serverAddressOf>
  readonly #pool: HttpPool

  /** Creates a reader. Throws a TypeError for a URL that cannot be used. */
  constructor(options: SideReaderOptions) {
    const { timeout_ms, answerBytesMax = ANSWER_BYTES_MAX } = options
    this.#options = options
    this.#address = serverAddressOf(options.url)
    this.#pool = new HttpPool(
      {
        ...this.#address,
        ...options.own,
        connectHost: options.connectHostOf?.(this.#address.origin) ?? this.#address.host,
        timeout_ms,
        connectTimeoutMs: timeout_ms,
        answerBytesMax,
        redact: (text) => text,
        proxy: options.proxy,
        certificates: options.certificates ?? (() => NO_CERTIFICATES),
        budget: new ResponseMemory(answerBytesMax),
      },
      1,
    )
  }

  read(): Promise<Exchanged> {
    const { proxy, headers, resource } = this.#options
    return new Promise((resolve) => {
      try {
        const head = headOf(this.#address, resource, headers(this.#address.origin), proxy, 'GET')
        this.#pool.dispatch(new Exchange(head, new Uint8Array(), '', resolve))
      } catch (error) {
        resolve(unsendable(error))
      }
    })
  }

  close(): void {
    this.#pool.close()
  }
}
