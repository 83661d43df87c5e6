// Why a batch does not get on: told from its chunks, from what workers report of their models, and from what
// else is being worked on. A batch of which lines have ended lately waits for nothing.
import { isMoving, type ProgressCounters, type WaitingCode } from '../domain/progress.ts'
import type { LaneReport } from '../store/lane-reports.ts'
import type { ChunkGroup } from '../store/unsealed-chunks.ts'

export interface WaitingReason {
  code: WaitingCode
  message: string
  /** The model that it waits for. */
  model?: string
  /** Since when (Unix ms), where that is known. */
  since?: number
}

export interface Surroundings {
  now: number
  has_worker: boolean
  laneReports: readonly LaneReport[]
  /** What is being worked on, whoever it belongs to. */
  leased: { chunks: number; batches: number }
}

/** `groups`: the batch's unsealed chunks. Null when it waits for nothing that is known. */
export function waitingReason(
  batch: ProgressCounters & { id: string },
  groups: readonly ChunkGroup[],
  { now, has_worker, laneReports, leased }: Surroundings,
): WaitingReason | null {
  const { status } = batch
  if (status !== 'validating' && status !== 'queued' && status !== 'in_progress') return null
  if (isMoving(batch, now)) return null
  if (!has_worker)
    return { code: 'no_worker', message: 'No worker is running; nothing is sent until one does.' }
  if (status === 'validating') return null
  const trouble = laneReportOf(batch.id, groups, laneReports)
  if (trouble) return trouble
  const parked = groups.filter((group) => group.state === 'parked')
  if (groups.some((group) => group.state === 'leased')) return null
  if (parked.some((group) => group.parked_reason === 'usage_limit'))
    return {
      code: 'usage_limit',
      message: 'A spending limit leaves no room until lines under way have ended.',
    }
  if (parked.length > 0 && parked.length === groups.length)
    return { code: 'parked', message: whyParked(parked) }
  if (groups.length === 0 || leased.chunks === 0) return null
  return { code: 'queued', message: behind(leased) }
}

/** Trouble of a model that the batch needs; chunks of several models may need any. */
function laneReportOf(
  batch_id: string,
  groups: readonly ChunkGroup[],
  laneReports: readonly LaneReport[],
): WaitingReason | null {
  const needed = new Set(groups.map((group) => group.model))
  const ofNeeded = laneReports.filter(({ model }) => needed.has(model))
  for (const trouble of ofNeeded.length > 0 || !needed.has(null) ? ofNeeded : laneReports) {
    const told = tell(batch_id, trouble)
    if (told) return { ...told, model: trouble.model, since: trouble.since }
  }
  return null
}

/** What a server says of a line may quote it: only the batch's own errors are shown. */
function tell(
  batch_id: string,
  { model, state, error, batches, isOpen }: LaneReport,
): Pick<WaitingReason, 'code' | 'message'> | null {
  const own = batches[batch_id]
  if (state === 'unavailable') {
    const why = error === null ? '.' : `: ${error}`
    return { code: 'model_unavailable', message: `No server of the model ${model} answers${why}` }
  }
  if (state === 'throttled') {
    const said = own === undefined ? '.' : `: ${own}`
    return {
      code: 'upstream_throttled',
      message: `The servers of the model ${model} have asked to wait${said}`,
    }
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

/** What is parked for more reasons than one was mostly parked for the model's. */
function whyParked(parked: readonly ChunkGroup[]): string {
  const reasons = new Set(parked.map((group) => group.parked_reason))
  const [only = null] = reasons.size === 1 ? reasons : []
  return (only === null ? undefined : PARKED[only]) ?? 'Its model was away; it is tried again soon.'
}

function behind({ chunks, batches }: Surroundings['leased']): string {
  const of = batches === 1 ? 'one other batch' : `${batches} other batches`
  return `Queued behind ${chunks === 1 ? 'one chunk' : `${chunks} chunks`} of ${of} under way.`
}
