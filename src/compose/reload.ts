// Taking up a changed configuration without a restart: models, prices, upstreams, hours and limits of concurrency.
import type { Config } from '../config/config.ts'
import type { Model } from '../domain/model.ts'
import { modelsById } from './upstreams.ts'

export interface Reloaded {
  /** Sections that have changed and need a restart. */
  needsRestart: string[]
}

/** What of `next` can be taken up now: `running` with its models and its bound of lines in flight. */
export function reloaded(running: Config, next: Config): { config: Config } & Reloaded {
  const { models } = next
  const worker = { ...running.worker, concurrency_max: next.worker.concurrency_max }
  const config = { ...running, models, worker }
  const needsRestart = Object.keys(next).filter((key) => {
    const text = (of: Config): string => JSON.stringify(plain(Reflect.get(of, key)))
    return text(config) !== text(next)
  })
  return { config, needsRestart }
}

function plain(value: unknown): unknown {
  return value instanceof Map ? [...value] : value
}

/** Changes `models` in place: whoever reads it sees the new ones. What was learned of a model stays. */
export function replaceModels(models: Map<string, Model>, config: Config): void {
  const before = new Map(models)
  models.clear()
  for (const [id, model] of modelsById(config.models)) {
    const known = before.get(id)
    models.set(id, known ? { ...model, created: known.created, seen: known.seen } : model)
  }
}
