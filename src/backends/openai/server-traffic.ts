// The traffic of a model server in its /metrics, or of all replicas behind a router in a Prometheus, in the names of vLLM,
// SGLang and llama.cpp. Counts of several engines are added; of their caches the fullest counts. Values stay as reported,
// except that NaN means no value; `TrafficCheck` rejects impossible ones.
// https://docs.vllm.ai/en/stable/usage/metrics/, https://docs.sglang.io/references/production_metrics.html,
// https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
import { systemClock } from '../../domain/clock.ts'
import { durationText } from '../../domain/days.ts'
import { isRecord, parsedJson } from '../../domain/json-record.ts'
import type { ServerTraffic } from '../backend.ts'
import { reasonForOperator } from '../failure-reason.ts'
import type { Exchanged } from '../http1/exchange.ts'
import { readUpstreamError } from '../verdict/upstream-error.ts'

interface Dialect {
  running: string
  waiting: string
  /** The metric of requests that wait for something other than room in the server; null: none. */
  deferred: string | null
  /** The names of the metric of the KV cache's use, the current one first. */
  cache: readonly string[]
  tokens: readonly string[]
  /** The metric of engine steps; empty where `tokens` rises while requests run. */
  steps: readonly string[]
}

/** The metrics of each server. A name may be followed by a label that its samples must have. */
const DIALECTS: readonly Dialect[] = [
  {
    running: 'vllm:num_requests_running',
    waiting: 'vllm:num_requests_waiting',
    // Requests that wait for a grammar, an adapter or a transfer of their cache.
    deferred: 'vllm:num_requests_waiting_by_reason reason="deferred"',
    cache: ['vllm:kv_cache_usage_perc', 'vllm:gpu_cache_usage_perc'],
    tokens: ['vllm:generation_tokens_total'],
    steps: [],
  },
  {
    running: 'sglang:num_running_reqs',
    waiting: 'sglang:num_queue_reqs',
    deferred: null,
    cache: ['sglang:token_usage'],
    // The second name rises by all tokens of a request when the request ends.
    tokens: ['sglang:realtime_tokens_total mode="decode"', 'sglang:generation_tokens_total'],
    steps: [],
  },
  {
    running: 'llamacpp:requests_processing',
    waiting: 'llamacpp:requests_deferred',
    deferred: null,
    // The name until May 2025.
    cache: ['llamacpp:kv_cache_usage_ratio'],
    // This counter rises by all tokens of a request when the request ends.
    tokens: ['llamacpp:tokens_predicted_total'],
    steps: ['llamacpp:n_decode_total'],
  },
]

/** The pattern of a sample in Prometheus' text format: name, labels, value. */
const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{([^\n]*)\})?[ \t]+([^\s]+)/gm
const LABEL = /\b(\w+)="((?:[^"\\]|\\.)*)",?\s*/g
/** The labels of ranks of one engine, each of which may report the same requests. */
const RANK = /^(tp|pp|moe_ep|moe_tp|attn_tp|ep)_rank$/
const READ = new Set(
  DIALECTS.flatMap((one) => [
    one.running,
    one.waiting,
    one.deferred ?? '',
    ...one.cache,
    ...one.tokens,
    ...one.steps,
  ]).map((name) => name.split(' ', 1)[0]),
)

interface Sample {
  labels: ReadonlyMap<string, string>
  value: number
}

/** Reads a metrics page; null if it has none of the known metrics, or no number of running requests. */
export function trafficOf(text: string): ServerTraffic | null {
  const samples = Array.from(text.matchAll(SAMPLE), ([, name = '', labels = '', value = '']) => ({
    name,
    labels: READ.has(name)
      ? new Map(Array.from(labels.matchAll(LABEL), ([, label = '', of = '']) => [label, of]))
      : new Map(),
    value: numberOf(value),
  }))
  return trafficIn(Map.groupBy(samples, ({ name }) => name))
}

/** The query for the metrics of a server's replicas in a Prometheus. */
export interface SeriesQuery {
  /** A selector of PromQL, `{namespace="llm"}`; without a metric's name, all known names are added. */
  selector: string
  timeout_ms: number
  /** The age in ms from which samples of a Prometheus are ignored. */
  stale_after_ms: number
}

