// The reason for which a batch makes no progress, derived from its chunks, from workers' reports about its models, and
// from other leased chunks. A batch with recently finished lines is not waiting. Reasons and progress are read for all
// batches of a response at once.
import { withoutAddresses } from '../backends/failure-reason.ts'
import { isTerminal } from '../domain/batch.ts'
import { unixSeconds } from '../domain/clock.ts'
import { ERRORS } from '../domain/errors.ts'
import { opensAt } from '../domain/hours.ts'
import { type Model, serverNameOf } from '../domain/model.ts'
import {
  isMoving,
  type Progress,
  type ProgressCounters,
  progressOf,
  type WaitingCode,
} from '../domain/progress.ts'
import { type WaitingText, type WaitingTextKey, waitingText } from '../domain/waiting-text.ts'
import { setBatch } from '../store/batches.ts'
import { type ChunkGroup, countLeased, groupUnsealed } from '../store/chunks.ts'
import { type RemoteWork, remoteWorkOf } from '../store/remote-batches.ts'
import { selectRows } from '../store/rows.ts'
import type { BatchRow } from '../store/schema.ts'
import type { Store } from '../store/store.ts'
import { hasWorker, type LaneReport, listLaneReports, listLiveWorkers } from '../store/workers.ts'
import type { BatchProblem } from '../wire/batch.ts'
import { hoursOf, modelsOf } from './completion.ts'

/** The age in ms of the last ended line from which failing storage is a reason; more than the sampling interval. */
const STORED_MS = 3_000

interface WaitingReason {
  code: WaitingCode
  message: string
  /** The parts of the message, for translation; times in Unix seconds. */
  text: WaitingText
  model?: string
  /** The start of the wait, Unix ms, where known. */
  since?: number
  /** The time before which no line is sent, Unix ms. */
  until?: number
}

export interface Surroundings {
  now: number
  hasWorker: boolean
  /** Whether the database rejects writes, or no worker can store results, so that reports of workers may be missing. */
  storesFail: boolean
  /** Whether a worker that cannot read or store has leased chunks of the batch, or may have its plan. */
  isStuck: boolean
  laneReports: readonly LaneReport[]
  /** The leased chunks of all projects. */
  leased: { chunks: number; batches: number }
  models: ReadonlyMap<string, Model>
}

/**
 * The waiting reason; null if the batch is not waiting, or for no known reason. `groups`: the batch's unsealed chunks;
 * `remote`: its remote batches.
 */
export function waitingReason(
  batch: ProgressCounters & Pick<BatchRow, 'id' | 'models'>,
  groups: readonly ChunkGroup[],
  { now, hasWorker, storesFail, isStuck, laneReports, leased, models }: Surroundings,
  remote: readonly RemoteWork[] = [],
): WaitingReason | null {
  const { status } = batch
  if (status !== 'validating' && status !== 'queued' && status !== 'in_progress') return null
  const { paused_at = null, start_after = null } = batch
  if (paused_at !== null) return because('paused', 'paused', {}, { since: paused_at })
  if ((storesFail || isStuck) && !isMoving(batch, now, STORED_MS))
    return because('storage_failing', 'storage_failing')
  if (isMoving(batch, now)) return null
  if (start_after !== null && now < start_after)
    return because('not_before', 'not_before', { until: unixSeconds(start_after) }, { until: start_after })
  if (!hasWorker) return because('no_worker', 'no_worker')
  if (status === 'validating') return null
  const closed = closedReason(batch, groups, models, now)
  if (closed) return closed
  const unavailable = modelReason(batch, groups, laneReports)
  if (unavailable) return unavailable
  const parked = groups.filter((group) => group.state === 'parked')
  if (groups.some((group) => group.state === 'leased'))
    return status === 'queued' ? because('queued', 'claimed') : null
  if (parked.some((group) => group.parked_reason === 'usage_limit'))
    return because('usage_limit', 'usage_limit')
  if (parked.some((group) => group.parked_reason === 'remote_batch')) return remoteReason(remote, models)
  if (parked.length > 0 && parked.length === groups.length) {
    const key = parkedKey(parked)
    return because(key === 'stores_failing' ? 'storage_failing' : 'parked', key)
  }
  if (groups.length > 0 && leased.chunks > 0) return because('queued', 'queued', leased)
  return status === 'queued' ? because('queued', 'next') : null
}

function because(
  code: WaitingCode,
  key: WaitingTextKey,
  values: WaitingText['values'] = {},
  known: Pick<WaitingReason, 'model' | 'since' | 'until'> = {},
): WaitingReason {
  return { code, message: waitingText(key, values), text: { key, values }, ...known }
}

