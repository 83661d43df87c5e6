// The retry schedule of failed deliveries: short delays at first, for a receiver that restarts, then longer ones, and a
// last attempt after three days. Jitter spreads the retries of many events over time.

const SECOND_MS = 1_000
const MINUTE_MS = 60 * SECOND_MS
const HOUR_MS = 60 * MINUTE_MS

/** From the first attempt to the last. */
export const TRIED_FOR_MS = 72 * HOUR_MS

const DELAYS_MS = [
  5 * SECOND_MS,
  30 * SECOND_MS,
  2 * MINUTE_MS,
  10 * MINUTE_MS,
  30 * MINUTE_MS,
  HOUR_MS,
  2 * HOUR_MS,
  5 * HOUR_MS,
  10 * HOUR_MS,
]
const DELAY_MS_MAX = 12 * HOUR_MS
const JITTER = 0.2

/**
 * The time of the attempt after number `attempts` (from 1), which failed at `now`, or null when that was the
 * last. `chance` is in [0, 1); `wait_ms` is the `Retry-After` of the receiver. Times in Unix ms.
 */
export function nextAttemptAt(
  { started, attempts }: { started: number; attempts: number },
  now: number,
  chance: number,
  wait_ms = 0,
): number | null {
  const end = started + TRIED_FOR_MS
  if (now >= end) return null
  const delayMs = DELAYS_MS[attempts - 1] ?? DELAY_MS_MAX
  const spreadMs = Math.round(delayMs * (1 - JITTER + 2 * JITTER * chance))
  return Math.min(end, now + Math.max(spreadMs, wait_ms))
}