/** The URL of the query at the API of Prometheus, which Thanos, Mimir and VictoriaMetrics have as well. */
export function queryUrl(address: string, { selector, stale_after_ms }: SeriesQuery): string {
  const url = new URL(address)
  const names = `__name__=~"${[...READ].filter(Boolean).join('|')}"`
  const named = selector.startsWith('{') ? selector.replace(/^\{\s*/, `{${names},`) : selector
  url.pathname = `${url.pathname.replace(/\/+$/, '')}/api/v1/query`
  // A range query returns samples with their own times; an instant query does not.
  url.searchParams.set('query', `${named}[${stale_after_ms}ms]`)
  return url.href
}

/** Reads the last sample of each series of a query's answer, at the latest time; null without running requests. */
function trafficOfQuery(body: Buffer): ServerTraffic | null {
  const { data } = recordOf(parsedJson(body.toString()))
  const { result } = recordOf(data)
  let at = Number.NEGATIVE_INFINITY
  const samples = (Array.isArray(result) ? result : []).flatMap((series) => {
    const { metric, values } = recordOf(series)
    const { __name__: name, ...labels } = recordOf(metric)
    const last: unknown = Array.isArray(values) ? values.at(-1) : null
    const [time, value]: unknown[] = Array.isArray(last) ? last : []
    if (typeof name !== 'string' || !READ.has(name) || typeof time !== 'number') return []
    at = Math.max(at, Math.round(time * 1000))
    const texts = Object.entries(labels).map(([label, of]) => [label, String(of)] as const)
    return [{ name, labels: new Map(texts), value: numberOf(String(value)) }]
  })
  const traffic = trafficIn(Map.groupBy(samples, ({ name }) => name))
  return traffic && { ...traffic, at }
}

function recordOf(value: unknown): Record<string, unknown> {
  return isRecord(value) ? value : {}
}

/** Reads a server's traffic from its metrics page or, with `query`, from a Prometheus. */
export class TrafficReader {
  readonly #read: () => Promise<Exchanged>
  readonly #query: SeriesQuery | null
  #last: ServerTraffic | null = null

  constructor(read: () => Promise<Exchanged>, query: SeriesQuery | null) {
    this.#read = read
    this.#query = query
  }

  /** Reads the traffic. The last reading of a silent Prometheus counts until it is stale. `tell` gets advice. */
  async read(tell: (problem: string) => void = () => {}): Promise<ServerTraffic | null> {
    const found = await this.#read()
    const query = this.#query
    if (found.kind === 'broken' || found.status !== 200) {
      tell(
        found.kind === 'broken'
          ? `cannot be reached (${reasonForOperator(found)})`
          : `answers with ${found.status}: ${readUpstreamError(found.body, (text) => text).message || 'no reason given'}`,
      )
      if (query === null || systemClock.now() - (this.#last?.at ?? 0) > query.stale_after_ms)
        this.#last = null
      return this.#last
    }
    const read = query === null ? trafficOf(found.body.toString()) : trafficOfQuery(found.body)
    if (query !== null) this.#last = read
    if (read === null)
      tell(
        query === null
          ? 'shows no metrics of vLLM, SGLang or llama.cpp'
          : `has no series of vLLM, SGLang or llama.cpp for ${query.selector} in the last ${durationText(query.stale_after_ms)}`,
      )
    return read
  }
}

function trafficIn(samples: ReadonlyMap<string, readonly Sample[]>): ServerTraffic | null {
  const combined = (wanted: string, combine: (values: readonly number[]) => number): number | null => {
    const [name = '', label] = wanted.split(' ')
    const [key = '', value] = label?.replaceAll('"', '').split('=') ?? []
    const found = (samples.get(name) ?? []).filter(({ labels }) => !label || labels.get(key) === value)
    const all = valueOfEachEngine(found)
    if (all.length === 0) return null
    return all.find((one) => one < 0) ?? combine(all)
  }
  const sum = (name: string): number | null => combined(name, (all) => all.reduce((a, b) => a + b, 0))
  for (const dialect of DIALECTS) {
    const running = sum(dialect.running)
    if (running === null) continue
    const inQueue = sum(dialect.waiting) ?? 0
    const deferred = Math.min(inQueue, (dialect.deferred && sum(dialect.deferred)) || 0)
    const waiting = inQueue - deferred
    if (Number.isNaN(running + waiting)) return null
    const caches = dialect.cache.map((name) => combined(name, (all) => Math.max(...all)))
    return {
      running,
      waiting,
      ...(deferred > 0 && { deferred }),
      cache: caches.find(isSaid) ?? null,
      tokens: dialect.tokens.map(sum).find(isSaid) ?? null,
      steps: dialect.steps.map(sum).find(isSaid) ?? null,
    }
  }
  return null
}

/**
 * The value of each engine. SGLang with priorities reports the sum, with an empty priority, beside values by priority;
 * ranks of one engine report the same requests.
 */
function valueOfEachEngine(samples: readonly Sample[]): number[] {
  const hasSum = samples.some(({ labels }) => labels.get('priority') === '')
  const counted = hasSum ? samples.filter(({ labels }) => !labels.get('priority')) : samples
  const engines = Map.groupBy(counted, ({ labels }) =>
    JSON.stringify([...labels].filter(([label]) => !RANK.test(label)).sort()),
  )
  return [...engines.values()].map((ranks) => {
    const values = ranks.map(({ value }) => value)
    return values.find((value) => value < 0) ?? Math.max(...values)
  })
}

function isSaid(value: number | null): boolean {
  return value !== null && !Number.isNaN(value)
}

/** Parses a number of Prometheus, which writes `Inf` for Infinity. */
function numberOf(text: string): number {
  return Number(text.replace(/inf(inity)?$/i, 'Infinity'))
}
