// Reads a model server's metrics, over a connection of its own: those of lines may all be busy.
import type { ServerTraffic } from '../backend.ts'
import { Exchange, requestHead } from '../http1/exchange.ts'
import { HttpPool } from '../http1/http-pool.ts'
import type { HttpProxy } from '../http1/proxy.ts'
import { ResponseMemory } from '../response-memory.ts'
import { serverAddressOf } from './server-address.ts'

/** What is read later than this says nothing of now. */
const TIMEOUT_MS = 900
const ANSWER_BYTES_MAX = 4 * 1024 * 1024

interface TrafficReaderOptions {
  url: string
  certificates: { ca?: Buffer; cert?: Buffer; key?: Buffer }
  proxy: HttpProxy | null
  /** The address to connect to instead of that of the URL's name; null: that one. */
  connectHostOf: (origin: string) => string | null
  /** Sent with each request to this origin. */
  headers: (origin: string) => ReadonlyMap<string, string>
}

export class TrafficReader {
  readonly #options: TrafficReaderOptions
  readonly #address: ReturnType<typeof serverAddressOf>
  readonly #pool: HttpPool

  /** Throws a TypeError for a URL that cannot be used. */
  constructor(options: TrafficReaderOptions) {
    this.#options = options
    this.#address = serverAddressOf(options.url)
    this.#pool = new HttpPool(
      {
        ...this.#address,
        connectHost: options.connectHostOf(this.#address.origin) ?? this.#address.host,
        timeout_ms: TIMEOUT_MS,
        connectTimeoutMs: TIMEOUT_MS,
        answerBytesMax: ANSWER_BYTES_MAX,
        redact: (text) => text,
        proxy: options.proxy,
        certificates: options.certificates,
        budget: new ResponseMemory(ANSWER_BYTES_MAX),
      },
      1,
    )
  }

  /** Null where nothing usable is answered in time. */
  read(): Promise<ServerTraffic | null> {
    const { proxy, headers } = this.#options
    const { authority, tls, origin, path } = this.#address
    const isForwarded = proxy !== null && !tls
    const all = new Map(headers(origin))
    if (isForwarded && proxy.authorization !== null) all.set('proxy-authorization', proxy.authorization)
    const head = requestHead(authority, `${isForwarded ? origin : ''}${path('')}`, all, 'GET')
    return new Promise((resolve) => {
      this.#pool.dispatch(
        new Exchange(head, new Uint8Array(), '', (found) => {
          resolve(found.kind === 'whole' && found.status === 200 ? trafficOf(found.body.toString()) : null)
        }),
      )
    })
  }

  close(): void {
    this.#pool.close()
  }
}

// A model server's /metrics describes its traffic, in the words of vLLM, SGLang and llama.cpp. Counts of several
// engines behind one address are added up; of their caches the fullest counts. Values are as they stand there, but for NaN,
// by which a metric says nothing: `TrafficCheck` judges what a server can have.
// https://docs.vllm.ai/en/stable/usage/metrics/, https://docs.sglang.io/references/production_metrics.html,
// https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md

interface Dialect {
  running: string
  waiting: string
  /** The name of today first. */
  cache: readonly string[]
  tokens: string
}

const DIALECTS: readonly Dialect[] = [
  {
    running: 'vllm:num_requests_running',
    waiting: 'vllm:num_requests_waiting',
    cache: ['vllm:kv_cache_usage_perc', 'vllm:gpu_cache_usage_perc'],
    tokens: 'vllm:generation_tokens_total',
  },
  {
    running: 'sglang:num_running_reqs',
    waiting: 'sglang:num_queue_reqs',
    cache: ['sglang:token_usage'],
    tokens: 'sglang:generation_tokens_total',
  },
  {
    running: 'llamacpp:requests_processing',
    waiting: 'llamacpp:requests_deferred',
    cache: ['llamacpp:kv_cache_usage_ratio'],
    tokens: 'llamacpp:tokens_predicted_total',
  },
]

/** One sample of the text format: name, labels, value. */
const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{[^\n]*\})?[ \t]+([^\s]+)/gm

/** Null for what shows none of these servers' metrics, or not how many requests run. */
export function trafficOf(text: string): ServerTraffic | null {
  const values = new Map<string, number[]>()
  for (const [, name, value] of text.matchAll(SAMPLE)) {
    const known = values.get(name!)
    if (known) known.push(numberOf(value!))
    else values.set(name!, [numberOf(value!)])
  }
  const combined = (name: string, combine: (values: readonly number[]) => number): number | null => {
    const all = values.get(name) ?? []
    if (all.length === 0) return null
    return all.find((value) => value < 0) ?? combine(all)
  }
  const sum = (name: string): number | null => combined(name, (all) => all.reduce((a, b) => a + b, 0))
  for (const dialect of DIALECTS) {
    const running = sum(dialect.running)
    if (running === null) continue
    const waiting = sum(dialect.waiting) ?? 0
    if (Number.isNaN(running + waiting)) return null
    const caches = dialect.cache.map((name) => combined(name, (all) => Math.max(...all)))
    return {
      running,
      waiting,
      cache: caches.find(isSaid) ?? null,
      tokens: [sum(dialect.tokens)].find(isSaid) ?? null,
    }
  }
  return null
}

function isSaid(value: number | null): boolean {
  return value !== null && !Number.isNaN(value)
}

/** `Inf` and its like are how Prometheus writes what JavaScript calls Infinity. */
function numberOf(text: string): number {
  return Number(text.replace(/inf(inity)?$/i, 'Infinity'))
}
