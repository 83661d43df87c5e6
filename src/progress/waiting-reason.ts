// The reason why a batch makes no progress, derived from its chunks, from what workers report about their models, and
// from the other chunks under way. A batch with recently finished lines is not waiting.

import { withoutAddresses } from '../backends/failure-reason.ts'
import { opensAt } from '../domain/hours.ts'
import { type Model, serverNameOf } from '../domain/model.ts'
import { isMoving, type ProgressCounters, progressOf, type WaitingCode } from '../domain/progress.ts'
import type { ChunkGroup } from '../store/chunks.ts'
import type { RemoteWork } from '../store/remote-batches.ts'
import type { BatchRow } from '../store/schema.ts'
import type { LaneReport } from '../store/workers.ts'
import { hoursOf, modelsOf } from './deadline-risk.ts'

export interface WaitingReason {
  code: WaitingCode
  message: string
  /** The model that the batch waits for. */
  model?: string
  /** Unix ms, where it is known. */
  since?: number
  /** Unix ms: nothing is sent before. */
  until?: number
}

export interface Surroundings {
  now: number
  hasWorker: boolean
  /** The database takes no writes, so workers cannot say that they are there. */
  storesFail: boolean
  laneReports: readonly LaneReport[]
  /** The leased chunks of all projects. */
  leased: { chunks: number; batches: number }
  models: ReadonlyMap<string, Model>
}

/** `groups`: the batch's unsealed chunks; `remote`: what batch APIs have of it. Null if the batch is not waiting, or for no known reason. */
export function waitingReason(
  batch: ProgressCounters & Pick<BatchRow, 'id' | 'models'>,
  groups: readonly ChunkGroup[],
  { now, hasWorker, storesFail, laneReports, leased, models }: Surroundings,
  remote: readonly RemoteWork[] = [],
): WaitingReason | null {
  const { status } = batch
  if (status !== 'validating' && status !== 'queued' && status !== 'in_progress') return null
  const { paused_at = null, start_after = null } = batch
  if (paused_at !== null)
    return { code: 'paused', message: 'It is paused; nothing is sent until it is resumed.', since: paused_at }
  if (isMoving(batch, now)) return null
  if (start_after !== null && now < start_after)
    return { code: 'not_before', message: `It starts at ${timeText(start_after)}.`, until: start_after }
  if (!hasWorker && storesFail)
    return {
      code: 'no_worker',
      message:
        'The storage of the service is full or fails; nothing is sent until its operator has fixed that.',
    }
  if (!hasWorker)
    return { code: 'no_worker', message: 'No worker is running; nothing is sent until one does.' }
  if (status === 'validating') return null
  const closed = closedReason(batch, groups, models, now)
  if (closed) return closed
  const unavailable = modelReason(batch, groups, laneReports)
  if (unavailable) return unavailable
  const parked = groups.filter((group) => group.state === 'parked')
  if (groups.some((group) => group.state === 'leased'))
    return status === 'queued' ? { code: 'queued', message: CLAIMED } : null
  if (parked.some((group) => group.parked_reason === 'usage_limit'))
    return {
      code: 'usage_limit',
      message: 'A spending limit leaves no room until lines under way have ended.',
    }
  if (parked.some((group) => group.parked_reason === 'remote_batch'))
    return { code: 'remote_batch', ...remoteReason(remote, models) }
  if (parked.length > 0 && parked.length === groups.length)
    return { code: 'parked', message: parkedMessage(parked) }
  if (groups.length > 0 && leased.chunks > 0) return { code: 'queued', message: queuedMessage(leased) }
  return status === 'queued' ? { code: 'queued', message: 'A worker claims it next.' } : null
}

/** Every model that unfinished lines need is outside its hours, or paused. */
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
    return {
      code: 'paused',
      message: `${model === null ? 'Its models are' : `The model ${model} is`} paused; nothing is sent until that is resumed.`,
      ...(model === null ? {} : { model }),
    }
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
  if (until === Number.POSITIVE_INFINITY)
    return { code: 'outside_hours', message: `The hours of the model ${model} never open.`, model }
  const message = `The model ${model} is outside its hours; it opens at ${timeText(until)}.`
  return { code: 'outside_hours', message, model, until }
}

function timeText(at: number): string {
  return new Date(at).toISOString().replace('.000Z', 'Z')
}

/** Chunks of several models need any model of their batch. */
function modelsOfGroups(batch: Pick<BatchRow, 'models'>, groups: readonly ChunkGroup[]): Set<string> {
  return new Set(groups.flatMap(({ model }) => (model === null ? modelsOf(batch) : [model])))
}

const CLAIMED = 'A worker has claimed it; its first line is sent next.'

