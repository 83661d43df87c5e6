// The progress of a batch, computed from counters that its commits sample: lines per second, the estimated
// completion, and whether the batch is at risk.
import type { BatchStatus } from './batch.ts'
import { finishAt, openingOf } from './hours.ts'
import type { ModelHours } from './model.ts'

/** The least time between two samples of the rate. */
export const SAMPLE_MS = 2_000
/** The time within which a line of a moving batch has ended. */
const MOVING_MS = 5_000
/** The factor of the remaining work with which a batch must still be in time: the rate may decrease. */
const RISK_FACTOR = 1.25
/** The share of the remaining window up to which a pause does not lower the rate: one answer may take minutes. */
const STALL_SHARE = 0.02
/** The share of its window after which a batch without any ended line is at risk, if it could have run. */
const UNBEGUN_SHARE = 0.25
/** The limit of estimates ahead. */
const AHEAD_MS = 9 * 86_400_000

/** The reasons for which a batch waits. */
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

/** Waiting reasons that end by themselves; the others need an action. */
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
  /** The time of the last sample of the rate, and the ended lines then; null before the first line has ended. */
  rate_sampled_at: number | null
  rate_lines: number
  lines_per_s: number | null
  paused_at?: number | null
  /** The time before which no line is sent, Unix ms. */
  start_after?: number | null
}

export interface Progress {
  /** The rate; null before the first line has ended. */
  lines_per_s: number | null
  /** The estimated completion in Unix ms; null if unknown. */
  estimated_completion: number | null
  at_risk: boolean
}

/**
 * The progress of a batch. `totalRate`: lines per second of all batches, assumed for a batch that has not begun.
 * `hours`: of its models that are not always open. `waits`: its waiting reason, if known. A batch is at risk if its
 * estimated completion is after its window.
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

/** Whether a batch is at risk; `neededMs` is null if only its earliest start is known. */
function isLate(
  batch: ProgressCounters,
  now: number,
  neededMs: number | null,
  hours: readonly ModelHours[],
): boolean {
  if (neededMs === null) return hours.length > 0 && doneAt(batch, now, 0, hours, 'usual') >= batch.expires_at
  return doneAt(batch, now, neededMs, hours, 'usual') > batch.expires_at
}

/** The end (Unix ms) of work of `neededMs` within the hours of its models; infinite beyond AHEAD_MS. */
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

/** The times up to which and from which lines may have ended: closed servers do not change the rate. */
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
  // The rate is bounded by one more line since the last sample.
  return Math.min(lines_per_s, ((done - rate_lines + 1) / elapsedMs) * 1000)
}