/** The reason if every model that unfinished lines need is outside its hours, or paused. */
function closedReason(
  batch: ProgressCounters & Pick<BatchRow, 'id' | 'models'>,
  groups: readonly ChunkGroup[],
  models: ReadonlyMap<string, Model>,
  now: number,
): WaitingReason | null {
  const isPaused = (group: ChunkGroup): boolean => group.parked_reason === 'paused'
  const rest = groups.filter((group) => !isPaused(group))
  if (groups.length > 0 && rest.length === 0) {
    const [model = null] = new Set(groups.map((group) => group.model))
    return model === null
      ? because('paused', 'models_paused')
      : because('paused', 'model_paused', { model }, { model })
  }
  const which = progressOf(batch, now, null, hoursOf(batch, models)).at_risk ? 'atRisk' : 'usual'
  const needed = modelsOfGroups(batch, rest)
  let first: { model: string; until: number } | null = null
  for (const id of needed) {
    const hours = models.get(id)?.hours
    const until = hours ? opensAt(hours[which], now) : now
    if (until === now) return null
    if (first === null || until < first.until) first = { model: id, until }
  }
  if (first === null) return null
  const { model, until } = first
  if (until === Number.POSITIVE_INFINITY) return because('outside_hours', 'never_open', { model }, { model })
  return because('outside_hours', 'outside_hours', { model, until: unixSeconds(until) }, { model, until })
}

/** The models of chunks; a chunk of several models needs any model of its batch. */
function modelsOfGroups(batch: Pick<BatchRow, 'models'>, groups: readonly ChunkGroup[]): Set<string> {
  return new Set(groups.flatMap(({ model }) => (model === null ? modelsOf(batch) : [model])))
}

/** The first report about a model that lines of the batch wait for; lines at a batch API wait for no model. */
function modelReason(
  batch: Pick<BatchRow, 'id' | 'models'>,
  groups: readonly ChunkGroup[],
  laneReports: readonly LaneReport[],
): WaitingReason | null {
  const rest = groups.filter(({ parked_reason }) => parked_reason !== 'remote_batch')
  const needed = modelsOfGroups(batch, rest)
  // Of more models than a batch lists, those count on which its lines have failed.
  const isUnlisted = batch.models === null && rest.some(({ model }) => model === null)
  for (const report of laneReports) {
    const isNeeded = needed.has(report.model) || (isUnlisted && batch.id in report.batches)
    const reason = isNeeded ? reasonFrom(batch.id, report) : null
    if (reason) return reason
  }
  return null
}

/** The reason in a report. An error of a model server may quote a line, so only the batch's own errors are shown. */
function reasonFrom(
  batch_id: string,
  { model, state, reason, batches, isOpen, since }: LaneReport,
): WaitingReason | null {
  const own = batches[batch_id]
  const about = (code: WaitingCode, key: WaitingTextKey, error?: string | null): WaitingReason =>
    because(code, key, error == null ? { model } : { model, error }, { model, since })
  if (state === 'starting') return about('engine_starting', 'engine_starting', reason ?? 'is starting.')
  // An older error of lines does not apply to an unreachable server.
  if (state === 'unavailable')
    return about(
      'model_unavailable',
      'unreachable',
      reason !== null && own?.startsWith(reason) ? own : reason,
    )
  if (state === 'throttled') return about('upstream_throttled', 'throttled', own)
  if (state === 'live_traffic') return about('live_traffic', 'live_traffic')
  if (own !== undefined) return about('lines_failing', 'lines_failing', own)
  return isOpen ? about('model_unavailable', 'others_failing') : null
}

/** The main reason of parked chunks: with several, mostly that a model is unavailable. */
function parkedKey(parked: readonly ChunkGroup[]): WaitingTextKey {
  const reasons = new Set(parked.map((group) => group.parked_reason))
  const [only = null] = reasons.size === 1 ? reasons : []
  return only === 'input_unreadable' || only === 'stores_failing' ? only : 'parked'
}

/** The first reason among several remote batches: failures come before progress. */
function remoteReason(work: readonly RemoteWork[], models: ReadonlyMap<string, Model>): WaitingReason {
  const failing = work.find(({ failing_since }) => failing_since !== null)
  const [first] = failing ? [failing] : work.toSorted((a, b) => Number(b.batches) - Number(a.batches))
  if (!first) return because('remote_batch', 'remote')
  const { upstream, status, detail, remote_id, failing_since } = first
  const name = serverNameOf(upstream, models)
  const values = {
    lines: Number(first.lines),
    remote_batches: Number(first.batches),
    ...(name === null ? {} : { upstream: name }),
    ...(remote_id === null ? {} : { remote_id }),
    ...(status === null ? {} : { status }),
    ...(detail === null || failing_since === null ? {} : { error: withoutAddresses(detail) }),
  }
  return because(
    'remote_batch',
    remoteKey(first),
    values,
    failing_since === null ? {} : { since: failing_since },
  )
}

function remoteKey({ state, failing_since, cancelled_at }: RemoteWork): WaitingTextKey {
  const isFailing = failing_since !== null
  if (state === 'intended' || (state === 'creating' && !isFailing)) return 'remote_sending'
  if (state === 'creating') return 'remote_unknown'
  if (state === 'ended') return isFailing ? 'remote_unreadable' : 'remote_ended'
  if (isFailing) return 'remote_lost'
  return cancelled_at === null ? 'remote_running' : 'remote_cancelling'
}

