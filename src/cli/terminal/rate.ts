// How fast a batch moves, smoothed: what was seen lately counts more, and half as much with every HALF_LIFE_MS.
// Sums of lines and of time fade alike, so the first samples are not drawn towards zero.

const HALF_LIFE_MS = 5000

export interface RatePoint {
  atMs: number
  done: number
  /** Faded sums. */
  lines: number
  timeMs: number
}

export function startRate(done: number, atMs: number): RatePoint {
  return { atMs, done, lines: 0, timeMs: 0 }
}

/** The point after `done` lines were seen at `atMs`. A look at the same instant leaves its lines to the next. */
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

/** Lines a second, or null before there is anything to go by. */
export function perSecond(point: RatePoint): number | null {
  return point.timeMs > 0 ? (point.lines / point.timeMs) * 1000 : null
}

/** Until `total` lines are done at this rate, or null when that cannot be said. */
export function leftMs(point: RatePoint, total: number): number | null {
  const rate = perSecond(point)
  if (rate === null || rate <= 0) return null
  return (Math.max(0, total - point.done) / rate) * 1000
}
