// When a line that did not get its answer is tried again, and when it is given up.
import type { BackendResult } from '../backends/backend.ts'

export interface RetryPolicy {
  /** Attempts that may fail, the first included; being throttled is no failed attempt. */
  attempts_max: number
  backoff_min_ms: number
  backoff_max_ms: number
  /** How long an upstream may be unreachable before its lines are given up: restarts are no failures. */
  outage_patience_ms: number
}

/** What has happened to a line so far. */
export interface TryCount {
  failures: number
  throttles: number
  /** When the first of the failures happened that have not been followed by anything better; Unix ms. */
  first_failure_at: number | null
}

type Miss = Extract<BackendResult, { kind: 'throttled' | 'failed' }>

/** Whether nobody was there at all, rather than somebody who answered badly. */
function isOutage(miss: Miss): boolean {
  return miss.kind === 'failed' && miss.status === null && miss.code === 'upstream_unavailable'
}

/** Whether the line ends here. `tries` counts this miss already. */
export function givesUp(policy: RetryPolicy, tries: TryCount, miss: Miss, now: number): boolean {
  if (miss.kind === 'throttled' || tries.failures < policy.attempts_max) return false
  if (!isOutage(miss)) return true
  return tries.first_failure_at !== null && now - tries.first_failure_at >= policy.outage_patience_ms
}

/** A line that found no room waits for a place, which the next answer frees. */
const THROTTLE_MS_MIN = 20

/**
 * How long to wait before the next attempt: exponential with full jitter, never less than the upstream asked
 * for. `random` is in [0, 1).
 */
export function backoffMs(policy: RetryPolicy, tries: TryCount, miss: Miss, random: number): number {
  const isThrottled = miss.kind === 'throttled'
  const least_ms = isThrottled ? Math.min(THROTTLE_MS_MIN, policy.backoff_min_ms) : policy.backoff_min_ms
  const exponent = Math.min((isThrottled ? tries.throttles : tries.failures) - 1, 30)
  const ceiling = Math.min(policy.backoff_max_ms, least_ms * 2 ** exponent)
  const jittered = least_ms / 2 + random * (ceiling - least_ms / 2)
  return Math.max(jittered, miss.retry_after_ms ?? 0)
}
