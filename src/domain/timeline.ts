// What of a batch finished when, in intervals of equal length. As many as fit are kept: when there are more, the
// interval doubles and neighbours become one.
import { sumOf } from './spend.ts'

export interface Finished {
  completed: number
  failed: number
  prompt_tokens: number
  completion_tokens: number
  cost_nanos: number
}

interface TimelinePoint extends Finished {
  /** Beginning of its interval, Unix ms. */
  at: number
}

export interface Timeline {
  interval_ms: number
  /** In order of time; intervals in which nothing finished are left out. */
  points: TimelinePoint[]
}

export const POINTS_MAX = 200
const INTERVAL_MS_MIN = 1000

export const EMPTY_TIMELINE: Timeline = { interval_ms: INTERVAL_MS_MIN, points: [] }

/** `more` may be negative: what is taken back leaves the newest points first, and none becomes negative. */
export function addToTimeline({ interval_ms, points }: Timeline, more: Finished, now: number): Timeline {
  const added = points.map((point) => ({ ...point }))
  const at = Math.floor(now / interval_ms) * interval_ms
  // The clock may have been set back: what is new is never before what is known.
  const last = added.at(-1)
  const current = last && last.at >= at ? last : { at, ...NOTHING }
  if (current !== last) added.push(current)
  for (const field of FIELDS) {
    current[field] = sumOf(current[field], more[field])
    for (let i = added.length - 1; i > 0 && added[i]![field] < 0; i--) {
      added[i - 1]![field] += added[i]![field]
      added[i]![field] = 0
    }
    const first = added[0]!
    first[field] = Math.max(0, first[field])
  }
  return thinned({ interval_ms, points: added.filter((point) => FIELDS.some((field) => point[field] > 0)) })
}

export const NOTHING: Finished = {
  completed: 0,
  failed: 0,
  prompt_tokens: 0,
  completion_tokens: 0,
  cost_nanos: 0,
}
const FIELDS = ['completed', 'failed', 'prompt_tokens', 'completion_tokens', 'cost_nanos'] as const

export function plus(a: Finished, b: Finished): Finished {
  return {
    completed: a.completed + b.completed,
    failed: a.failed + b.failed,
    prompt_tokens: sumOf(a.prompt_tokens, b.prompt_tokens),
    completion_tokens: sumOf(a.completion_tokens, b.completion_tokens),
    cost_nanos: sumOf(a.cost_nanos, b.cost_nanos),
  }
}

function thinned(timeline: Timeline): Timeline {
  let { interval_ms, points } = timeline
  while (points.length > POINTS_MAX) {
    interval_ms *= 2
    const merged: TimelinePoint[] = []
    for (const point of points) {
      const at = Math.floor(point.at / interval_ms) * interval_ms
      const last = merged.at(-1)
      if (last?.at === at) for (const field of FIELDS) last[field] = sumOf(last[field], point[field])
      else merged.push({ ...point, at })
    }
    points = merged
  }
  return { interval_ms, points }
}
