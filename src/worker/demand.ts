// What a worker should claim next, derived from its lanes: a model that is unavailable, or has enough lines, must not
// leave the servers of another model without work.
import { type Lane, lowWaterMark } from '../dispatch/lane.ts'

export interface Demand {
  /** Whether the waiting lines of all models that are not blocked are below the low-water mark. */
  wantsMore: boolean
  /** Models below their low-water mark. */
  low: string[]
  /** Models at or above their low-water mark. */
  full: string[]
  /** Models to which nothing can be sent for some time. */
  blocked: string[]
  /** Of those, the models that take lines of at-risk batches all the same. */
  atRiskOnly: string[]
}

type LaneState = Pick<Lane, 'waiting' | 'concurrency' | 'isLow' | 'blocked' | 'takesAtRisk'>

export function demandOf(lanes: Iterable<readonly [string, LaneState]>, now: number): Demand {
  const demand: Demand = { wantsMore: false, low: [], full: [], blocked: [], atRiskOnly: [] }
  let waiting = 0
  let concurrency = 0
  for (const [model, lane] of lanes) {
    if (lane.blocked(now)) {
      demand.blocked.push(model)
      if (lane.takesAtRisk(now)) demand.atRiskOnly.push(model)
      continue
    }
    waiting += lane.waiting
    concurrency += lane.concurrency
    if (lane.isLow) demand.low.push(model)
    else demand.full.push(model)
  }
  demand.wantsMore = waiting < lowWaterMark(concurrency)
  return demand
}
