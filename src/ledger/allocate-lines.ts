// Decides which lines of a chunk may be sent under the limits that match them. A line may be sent if its projected
// cost, the spend and all reservations together stay within the cap. A line is refused if its projected cost and the
// spend alone exceed the cap. A line that only reservations keep out waits, since reservations are seldom used up.
import { WHOLE_PROJECT } from '../domain/limit.ts'
import { addInPlace, counted, isZero, type Spend } from '../domain/spend.ts'
import type { Counter } from './counters.ts'

export interface Candidate {
  /** Its place in the chunk. */
  position: number
  entity: string | null
  /** Its projected spend. */
  projected: Spend
  /** It was sent already, so it gets a reservation in any case. */
  isSent: boolean
}

/** A counter with the reservations of its spender, in the limit's unit. */
export interface LimitUsage extends Counter {
  reserved: number
}

export interface Allocation {
  /** Positions that may be sent, including those that were sent already. */
  allowed: number[]
  /** Positions that a cap refuses, and its limit. */
  refused: Map<number, LimitUsage>
  /** Positions that may be allowed later. */
  waiting: number[]
  /** The projected spend of the allowed lines, by entity. */
  reservations: Map<string | null, Spend>
}

/** Allows lines in the given order, and adds their projected spend to `reserved` of the usages. */
export function allocateLines(candidates: readonly Candidate[], usages: readonly LimitUsage[]): Allocation {
  const allocation: Allocation = { allowed: [], refused: new Map(), waiting: [], reservations: new Map() }
  const usagesOf = byEntity(usages)
  const allow = ({ position, entity, projected }: Candidate): void => {
    for (const usage of usagesOf(entity)) usage.reserved += counted(projected, usage.limit.metric)
    allocation.allowed.push(position)
    const reservation = allocation.reservations.get(entity)
    if (reservation) addInPlace(reservation, projected)
    else allocation.reservations.set(entity, { ...projected })
  }
  for (const candidate of candidates) if (candidate.isSent) allow(candidate)
  for (const candidate of candidates) {
    if (candidate.isSent) continue
    const { position, entity, projected } = candidate
    if (isZero(projected)) {
      allow(candidate)
      continue
    }
    const exceeded = usagesOf(entity).find((usage) => !isWithinCap(usage, projected, 0))
    if (exceeded) allocation.refused.set(position, exceeded)
    else if (usagesOf(entity).every((usage) => isWithinCap(usage, projected, usage.reserved)))
      allow(candidate)
    else allocation.waiting.push(position)
  }
  return allocation
}

function isWithinCap({ limit, spent }: LimitUsage, projected: Spend, reserved: number): boolean {
  const units = counted(projected, limit.metric)
  return units === 0 || spent + reserved + units <= limit.amount
}

/** The usages that count an entity: those of the whole project and its own. */
function byEntity(usages: readonly LimitUsage[]): (entity: string | null) => readonly LimitUsage[] {
  const bySpender = Map.groupBy(usages, (usage) => usage.spender)
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
