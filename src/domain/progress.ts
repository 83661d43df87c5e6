// The progress of a batch, computed from counters that its commits sample: lines per second, the estimated
// completion, and whether the batch is at risk.
import type { BatchStatus } from './batch.ts'

/** Samples of the rate are at least this far apart. */
export const SAMPLE_MS = 2_000
/** A batch is moving if one of its lines has ended within this time. */
const MOVING_MS = 5_000
/** The rate may decrease: a batch is at risk if it would be late with this many times the remaining work. */
const RISK_FACTOR = 1.25

/** Why a batch may be waiting. */
export const WAITING_CODES = [
  'no_worker',
  'engine_starting',
  'model_unavailable',
  'upstream_throttled',
  'lines_failing',
  'usage_limit',
  'parked',
  'queued',
] as const

export type WaitingCode = (typeof WAITING_CODES)[number]

export interface ProgressCounters {
  status: BatchStatus
  total: number
  completed: number
  failed: number
  in_progress_at: number | null
  expires_at: number
  /** When the rate was sampled last, and how many lines had ended then; null before the first line has ended. */
  rate_sampled_at: number | null
  rate_lines: number
  lines_per_s: number | null
}

export interface Progress {
  /** Null before the first line has ended. */
  lines_per_s: number | null
  /** Unix ms; null when it is unknown. */
  estimated_completion: number | null
  at_risk: boolean
}

/** `totalRate`: lines per second of all batches together, assumed for a batch that has not begun. */
export function progressOf(batch: ProgressCounters, now: number, totalRate: number | null = null): Progress {
  const lines_per_s = rateOf(batch, now)
  const remaining = batch.total - batch.completed - batch.failed
  const needs = (rate: number | null): number | null =>
    rate !== null && rate > 0 ? (remaining / rate) * 1000 : remaining === 0 ? 0 : null
  const neededMs = needs(lines_per_s)
  const estimatedMs = neededMs ?? needs(totalRate)
  return {
    lines_per_s,
    estimated_completion: neededMs === null ? null : now + neededMs,
    at_risk: remaining > 0 && estimatedMs !== null && now + estimatedMs * RISK_FACTOR > batch.expires_at,
  }
}

/** Whether a line of the batch has ended recently. */
export function isMoving({ rate_sampled_at }: ProgressCounters, now: number): boolean {
  return rate_sampled_at !== null && now - rate_sampled_at < MOVING_MS
}

function rateOf(batch: ProgressCounters, now: number): number | null {
  const { in_progress_at, rate_sampled_at, rate_lines, lines_per_s } = batch
  const done = batch.completed + batch.failed
  if (in_progress_at === null || rate_sampled_at === null) return null
  if (lines_per_s === null) return (done / Math.max(now - in_progress_at, 1)) * 1000
  const elapsedMs = now - rate_sampled_at
  if (elapsedMs <= 2 * SAMPLE_MS) return lines_per_s
  // No line has been counted since: the rate is at most what one more line would make it.
  return Math.min(lines_per_s, ((done - rate_lines + 1) / elapsedMs) * 1000)
}
