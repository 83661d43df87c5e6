// Finds at-risk batches, which may miss their deadline at their present rate: their chunks are claimed first.
import { openingOf } from '../domain/hours.ts'
import type { Model, ModelHours } from '../domain/model.ts'
import { progressOf } from '../domain/progress.ts'
import { listPaces } from '../store/batches.ts'
import { listPausedModels } from '../store/pauses.ts'
import type { BatchRow } from '../store/schema.ts'
import type { Reader } from '../store/store.ts'

/** Those whose windows close first; what lies far ahead has time to be looked at later. */
const BATCHES_MAX = 1_000
/** Beyond it, hardly anything would be left to be put behind them. */
const AT_RISK_MAX = 100

/** Their IDs, nearest deadline first; those that cannot run yet come last, and none is paused. */
export async function batchesAtRisk(
  db: Reader,
  now: number,
  models: ReadonlyMap<string, Model>,
): Promise<string[]> {
  const [paces, paused] = await Promise.all([listPaces(db, BATCHES_MAX), listPausedModels(db)])
  // The first answers of a batch say little: until its rate was sampled, it counts for no other.
  const sampled = paces.filter((pace) => pace.lines_per_s !== null)
  const rates = sampled.map((pace) => progressOf(pace, now).lines_per_s ?? 0)
  const together = rates.length > 0 ? rates.reduce((sum, rate) => sum + rate, 0) : null
  const late = paces.filter((pace) => progressOf(pace, now, together, hoursOf(pace, models)).at_risk)
  const isPaused = (project_id: string, id: string): boolean =>
    paused.some((one) => one.model === id && one.project_id === project_id)
  const isClosed = ({ hours }: Model): boolean => hours !== undefined && !openingOf(hours.atRisk, now).open
  const mayRun = (pace: (typeof paces)[number]): boolean => {
    const needed = modelsOf(pace).flatMap((id) => models.get(id) ?? [])
    const waits =
      needed.length > 0 && needed.every((one) => isPaused(pace.project_id, one.id) || isClosed(one))
    return !waits && (pace.start_after ?? now) <= now
  }
  const { first = [], last = [] } = Object.groupBy(late, (pace) => (mayRun(pace) ? 'first' : 'last'))
  return [...first, ...last].slice(0, AT_RISK_MAX).map((pace) => pace.id)
}

// The opening hours that a batch depends on: those of the models that its lines name.

/** The hours of the batch's models; none if its models are unknown, or all of them always open. */
export function hoursOf(batch: Pick<BatchRow, 'models'>, models: ReadonlyMap<string, Model>): ModelHours[] {
  return modelsOf(batch).flatMap((id) => models.get(id)?.hours ?? [])
}

export function modelsOf({ models }: Pick<BatchRow, 'models'>): string[] {
  return models === null ? [] : JSON.parse(models)
}
