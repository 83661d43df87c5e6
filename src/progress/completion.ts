// Estimates completions: the open batches at risk, and the completion of a new batch.
import { openingOf } from '../domain/hours.ts'
import type { Model, ModelHours } from '../domain/model.ts'
import { doneAt, progressOf, type WaitingCode } from '../domain/progress.ts'
import { listBatches, listPaces } from '../store/batches.ts'
import { listPausedModels } from '../store/pauses.ts'
import type { BatchRow } from '../store/schema.ts'
import type { Reader, Store } from '../store/store.ts'
import { hasWorker, listLaneReports, listLiveWorkers } from '../store/workers.ts'
import type { UpstreamStatus } from '../wire/status.ts'

/** The limit of examined batches, those whose windows close first; later ones have time. */
const BATCHES_MAX = 1_000
/** The limit of at-risk batches: beyond it, hardly any other batches would remain to be claimed after them. */
const AT_RISK_MAX = 100

/**
 * The IDs of at-risk batches, which may miss their deadline at their present rate, so that their chunks are claimed
 * first. Nearest deadline first; batches that cannot run yet come last, and none is paused. `waits`: the waiting reason
 * of batches of these models, if no line of theirs has ended.
 */
export async function batchesAtRisk(
  db: Reader,
  now: number,
  models: ReadonlyMap<string, Model>,
  waits: (needed: readonly string[]) => WaitingCode | null = () => null,
): Promise<string[]> {
  const [paces, pausedModels] = await Promise.all([listPaces(db, BATCHES_MAX), listPausedModels(db)])
  // The first answers of a batch say little, so only sampled rates count for other batches.
  const sampled = paces.filter((pace) => pace.lines_per_s !== null)
  const rates = sampled.map((pace) => progressOf(pace, now).lines_per_s ?? 0)
  const together = rates.length > 0 ? rates.reduce((sum, rate) => sum + rate, 0) : null
  const late = paces.filter(
    (pace) => progressOf(pace, now, together, hoursOf(pace, models), waits(modelsOf(pace))).at_risk,
  )
  const paused = new Set(pausedModels.map(({ project_id, model }) => `${project_id} ${model}`))
  const isClosed = ({ hours }: Model): boolean => hours !== undefined && !openingOf(hours.atRisk, now).open
  const mayRun = (pace: (typeof paces)[number]): boolean => {
    const needed = modelsOf(pace).flatMap((id) => models.get(id) ?? [])
    const waits =
      needed.length > 0 && needed.every((one) => paused.has(`${pace.project_id} ${one.id}`) || isClosed(one))
    return !waits && (pace.start_after ?? now) <= now
  }
  const { first = [], last = [] } = Object.groupBy(late, (pace) => (mayRun(pace) ? 'first' : 'last'))
  return [...first, ...last].slice(0, AT_RISK_MAX).map((pace) => pace.id)
}

/** The IDs of at-risk batches for reports, including batches that no worker or server can run now. */
export async function batchesInDanger(
  db: Reader,
  now: number,
  models: ReadonlyMap<string, Model>,
): Promise<string[]> {
  const [isWorkerRunning, reports] = await Promise.all([hasWorker(db), listLaneReports(db)])
  const down = new Set(reports.flatMap(({ model, state }) => (state === 'unavailable' ? model : [])))
  return await batchesAtRisk(db, now, models, (needed) => {
    if (!isWorkerRunning) return 'no_worker'
    return needed.length > 0 && needed.every((model) => down.has(model)) ? 'model_unavailable' : null
  })
}

// The opening hours that a batch depends on, those of its lines' models.

/** The hours of the batch's models; none if its models are unknown, or all of them always open. */
export function hoursOf(batch: Pick<BatchRow, 'models'>, models: ReadonlyMap<string, Model>): ModelHours[] {
  return modelsOf(batch).flatMap((id) => models.get(id)?.hours ?? [])
}

export function modelsOf({ models }: Pick<BatchRow, 'models'>): string[] {
  return models === null ? [] : JSON.parse(models)
}

/** A batch before its creation. */
interface PlannedBatch {
  project_id: string
  /** The time before which no line is sent, Unix ms. */
  start_after: number | null
  /** The number of lines by model. */
  lines: ReadonlyMap<string, number>
}

/** The limit of open batches whose lines count, those with the nearest deadlines. */
const BATCHES_AHEAD_MAX = 1_000
const RECENT_BATCHES = 20

/**
 * The completion of a new batch, by the speed of the servers and the open batches (Unix ms); null if the speed of one
 * of its models is unknown.
 */
export async function expectedCompletion(
  store: Pick<Store, 'read'>,
  { project_id, start_after, lines }: PlannedBatch,
  now: number,
  models: ReadonlyMap<string, Model>,
): Promise<number | null> {
  const known = [...lines].filter(([model]) => models.has(model))
  const [workers, ahead, recent] = await Promise.all([
    listLiveWorkers(store.read),
    linesAhead(store, now),
    recentRates(store, project_id),
  ])
  const servers = workers.flatMap(({ report }) => report?.upstreams ?? [])
  let neededMs = 0
  for (const [model, own] of known) {
    const rate = rateNow(servers.filter((server) => server.model === model)) ?? recent.get(model) ?? 0
    neededMs = Math.max(neededMs, (((ahead.get(model) ?? 0) + own) / rate) * 1000)
  }
  if (known.length === 0 || !Number.isFinite(neededMs)) return null
  const hours = known.flatMap(([model]) => models.get(model)?.hours ?? [])
  const done = doneAt({ start_after }, now, neededMs, hours, 'usual')
  return Number.isFinite(done) ? done : null
}

/** Lines per second of servers at full concurrency, with the latency of their last answers; null without any. */
function rateNow(servers: readonly UpstreamStatus[]): number | null {
  const up = servers.filter(({ circuit, reachable }) => circuit === 'closed' && reachable !== false)
  const latencies = up.flatMap(({ latency_ms }) => latency_ms ?? [])
  if (latencies.length === 0) return null
  const latencyMs = latencies.reduce((sum, ms) => sum + ms, 0) / latencies.length
  const concurrency = up.reduce((sum, server) => sum + server.concurrency, 0)
  return (concurrency / Math.max(latencyMs, 1)) * 1000
}

/** The unfinished lines of open batches by model; a batch of several models counts for each of them. */
async function linesAhead({ read }: Pick<Store, 'read'>, now: number): Promise<Map<string, number>> {
  const ahead = new Map<string, number>()
  for (const batch of await listPaces(read, BATCHES_AHEAD_MAX)) {
    if ((batch.start_after ?? now) > now) continue
    const left = batch.total - batch.completed - batch.failed
    for (const model of modelsOf(batch)) ahead.set(model, (ahead.get(model) ?? 0) + left)
  }
  return ahead
}

/** The best mean rate by model, of the project's last batches with this model alone. */
async function recentRates({ read }: Pick<Store, 'read'>, project_id: string): Promise<Map<string, number>> {
  const rates = new Map<string, number>()
  const { rows } = await listBatches(read, project_id, { status: 'completed', limit: RECENT_BATCHES })
  for (const batch of rows) {
    const [model, ...others] = modelsOf(batch)
    const { in_progress_at: from, completed_at: to } = batch
    if (model === undefined || others.length > 0 || from === null || to === null) continue
    const rate = ((batch.completed + batch.failed - batch.not_run) / Math.max(to - from, 1)) * 1000
    rates.set(model, Math.max(rates.get(model) ?? 0, rate))
  }
  return rates
}
