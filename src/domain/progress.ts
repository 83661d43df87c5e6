// How a batch gets on, told from counters that its commits sample: lines a second, when it will be done, and
// whether that may be too late.
import type { BatchStatus } from './batch.ts'

/** Samples of the rate are at least this far apart. */
export const SAMPLE_MS = 2_000
/** A batch of which a line has ended within this time moves. */
const STILL_MS = 5_000
/** The rate may fall: a batch is at risk if it would be late with this much more to do. */
const SAFETY = 1.25

/** What a batch may wait for. */
export const WAITING_CODES = [
  'no_worker',
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
  /** Null before there is anything to go by. */
  lines_per_s: number | null
  /** Unix ms; null when that cannot be said. */
  estimated_completion: number | null
  at_risk: boolean
}

/**
 * `foreign_rate`: lines a second of all batches together, which one that has not begun may hope for once the
 * others are done or make room.
 */
export function progressOf(
  batch: ProgressCounters,
  now: number,
  foreign_rate: number | null = null,
): Progress {
  const lines_per_s = rateOf(batch, now)
  const left = batch.total - batch.completed - batch.failed
  const needs = (rate: number | null): number | null =>
    rate !== null && rate > 0 ? (left / rate) * 1000 : left === 0 ? 0 : null
  const needed_ms = needs(lines_per_s)
  const expected_ms = needed_ms ?? needs(foreign_rate)
  return {
    lines_per_s,
    estimated_completion: needed_ms === null ? null : now + needed_ms,
    at_risk: left > 0 && expected_ms !== null && now + expected_ms * SAFETY > batch.expires_at,
  }
}

/** Whether lines of the batch have ended lately. */
export function isMoving({ rate_sampled_at }: ProgressCounters, now: number): boolean {
  return rate_sampled_at !== null && now - rate_sampled_at < STILL_MS
}

function rateOf(batch: ProgressCounters, now: number): number | null {
  const { in_progress_at, rate_sampled_at, rate_lines, lines_per_s } = batch
  const done = batch.completed + batch.failed
  if (in_progress_at === null || rate_sampled_at === null) return null
  if (lines_per_s === null) return (done / Math.max(now - in_progress_at, 1)) * 1000
  const silent_ms = now - rate_sampled_at
  if (silent_ms <= 2 * SAMPLE_MS) return lines_per_s
  // Nothing has been counted for a while: at most one line can have been about to end.
  return Math.min(lines_per_s, ((done - rate_lines + 1) / silent_ms) * 1000)
}
