// Reads the traffic of a model server from its /metrics, in the names of vLLM, SGLang and llama.cpp. Counts of several
// engines behind one address are added; of their caches the fullest counts. Values stay as reported, except that NaN
// means no value; `TrafficCheck` rejects impossible ones.
// https://docs.vllm.ai/en/stable/usage/metrics/, https://docs.sglang.io/references/production_metrics.html,
// https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
import type { ServerTraffic } from '../backend.ts'

interface Dialect {
  running: string
  waiting: string
  /** The name of today first. */
  cache: readonly string[]
  tokens: string
  /** None of a server whose tokens tell. */
  steps: readonly string[]
}

const DIALECTS: readonly Dialect[] = [
  {
    running: 'vllm:num_requests_running',
    waiting: 'vllm:num_requests_waiting',
    cache: ['vllm:kv_cache_usage_perc', 'vllm:gpu_cache_usage_perc'],
    tokens: 'vllm:generation_tokens_total',
    steps: [],
  },
  {
    running: 'sglang:num_running_reqs',
    waiting: 'sglang:num_queue_reqs',
    cache: ['sglang:token_usage'],
    tokens: 'sglang:generation_tokens_total',
    steps: [],
  },
  {
    running: 'llamacpp:requests_processing',
    waiting: 'llamacpp:requests_deferred',
    // Until May 2025.
    cache: ['llamacpp:kv_cache_usage_ratio'],
    // Rises by all tokens of a request when the request ends.
    tokens: 'llamacpp:tokens_predicted_total',
    steps: ['llamacpp:n_decode_total'],
  },
]

/** One sample of the text format: name, labels, value. */
const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{[^\n]*\})?[ \t]+([^\s]+)/gm

/** Null if the text has none of these servers' metrics, or no number of running requests. */
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
      steps: dialect.steps.map(sum).find(isSaid) ?? null,
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
