// What a worker should claim next, derived from its lanes: a model that is unavailable, or has enough lines, must not
// leave the servers of another model without work.
import type { Lane } from '../send/lane.ts'

/** Lines kept ready to be sent, at least; and in multiples of what the upstreams take at once. */
const LINES_AHEAD_MIN = 1000
const LINES_AHEAD_FACTOR = 2

export interface Demand {
  /** Whether the lines at hand, those of blocked models aside, will soon run out. */
  wantsMore: boolean
  /** Models whose lines will soon run out. */
  low: string[]
  /** Models that have lines enough. */
  full: string[]
  /** Models to which nothing can be sent until time has passed. */
  blocked: string[]
}

type LaneState = Pick<Lane, 'waiting' | 'concurrency' | 'blocked'>

export function demandOf(lanes: Iterable<readonly [string, LaneState]>, now: number): Demand {
  const demand: Demand = { wantsMore: false, low: [], full: [], blocked: [] }
  let waiting = 0
  let concurrency = 0
  for (const [model, lane] of lanes) {
    if (lane.blocked(now)) {
      demand.blocked.push(model)
      continue
    }
    waiting += lane.waiting
    concurrency += lane.concurrency
    if (isBelowLowWaterMark(lane)) demand.low.push(model)
    else demand.full.push(model)
  }
  demand.wantsMore = isLow(waiting, concurrency)
  return demand
}

/** Whether the lines that wait in a lane will soon run out. */
export function isBelowLowWaterMark(lane: LaneState): boolean {
  return isLow(lane.waiting, lane.concurrency)
}

function isLow(waiting: number, concurrency: number): boolean {
  return waiting < Math.max(LINES_AHEAD_MIN, concurrency * LINES_AHEAD_FACTOR)
}
