// Creates a client for each model server that the configuration names.

import type { Backend } from '../backends/backend.ts'
import { openaiBackend } from '../backends/openai/openai-backend.ts'
import type { ResponseMemory } from '../backends/response-memory.ts'
import { simBackend } from '../backends/sim/sim-backend.ts'
import type { Config, ModelConfig, UpstreamConfig } from '../config/config.ts'
import { Upstream } from '../dispatch/send/upstream.ts'
import type { Model } from '../domain/model.ts'

export function modelsById(models: readonly ModelConfig[]): Map<string, Model> {
  return new Map(models.map(({ model }) => [model.id, model]))
}

/** By model ID, in the order of the configuration. */
export function makeUpstreams(config: Config, budget: ResponseMemory): Map<string, Upstream[]> {
  return new Map(
    config.models.map(({ model, upstreams }) => [
      model.id,
      upstreams.map((upstream) => makeUpstream(model, upstream, config.worker.concurrency_max, budget)),
    ]),
  )
}

function makeUpstream(
  model: Model,
  upstream: UpstreamConfig,
  worker_max: number,
  budget: ResponseMemory,
): Upstream {
  const alias = upstream.type === 'openai' && upstream.model !== model.id ? upstream.model : null
  return new Upstream({
    backend: makeBackend(upstream, budget),
    concurrency_max: Math.min(upstream.concurrency_max, worker_max),
    modelAlias: alias,
  })
}

function makeBackend(upstream: UpstreamConfig, budget: ResponseMemory): Backend {
  if (upstream.type === 'sim') {
    const { name, latency_ms, faults, capacity, context_window } = upstream
    return simBackend({ name, latency_ms, faults, capacity, context_window })
  }
  const { name, base_url, api_key, timeout_ms, concurrency_max, headers } = upstream
  return openaiBackend({
    name,
    base_url,
    api_key,
    timeout_ms,
    connections_max: concurrency_max,
    budget,
    headers,
  })
}
