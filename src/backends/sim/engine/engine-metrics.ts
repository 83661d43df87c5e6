// The simulated engine's state as vLLM's /metrics shows it. The cache's usage has both names: vLLM called it
// gpu_cache_usage_perc before it was kv_cache_usage_perc.
// https://docs.vllm.ai/en/latest/usage/metrics/
import type { EngineStats } from './engine.ts'

export function engineMetrics(stats: EngineStats, model: string): string {
  const label = `{engine="0",model_name=${JSON.stringify(model)}}`
  const metric = (kind: 'gauge' | 'counter', name: string, help: string, value: number): string =>
    `# HELP vllm:${name} ${help}\n# TYPE vllm:${name} ${kind}\nvllm:${name}${label} ${value}\n`
  return [
    metric('gauge', 'num_requests_running', 'Number of requests in the running batch.', stats.running),
    metric('gauge', 'num_requests_waiting', 'Number of requests waiting to be processed.', stats.waiting),
    metric('gauge', 'kv_cache_usage_perc', 'KV-cache usage. 1 means 100 percent usage.', stats.kv_usage),
    metric('gauge', 'gpu_cache_usage_perc', 'The same under its earlier name.', stats.kv_usage),
    metric('counter', 'num_preemptions_total', 'Preemptions of requests.', stats.preemptions),
    metric('counter', 'prompt_tokens_total', 'Prompt tokens computed.', stats.prompt_tokens),
    metric('counter', 'generation_tokens_total', 'Tokens generated.', stats.generation_tokens),
    metric('counter', 'prefix_cache_queries_total', 'Prompt tokens looked up.', stats.prefix_queries),
    metric('counter', 'prefix_cache_hits_total', 'Prompt tokens found in the cache.', stats.prefix_hits),
  ].join('')
}
