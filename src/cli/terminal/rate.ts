// The rate of a batch as an exponentially weighted average: the weight of a sample is halved every HALF_LIFE_MS. Lines
// and time are weighted alike, so the first samples are not biased towards zero.

const HALF_LIFE_MS = 5000

export interface RatePoint {
  atMs: number
  done: number
  /** Weighted sums. */
  lines: number
  timeMs: number
}

export function startRate(done: number, atMs: number): RatePoint {
  return { atMs, done, lines: 0, timeMs: 0 }
}

/** The point after a sample of `done` lines at `atMs`. A sample at the same instant is ignored; the next one counts its lines. */
export function nextRate(last: RatePoint, done: number, atMs: number): RatePoint {
  const passedMs = atMs - last.atMs
  if (passedMs <= 0) return last
  const fade = 0.5 ** (passedMs / HALF_LIFE_MS)
  return {
    atMs,
    done,
    lines: last.lines * fade + Math.max(0, done - last.done),
    timeMs: last.timeMs * fade + passedMs,
  }
}

/** Lines a second, or null before the second sample. */
export function perSecond(point: RatePoint): number | null {
  return point.timeMs > 0 ? (point.lines / point.timeMs) * 1000 : null
}

/** Milliseconds until `total` lines are done at this rate, or null when the rate is zero or unknown. */
export function leftMs(point: RatePoint, total: number): number | null {
  const rate = perSecond(point)
  if (rate === null || rate <= 0) return null
  return (Math.max(0, total - point.done) / rate) * 1000
}