/** The first report about a model that lines of the batch wait for; those at a batch API wait for nothing else. */
function modelReason(
  batch: Pick<BatchRow, 'id' | 'models'>,
  groups: readonly ChunkGroup[],
  laneReports: readonly LaneReport[],
): WaitingReason | null {
  const needed = modelsOfGroups(
    batch,
    groups.filter(({ parked_reason }) => parked_reason !== 'remote_batch'),
  )
  for (const report of laneReports) {
    const reason = needed.has(report.model) ? reasonFrom(batch.id, report) : null
    if (reason) return { ...reason, model: report.model, since: report.since }
  }
  return null
}

/** An error of a model server may quote a line, so what servers say is shown of the batch's own lines only. */
function reasonFrom(
  batch_id: string,
  { model, state, reason, batches, isOpen }: LaneReport,
): Pick<WaitingReason, 'code' | 'message'> | null {
  const own = batches[batch_id]
  if (state === 'starting')
    return {
      code: 'engine_starting',
      message: `The server of the model ${model} ${reason ?? 'is starting.'}`,
    }
  if (state === 'unavailable') {
    // An older error of its lines says nothing about a server that is gone.
    const why = reason !== null && own?.startsWith(reason) ? own : reason
    return {
      code: 'model_unavailable',
      message: `No server of the model ${model} answers${why === null ? '.' : `: ${why}`}`,
    }
  }
  if (state === 'throttled') {
    const error = own === undefined ? '.' : `: ${own}`
    return {
      code: 'upstream_throttled',
      message: `The servers of the model ${model} have asked to wait${error}`,
    }
  }
  if (state === 'live_traffic')
    return {
      code: 'live_traffic',
      message: `Other requests take all of the server of the model ${model}; lines are sent when it has room.`,
    }
  if (own !== undefined)
    return {
      code: 'lines_failing',
      message: `The servers of the model ${model} fail on lines of this batch; the last error: ${own}`,
    }
  if (!isOpen) return null
  return {
    code: 'model_unavailable',
    message: `The servers of the model ${model} fail on lines of other batches; lines of this one are tried in between.`,
  }
}

const PARKED: Readonly<Record<string, string>> = {
  input_unreadable: 'Its input cannot be read; it is tried again until the window closes.',
  stores_failing: 'The database or the blob store did not answer; it is tried again soon.',
}

/** Chunks that are parked for several reasons are mostly parked because a model is unavailable. */
function parkedMessage(parked: readonly ChunkGroup[]): string {
  const reasons = new Set(parked.map((group) => group.parked_reason))
  const [only = null] = reasons.size === 1 ? reasons : []
  return (only === null ? undefined : PARKED[only]) ?? 'Its model was unavailable; it is tried again soon.'
}

function queuedMessage({ chunks, batches }: Surroundings['leased']): string {
  const of = batches === 1 ? 'one other batch' : `${batches} other batches`
  return `Queued behind ${chunks === 1 ? 'one chunk' : `${chunks} chunks`} of ${of} under way.`
}

// Why a batch waits whose lines batch APIs have: in plain words, what is known of them there.

/** Of several things to say, the first one is said: what goes wrong comes before what goes on. */
function remoteReason(
  work: readonly RemoteWork[],
  models: ReadonlyMap<string, Model>,
): { message: string; since?: number } {
  const failing = work.find(({ failing_since }) => failing_since !== null)
  const [first] = failing ? [failing] : work.toSorted((a, b) => Number(b.batches) - Number(a.batches))
  if (!first)
    return { message: 'A batch API has its lines; their results are recorded when it has finished them.' }
  const since = first.failing_since === null ? {} : { since: first.failing_since }
  const message = messageOf(first, serverNameOf(first.upstream, models) ?? 'the batch API')
  return { message: message.replace(/^the /, 'The '), ...since }
}

function messageOf(work: RemoteWork, upstream: string): string {
  const { state, status, detail, remote_id, failing_since, cancelled_at } = work
  const lines = Number(work.lines) === 1 ? 'one line' : `${work.lines} lines`
  const batches = Number(work.batches)
  const where =
    batches > 1 ? `in ${batches} batches` : remote_id === null ? 'in a batch' : `in the batch ${remote_id}`
  const there = `${upstream} has ${lines} of it ${where}`
  const because = detail === null ? '' : `: ${withoutAddresses(detail)}`
  if (state === 'intended' || (state === 'creating' && failing_since === null))
    return `${lines} of it are being sent to ${upstream}.`
  if (state === 'creating')
    return `It is not known yet whether ${upstream} has taken ${lines} of it${because}; that is looked up before they are sent again.`
  if (state === 'ended')
    return failing_since === null
      ? `${upstream} has ended with ${lines} of it ${where}; their results are recorded next.`
      : `${upstream} has ended with ${lines} of it ${where}, and their results cannot be read${because}; it is tried again.`
  if (failing_since !== null)
    return `${there}, and nothing can be learned of them${because}; it is tried again.`
  if (cancelled_at !== null)
    return `${there}, which is being cancelled there; what it has not answered is answered by other servers or ends with the batch.`
  const shown = status === null ? '' : ` (${status})`
  return `${there}${shown}; their results are recorded when it has finished them.`
}
