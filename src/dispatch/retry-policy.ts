// Decides when a line without an answer is tried again, and when its attempts are exhausted.
import type { BackendResult } from '../backends/backend.ts'
import type { Config } from '../config/config.ts'

export type RetryPolicy = Config['retry']

/**
 * The cause of a missing answer. `line`: the server answers other lines. `server`: the server answers no line.
 * `unlucky`: the line was throttled while others were answered.
 */
export type Blame = 'line' | 'server' | 'unlucky'

export interface TryCount {
  failures: number
  /** Misses that were the line's own fault. */
  own: number
  throttles: number
  /** Throttles, with a weight for those while others were answered. */
  weightedThrottles: number
  /** Time spent waiting because it was throttled. */
  throttledMs: number
  /** When the first failure since the upstream's last answer happened; Unix ms. */
  firstFailureAt: number | null
}

export type MissedResult = Extract<BackendResult, { kind: 'throttled' | 'failed' }>

/** How much a throttle counts while other lines are answered: chance alone does not throttle one line that often. */
const UNLUCKY_WEIGHT = 4
/** The shortest backoff of a throttled line: the next answer frees a slot. */
const THROTTLE_MS_MIN = 20

export function noTries(): TryCount {
  return {
    failures: 0,
    own: 0,
    throttles: 0,
    weightedThrottles: 0,
    throttledMs: 0,
    firstFailureAt: null,
  }
}

/** Counts a miss. `answeredAt`: when the upstream last answered anything (Unix ms). */
export function countMiss(
  tries: TryCount,
  result: MissedResult,
  blame: Blame,
  answeredAt: number,
  now: number,
): void {
  if (blame === 'line') tries.own++
  if (result.kind === 'throttled') {
    tries.throttles++
    // A spending limit holds until its window ends, and lines that are there fill it, however often the line is sent.
    if (!result.isOverLimit && !result.isFilled)
      tries.weightedThrottles += blame === 'unlucky' ? UNLUCKY_WEIGHT : 1
    return
  }
  tries.failures++
  // A server that has answered since then was available in between, unless it is this service that it refuses: a batch API
  // takes batches that it refuses later.
  const wasThere = answeredAt > (tries.firstFailureAt ?? now) && !result.refusesService
  if (tries.firstFailureAt === null || wasThere) tries.firstFailureAt = now
}

/** Whether the line fails now. `tries` counts this miss already; `windowMs`: the batch's completion window. */
export function isExhausted(
  policy: RetryPolicy,
  tries: TryCount,
  { kind }: MissedResult,
  now: number,
  windowMs: number,
): boolean {
  if (tries.own >= policy.attempts_max) return true
  if (kind === 'throttled')
    return (
      tries.weightedThrottles >= policy.throttled_attempts_max ||
      tries.throttledMs >= policy.throttled_share * windowMs
    )
  if (tries.failures < policy.attempts_max || tries.firstFailureAt === null) return false
  return now - tries.firstFailureAt >= policy.outage_patience_ms
}

/**
 * How long to wait before the next attempt: exponential with full jitter, never less than the upstream asked
 * for, unless that is longer than throttled lines may wait. `random` is in [0, 1).
 */
export function backoffMs(
  policy: RetryPolicy,
  tries: TryCount,
  miss: MissedResult,
  random: number,
  windowMs: number,
): number {
  const isThrottled = miss.kind === 'throttled'
  const leastMs = isThrottled ? Math.min(THROTTLE_MS_MIN, policy.backoff_min_ms) : policy.backoff_min_ms
  const exponent = Math.min((isThrottled ? tries.throttles : tries.failures) - 1, 30)
  const ceiling = Math.min(policy.backoff_max_ms, leastMs * 2 ** exponent)
  const jittered = leastMs / 2 + random * (ceiling - leastMs / 2)
  const leftMs = Math.max(0, policy.throttled_share * windowMs - tries.throttledMs)
  return Math.max(jittered, Math.min(miss.retry_after_ms ?? 0, Math.max(leftMs, jittered)))
}
