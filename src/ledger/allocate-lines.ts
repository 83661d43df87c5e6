// Decides which lines of a chunk may be sent under the limits that match them. A line may be sent when its
// worst case still fits beside what is spent and what is held. One that would not fit even if everything held
// came back unspent has met the cap. One that only holds keep out waits: what is held is seldom all spent.
import { WHOLE_PROJECT } from '../domain/limit.ts'
import { addInPlace, counted, isZero, type Spend } from '../domain/spend.ts'
import type { Counter } from './counters.ts'

export interface Candidate {
  /** Its place in the chunk. */
  position: number
  entity: string | null
  /** What it may cost at most. */
  projected: Spend
  /** It cannot be called back: it is held whether it fits or not. */
  isSent: boolean
}

/** A counter with what is held beside it, in the limit's unit. */
export interface LimitUsage extends Counter {
  reserved: number
}

export interface Allocation {
  /** Positions that may be sent, with those that were sent before. */
  allowed: number[]
  /** Positions that have met a cap, and which. */
  refused: Map<number, LimitUsage>
  /** Positions for which there may be room later. */
  waiting: number[]
  /** What the allowed lines may cost at most, by entity. */
  reservations: Map<string | null, Spend>
}

/** Takes lines in the order given, each that fits; raises `held` of the meters by what it takes. */
export function allocateLines(candidates: readonly Candidate[], meters: readonly LimitUsage[]): Allocation {
  const fit: Allocation = { allowed: [], refused: new Map(), waiting: [], reservations: new Map() }
  const metersOf = byEntity(meters)
  const take = ({ position, entity, projected: need }: Candidate): void => {
    for (const meter of metersOf(entity)) meter.reserved += counted(need, meter.limit.metric)
    fit.allowed.push(position)
    const hold = fit.reservations.get(entity)
    if (hold) addInPlace(hold, need)
    else fit.reservations.set(entity, { ...need })
  }
  for (const candidate of candidates) if (candidate.isSent) take(candidate)
  for (const candidate of candidates) {
    if (candidate.isSent) continue
    const { position, entity, projected: need } = candidate
    if (isZero(need)) {
      take(candidate)
      continue
    }
    const met = metersOf(entity).find((meter) => !fits(meter, need, 0))
    if (met) fit.refused.set(position, met)
    else if (metersOf(entity).every((meter) => fits(meter, need, meter.reserved))) take(candidate)
    else fit.waiting.push(position)
  }
  return fit
}

function fits({ limit, spent }: LimitUsage, need: Spend, held: number): boolean {
  const units = counted(need, limit.metric)
  return units === 0 || spent + held + units <= limit.amount
}

/** A meter counts the whole project or one entity. */
function byEntity(meters: readonly LimitUsage[]): (entity: string | null) => readonly LimitUsage[] {
  const bySpender = Map.groupBy(meters, (meter) => meter.spender)
  const ofProject = bySpender.get(WHOLE_PROJECT) ?? []
  const known = new Map<string, readonly LimitUsage[]>()
  return (entity) => {
    const own = entity === null ? undefined : bySpender.get(entity)
    if (entity === null || !own) return ofProject
    const found = known.get(entity) ?? [...ofProject, ...own]
    known.set(entity, found)
    return found
  }
}