export interface BatchProgress {
  progress: Progress
  waiting_reason: WaitingReason | null
}

/** The progress and waiting reasons by ID, for the unfinished batches among `batches`. */
export async function readBatchProgress(
  store: Pick<Store, 'read' | 'failing'>,
  batches: readonly BatchRow[],
  now: number,
  models: ReadonlyMap<string, Model>,
): Promise<Map<string, BatchProgress>> {
  const open = batches.filter((batch) => !isTerminal(batch.status))
  // A batch with recently finished lines is not waiting, unless it was paused since.
  const still = open.filter((batch) => batch.paused_at !== null || !isMoving(batch, now, STORED_MS))
  const reasons =
    still.length === 0
      ? new Map<string, WaitingReason | null>()
      : await readReasons(store, still, now, models)
  return new Map(
    open.map((batch) => [
      batch.id,
      {
        progress: progressOf(batch, now, null, hoursOf(batch, models), reasons.get(batch.id)?.code),
        waiting_reason: reasons.get(batch.id) ?? null,
      },
    ]),
  )
}

/** The waiting reason of an unfinished line: of its chunk where that is parked, else of its batch. */
export async function lineWaitingReason(
  store: Pick<Store, 'read' | 'failing'>,
  batch: BatchRow,
  chunk: ChunkGroup,
  now: number,
  models: ReadonlyMap<string, Model>,
): Promise<WaitingReason | null> {
  if (chunk.state !== 'parked')
    return (await readBatchProgress(store, [batch], now, models)).get(batch.id)?.waiting_reason ?? null
  const reasons = await readReasons(store, [{ ...batch, rate_sampled_at: null }], now, models, [chunk])
  return reasons.get(batch.id) ?? null
}

/** Reads why chunks wait. `only`: the chunks that are read; absent: all unsealed ones. */
async function readReasons(
  store: Pick<Store, 'read' | 'failing'>,
  batches: readonly BatchRow[],
  now: number,
  models: ReadonlyMap<string, Model>,
  only?: readonly ChunkGroup[],
): Promise<Map<string, WaitingReason | null>> {
  const ids = batches.map((batch) => batch.id)
  const [groups, leased, laneReports, isWorkerRunning, workers] = await Promise.all([
    groupUnsealed(store.read, ids),
    countLeased(store.read),
    listLaneReports(store.read),
    hasWorker(store.read),
    listLiveWorkers(store.read),
  ])
  const failing = workers.filter(({ report }) => report?.stores_failing === true).map(({ id }) => id)
  const stuck = new Set(
    leased.filter(({ worker_id }) => failing.includes(worker_id ?? '')).map(({ batch_id }) => batch_id),
  )
  const byBatch = Map.groupBy([...groups, ...leased], (group) => group.batch_id)
  const remoteIds = groups
    .filter((group) => group.parked_reason === 'remote_batch')
    .map((one) => one.batch_id)
  const remote = Map.groupBy(await remoteWorkOf(store.read, remoteIds), ({ batch_id }) => batch_id)
  const underWay = {
    chunks: leased.reduce((sum, { chunks }) => sum + chunks, 0),
    batches: new Set(leased.map(({ batch_id }) => batch_id)).size,
  }
  const surroundings = {
    ...{ now, hasWorker: isWorkerRunning, laneReports, leased: underWay, models },
    storesFail: store.failing !== null || (workers.length > 0 && failing.length === workers.length),
  }
  return new Map(
    batches.map((batch) => [
      batch.id,
      waitingReason(
        batch,
        only ?? byBatch.get(batch.id) ?? [],
        {
          ...surroundings,
          isStuck: stuck.has(batch.id) || (batch.status === 'validating' && failing.length > 0),
        },
        remote.get(batch.id),
      ),
    ]),
  )
}

/**
 * Stores the waiting reasons of expired batches' lines, as messages of their errors, since nothing is known of them
 * once the chunks are sealed. Returns them by batch.
 */
export async function noteExpired(
  store: Pick<Store, 'read' | 'failing' | 'writeAsyncCommit'>,
  ids: readonly string[],
  now: number,
  models: ReadonlyMap<string, Model>,
): Promise<Map<string, string>> {
  const rows = await selectRows(store.read, 'batches', { id: ids }).selectAll().execute()
  const expired = rows.filter(({ expires_at, status }) => expires_at <= now && !isTerminal(status))
  const fresh = expired.filter(({ errors }) => errors === null)
  const reasons = fresh.length === 0 ? [] : await readReasons(store, fresh, now, models)
  const noted = new Map<string, string>()
  for (const { id, errors } of expired) if (errors !== null) noted.set(id, JSON.parse(errors)[0]?.message)
  for (const [id, reason] of reasons) {
    if (reason === null) continue
    const message = `${ERRORS.batch_expired.message} Until then: ${reason.message}`
    const problem: BatchProblem = { code: 'batch_expired', message, param: null, line: null }
    await store.writeAsyncCommit((tx) => setBatch(tx, id, { errors: JSON.stringify([problem]) }))
    noted.set(id, message)
  }
  return noted
}
