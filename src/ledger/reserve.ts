// Before a line of a chunk is sent, its projected cost is reserved under every limit that matches, in one transaction
// that locks those limits. So the sum of spend and reservations never exceeds a cap, however many workers reserve
// concurrently.
//
// The limits are checked in the windows of one day, and the lines are charged to that day whenever they end. Reservations
// of other days count in every window, which can only make lines wait.
import { type Limit, type LimitMetric, REACHED, WHOLE_PROJECT } from '../domain/limit.ts'
import { addSpend, isZero, minus, NO_SPEND, type Spend } from '../domain/spend.ts'
import { dayOf } from '../domain/utc-day.ts'
import { hasLease } from '../store/chunks.ts'
import { addReservations, reservedByEntities, reservedByProject } from '../store/ledger.ts'
import { lockMatchingLimits, matchingLimits } from '../store/limits.ts'
import type { ChunkRow } from '../store/schema.ts'
import type { Reader, Writer } from '../store/store.ts'
import { type Allocation, allocateLines, type Candidate, type LimitUsage } from './allocate-lines.ts'
import { limitSubjects, readCounters, readSpending, type Spending, spendingOf } from './counters.ts'
import { type Crossing, recordCrossings } from './crossings.ts'

export interface ReserveLine extends Candidate {
  /** Its projected spend is part of the chunk's reservation already. */
  isReserved: boolean
}

export interface ReserveRequest {
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
  limits: readonly Limit[],
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
  limits: readonly Limit[],
  entities: ReadonlySet<string>,
): Promise<Spending> {
  const hasProjectLimit = limits.some((limit) => limit.scope === 'project')
  return await readSpending(
    hasProjectLimit ? [...entities, WHOLE_PROJECT] : entities,
    (names) => reservedByEntities(db, project_id, names),
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
