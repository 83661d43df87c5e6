// The progress of a batch, computed from counters that its commits sample: lines per second, the estimated
// completion, and whether the batch is at risk.
import type { BatchStatus } from './batch.ts'
import { finishAt, openingOf } from './hours.ts'
import type { ModelHours } from './model.ts'

/** Samples of the rate are at least this far apart. */
export const SAMPLE_MS = 2_000
/** A batch is moving if one of its lines has ended within this time. */
const MOVING_MS = 5_000
/** The rate may decrease: a batch is at risk if it would be late with this many times the remaining work. */
const RISK_FACTOR = 1.25
/** A pause of this share of what is left of the window says nothing of the rate yet: one answer may take minutes. */
const STALL_SHARE = 0.02
/** A batch of which no line has ended is at risk when it could have run for this share of its window. */
const UNBEGUN_SHARE = 0.25
/** No completion is estimated beyond it. */
const AHEAD_MS = 9 * 86_400_000

/** Why a batch may be waiting. */
export const WAITING_CODES = [
  'no_worker',
  'storage_failing',
  'engine_starting',
  'paused',
  'not_before',
  'outside_hours',
  'model_unavailable',
  'upstream_throttled',
  'live_traffic',
  'lines_failing',
  'usage_limit',
  'remote_batch',
  'parked',
  'queued',
] as const

export type WaitingCode = (typeof WAITING_CODES)[number]

/** The reasons of batches that have time, or go on by themselves; for all others somebody or something has to change. */
const IN_ORDER: readonly WaitingCode[] = [
  'engine_starting',
  'not_before',
  'outside_hours',
  'live_traffic',
  'remote_batch',
  'queued',
]

export interface ProgressCounters {
  status: BatchStatus
  total: number
  completed: number
  failed: number
  in_progress_at: number | null
  created: number
  expires_at: number
  /** When the rate was sampled last, and how many lines had ended then; null before the first line has ended. */
  rate_sampled_at: number | null
  rate_lines: number
  lines_per_s: number | null
  paused_at?: number | null
  /** Nothing is sent before (Unix ms). */
  start_after?: number | null
}

export interface Progress {
  /** Null before the first line has ended. */
  lines_per_s: number | null
  /** Unix ms; null when it is unknown. */
  estimated_completion: number | null
  at_risk: boolean
}

/**
 * `totalRate`: lines per second of all batches together, assumed for a batch that has not begun. `hours`: of the models
 * that it needs and that are not always open. `waits`: what it waits for, where that is known. A completion that is
 * estimated after the window means that the batch is at risk.
 */
export function progressOf(
  batch: ProgressCounters,
  now: number,
  totalRate: number | null = null,
  hours: readonly ModelHours[] = [],
  waits: WaitingCode | null = null,
): Progress {
  const openSince = openSinceOf(batch, now, hours)
  const lines_per_s = rateOf(batch, openSince, 2 * SAMPLE_MS)
  const remaining = batch.total - batch.completed - batch.failed
  const needs = (rate: number | null): number | null =>
    rate !== null && rate > 0 ? (remaining / rate) * 1000 : remaining === 0 ? 0 : null
  const patienceMs = Math.max(2 * SAMPLE_MS, (batch.expires_at - now) * STALL_SHARE)
  const neededMs = needs(rateOf(batch, openSince, patienceMs))
  const steadyMs = neededMs ?? needs(totalRate)
  const isStuck =
    neededMs === null && ((waits !== null && !IN_ORDER.includes(waits)) || isUnbegun(batch, openSince))
  const at_risk =
    remaining > 0 && (isStuck || isLate(batch, now, steadyMs === null ? null : steadyMs * RISK_FACTOR, hours))
  const done = neededMs === null ? null : doneAt(batch, now, neededMs, hours, at_risk ? 'atRisk' : 'usual')
  return {
    lines_per_s,
    estimated_completion:
      (batch.paused_at ?? null) !== null || done === Number.POSITIVE_INFINITY ? null : done,
    at_risk,
  }
}

/** Whether a line of the batch has ended within `ms`. */
export function isMoving(
  { rate_sampled_at }: Pick<ProgressCounters, 'rate_sampled_at'>,
  now: number,
  ms = MOVING_MS,
): boolean {
  return rate_sampled_at !== null && now - rate_sampled_at < ms
}

function isUnbegun({ created, start_after, expires_at }: ProgressCounters, { from, now }: Watched): boolean {
  const start = Math.max(created, start_after ?? created)
  return now - Math.max(start, from) > (expires_at - start) * UNBEGUN_SHARE
}

/** `neededMs` null: all that is known is when it can begin. */
function isLate(
  batch: ProgressCounters,
  now: number,
  neededMs: number | null,
  hours: readonly ModelHours[],
): boolean {
  if (neededMs === null) return hours.length > 0 && doneAt(batch, now, 0, hours, 'usual') >= batch.expires_at
  return doneAt(batch, now, neededMs, hours, 'usual') > batch.expires_at
}

/** When work of `neededMs` is done (Unix ms), within the hours of its models; infinite where that is too far ahead. */
export function doneAt(
  { start_after }: Pick<ProgressCounters, 'start_after'>,
  now: number,
  neededMs: number,
  hours: readonly ModelHours[],
  which: keyof ModelHours,
): number {
  const start = Math.max(now, start_after ?? now)
  if (hours.length === 0) return start + neededMs
  return Math.max(...hours.map((one) => finishAt(one[which], start, neededMs, start + AHEAD_MS)))
}

/** Up to when lines may have ended, and from when on: while servers are closed, nothing is said of the rate. */
interface Watched {
  from: number
  now: number
}

function openSinceOf(batch: ProgressCounters, now: number, hours: readonly ModelHours[]): Watched {
  let from = Number.NEGATIVE_INFINITY
  let until = batch.paused_at ?? now
  const opens = (all: ModelHours['usual']): void => {
    const { open, since } = openingOf(all, now)
    if (open) from = Math.max(from, since)
    else until = Math.min(until, since)
  }
  for (const { usual } of hours) opens(usual)
  return { from, now: until }
}

function rateOf(batch: ProgressCounters, watched: Watched, patienceMs: number): number | null {
  const { in_progress_at, rate_sampled_at, rate_lines, lines_per_s } = batch
  const done = batch.completed + batch.failed
  if (in_progress_at === null || rate_sampled_at === null) return null
  if (lines_per_s === null) {
    const elapsedMs = watched.now - in_progress_at
    if (patienceMs > 2 * SAMPLE_MS && elapsedMs < patienceMs) return null
    return (done / Math.max(elapsedMs, 1)) * 1000
  }
  const elapsedMs = watched.now - Math.max(rate_sampled_at, watched.from)
  if (elapsedMs <= patienceMs) return lines_per_s
  // No line has been counted since: the rate is at most what one more line would make it.
  return Math.min(lines_per_s, ((done - rate_lines + 1) / elapsedMs) * 1000)
}
