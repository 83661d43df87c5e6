// The models behind `offpeak run --model FILE.gguf` and `--engine`: all that the input names, answered by one server
// that is started on demand.
import type { Config, EngineConfig } from './config.ts'
import { upstreamModels } from './upstream-models.ts'

/** A server that cannot start is to be seen soon: somebody waits for this run. */
const OUTAGE_PATIENCE_MS = 20_000

export interface EngineModels {
  engine: EngineConfig
  /** Names the server in records and messages. */
  name: string
  /** What lines call the model. */
  ids: readonly string[]
  /** What the server calls it; null where it answers to any name. */
  model: string | null
  concurrency_max: number
}

export function withEngine(config: Config, order: EngineModels, created: number): Config {
  const { engine, name, ids, model, concurrency_max } = order
  const offered = ids.map((id) => ({ id, endpoints: null, context_window: null, parent: null, root: null }))
  const models = upstreamModels('http://127.0.0.1/v1', offered, null, created).map((one) => ({
    ...one,
    upstreams: one.upstreams.flatMap((upstream) =>
      upstream.type !== 'openai'
        ? []
        : [{ ...upstream, base_url: null, engine, name, concurrency_max, model: model ?? one.model.id }],
    ),
  }))
  const outage_patience_ms = Math.min(config.retry.outage_patience_ms, OUTAGE_PATIENCE_MS)
  return { ...config, models, retry: { ...config.retry, outage_patience_ms } }
}
