// Before a line of a chunk is sent, its projected cost is reserved under every limit that matches, in one transaction
// that locks those limits. So the sum of spend and reservations never exceeds a cap, however many workers reserve
// concurrently.
//
// The limits are checked in the windows of one day, and the lines are charged to that day whenever they end. Reservations
// of other days count in every window, which can only make lines wait.

import { dayOf } from '../domain/days.ts'
import { type LimitMetric, REACHED, WHOLE_PROJECT } from '../domain/limit.ts'
import { addInPlace, addSpend, counted, isZero, minus, NO_SPEND, type Spend } from '../domain/money.ts'
import { hasLease } from '../store/chunks.ts'
import { addReservations, amountsByEntity, reservedByProject } from '../store/ledger.ts'
import { lockMatchingLimits, matchingLimits } from '../store/limits.ts'
import type { ChunkRow, LimitRow } from '../store/schema.ts'
import type { Reader, Writer } from '../store/store.ts'
import {
  type Counter,
  limitSubjects,
  readCounters,
  readSpending,
  type Spending,
  spendingOf,
} from './counters.ts'
import { type Crossing, recordCrossings } from './settle.ts'

export interface ReserveLine extends Candidate {
  /** Its projected spend is part of the chunk's reservation already. */
  isReserved: boolean
}

interface ReserveRequest {
  claim: Pick<ChunkRow, 'batch_id' | 'idx' | 'epoch' | 'project_id'>
  /** In order of preference. */
  lines: readonly ReserveLine[]
}

export interface Reservation extends Pick<Allocation, 'allowed' | 'refused' | 'waiting'> {
  /** The spenders that limits cap, and the metric. */
  capped: readonly { spender: string; metric: LimitMetric }[]
  /** Whether the allowed lines are reserved; false where no limit matches. */
  isReserved: boolean
  /** The UTC day whose windows were checked. */
  day: number
  /** Caps that were found reached for the first time. */
  crossings: Crossing[]
}

/** Null when the lease was lost: then nothing is reserved. */
export async function reserve(tx: Writer, order: ReserveRequest, now: number): Promise<Reservation | null> {
  const { claim, lines } = order
  if (!(await hasLease(tx, claim))) return null
  const entities = new Set(lines.map((line) => line.entity).filter((entity) => entity !== null))
  const { project_id } = claim
  const limits = await lockMatchingLimits(tx, { project_id, action: 'block', ...limitSubjects(entities) })
  const isReserved = limits.length > 0
  const usages = isReserved ? await readLimitUsage(tx, order, limits, entities, now) : []
  const { allowed, refused, waiting, reservations } = allocateLines(lines, usages)
  await changeReservations(tx, order, isReserved ? reservations : new Map())
  const reached = [...new Set(refused.values())]
  const crossings: Crossing[] = []
  for (const usage of reached) crossings.push(...(await recordCrossings(tx, usage, [REACHED], now)))
  const capped = usages.map(({ spender, limit }) => ({ spender, metric: limit.metric }))
  return { allowed, refused, waiting, isReserved, capped, day: dayOf(now), crossings }
}

/** Reads reservations before spend: an amount that is settled in between is counted twice, never missed. */
async function readLimitUsage(
  tx: Writer,
  { claim, lines }: ReserveRequest,
  limits: readonly LimitRow[],
  entities: ReadonlySet<string>,
  now: number,
): Promise<LimitUsage[]> {
  const others = without(await readReserved(tx, claim.project_id, limits, entities), lines)
  const counters = await readCounters(tx, claim.project_id, limits, entities, now)
  return counters.map((counter) => ({ ...counter, reserved: spendingOf(others, counter) }))
}

async function readReserved(
  db: Reader,
  project_id: string,
  limits: readonly LimitRow[],
  entities: ReadonlySet<string>,
): Promise<Spending> {
  const hasProjectLimit = limits.some((limit) => limit.scope === 'project')
  return await readSpending(
    hasProjectLimit ? [...entities, WHOLE_PROJECT] : entities,
    (names) => amountsByEntity(db, 'reservations', project_id, names),
    () => reservedByProject(db, project_id),
  )
}

/** The caps on these entities and the project that spend and reservations together exceed. */
export async function overcommittedLimits(
  db: Reader,
  project_id: string,
  entities: ReadonlySet<string>,
  now: number,
): Promise<LimitUsage[]> {
  const limits = await matchingLimits(db, { project_id, action: 'block', ...limitSubjects(entities) })
  if (limits.length === 0) return []
  const reserved = await readReserved(db, project_id, limits, entities)
  const counters = await readCounters(db, project_id, limits, entities, now)
  return counters
    .map((counter) => ({ ...counter, reserved: spendingOf(reserved, counter) }))
    .filter(({ limit, spent, reserved }) => spent + reserved > limit.amount)
}

/** The reservations without those of these lines, which are about to be checked again. */
function without(reserved: Spending, lines: readonly ReserveLine[]): Spending {
  const rest = new Map(reserved)
  for (const line of lines) {
    if (!line.isReserved) continue
    for (const spender of line.entity === null ? [WHOLE_PROJECT] : [WHOLE_PROJECT, line.entity])
      rest.set(spender, minus(rest.get(spender) ?? NO_SPEND, line.projected))
  }
  return rest
}

/** Changes the chunk's reservation by the difference between what these lines had reserved and what they reserve now. */
async function changeReservations(
  tx: Writer,
  { claim, lines }: ReserveRequest,
  reservations: ReadonlyMap<string | null, Spend>,
): Promise<void> {
  const before = new Map<string | null, Spend>()
  for (const line of lines) if (line.isReserved) addSpend(before, line.entity, line.projected)
  const rows = []
  for (const entity of new Set([...before.keys(), ...reservations.keys()])) {
    const from = before.get(entity) ?? NO_SPEND
    const to = reservations.get(entity) ?? NO_SPEND
    const change = { cost_nanos: to.cost_nanos - from.cost_nanos, tokens: to.tokens - from.tokens }
    if (isZero(change)) continue
    const { batch_id, idx, project_id } = claim
    rows.push({ batch_id, idx, project_id, entity: entity ?? '', ...change })
  }
  await addReservations(tx, rows)
}

/**
 * Decides which lines of a chunk may be sent under the limits that match them. A line may be sent if its projected
 * cost, the spend and all reservations together stay within the cap. A line is refused if its projected cost and the
 * spend alone exceed the cap. A line that only reservations keep out waits, since reservations are seldom used up.
 */
export interface Candidate {
  /** Its place in the chunk. */
  position: number
  entity: string | null
  projected: Spend
  /** It was sent already, so it gets a reservation in any case. */
  isSent: boolean
}

/** A counter with the reservations of its spender, in the limit's unit. */
export interface LimitUsage extends Counter {
  reserved: number
}

interface Allocation {
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
