// How fast a batch moves, smoothed: what was seen lately counts more, and half as much with every HALF_LIFE_MS.
// Sums of lines and of time fade alike, so the first samples are not drawn towards zero.

const HALF_LIFE_MS = 5000

export interface RatePoint {
  at_ms: number
  done: number
  /** Faded sums. */
  lines: number
  time_ms: number
}

export function startRate(done: number, at_ms: number): RatePoint {
  return { at_ms, done, lines: 0, time_ms: 0 }
}

/** The point after `done` lines were seen at `at_ms`. A look at the same instant leaves its lines to the next. */
export function nextRate(last: RatePoint, done: number, at_ms: number): RatePoint {
  const passed_ms = at_ms - last.at_ms
  if (passed_ms <= 0) return last
  const fade = 0.5 ** (passed_ms / HALF_LIFE_MS)
  return {
    at_ms,
    done,
    lines: last.lines * fade + Math.max(0, done - last.done),
    time_ms: last.time_ms * fade + passed_ms,
  }
}

/** Lines a second, or null before there is anything to go by. */
export function perSecond(point: RatePoint): number | null {
  return point.time_ms > 0 ? (point.lines / point.time_ms) * 1000 : null
}

/** Until `total` lines are done at this rate, or null when that cannot be said. */
export function leftMs(point: RatePoint, total: number): number | null {
  const rate = perSecond(point)
  if (rate === null || rate <= 0) return null
  return (Math.max(0, total - point.done) / rate) * 1000
}
