// Reserving: before any line of a chunk is sent, its worst case is set aside under every limit that matches,
// in one transaction that locks those limits. So the sum of what is spent and what is held never passes a
// cap, however many workers reserve at once.
import { type Limit, type LimitMetric, REACHED, WHOLE_PROJECT } from '../domain/limit.ts'
import { addSpend, isNothing, minus, NO_SPEND, type Spend } from '../domain/spend.ts'
import { hasLease } from '../store/chunks.ts'
import { lockMatchingLimits, matchingLimits } from '../store/limits.ts'
import { addReservations, reservedByEntities, reservedByProject } from '../store/reservations.ts'
import type { ChunkRow } from '../store/schema.ts'
import type { Reader, Writer } from '../store/store.ts'
import { readCounters, readSpending, type Spending, spendingOf } from './counters.ts'
import { type Crossing, cross } from './cross.ts'
import { type Candidate, type Fit, fitLines, type Meter } from './fit.ts'
import { named } from './named.ts'

export interface ReserveLine extends Candidate {
  /** Its need is part of the chunk's hold already. */
  held: boolean
}

export interface ReserveOrder {
  claim: Pick<ChunkRow, 'batch_id' | 'idx' | 'epoch' | 'project_id'>
  /** In the order in which they are to be preferred. */
  lines: readonly ReserveLine[]
}

export interface Reservation extends Pick<Fit, 'allowed' | 'refused' | 'waiting'> {
  /** The spenders that limits cap, and what they count. */
  capped: readonly { spender: string; metric: LimitMetric }[]
  /** Whether what is allowed is held: not where no limit matches. */
  held: boolean
  /** Caps that this reservation found reached, and that nobody was told of. */
  crossings: Crossing[]
}

/** Null when the lease was lost: then nothing is held. */
export async function reserve(tx: Writer, order: ReserveOrder, now: number): Promise<Reservation | null> {
  const { claim, lines } = order
  if (!(await hasLease(tx, claim))) return null
  const entities = new Set(lines.map((line) => line.entity).filter((entity) => entity !== null))
  const { project_id } = claim
  const limits = await lockMatchingLimits(tx, { project_id, action: 'block', ...named(entities) })
  const held = limits.length > 0
  const meters = held ? await readMeters(tx, order, limits, entities, now) : []
  const { allowed, refused, waiting, holds } = fitLines(lines, meters)
  await changeReservations(tx, order, held ? holds : new Map())
  const reached = [...new Set(refused.values())]
  const crossings: Crossing[] = []
  for (const meter of reached) crossings.push(...(await cross(tx, meter, [REACHED], now)))
  const capped = meters.map(({ spender, limit }) => ({ spender, metric: limit.metric }))
  return { allowed, refused, waiting, held, capped, crossings }
}

/**
 * What is held is read before what is spent: a commit in between, which turns one into the other, is then
 * counted twice and never missed.
 */
async function readMeters(
  tx: Writer,
  { claim, lines }: ReserveOrder,
  limits: readonly Limit[],
  entities: ReadonlySet<string>,
  now: number,
): Promise<Meter[]> {
  const others = without(await readHeld(tx, claim.project_id, limits, entities), lines)
  const counters = await readCounters(tx, claim.project_id, limits, entities, now)
  return counters.map((counter) => ({ ...counter, held: spendingOf(others, counter) }))
}

async function readHeld(
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

/** Caps on these entities and the project that are passed by what is spent and held together. */
export async function overcommitted(
  db: Reader,
  project_id: string,
  entities: ReadonlySet<string>,
  now: number,
): Promise<Meter[]> {
  const limits = await matchingLimits(db, { project_id, action: 'block', ...named(entities) })
  if (limits.length === 0) return []
  const held = await readHeld(db, project_id, limits, entities)
  const counters = await readCounters(db, project_id, limits, entities, now)
  return counters
    .map((counter) => ({ ...counter, held: spendingOf(held, counter) }))
    .filter(({ limit, spent, held }) => spent + held > limit.amount)
}

/** What is held apart from these lines, which are about to be judged again. */
function without(held: Spending, lines: readonly ReserveLine[]): Spending {
  const rest = new Map(held)
  for (const line of lines) {
    if (!line.held) continue
    for (const spender of line.entity === null ? [WHOLE_PROJECT] : [WHOLE_PROJECT, line.entity])
      rest.set(spender, minus(rest.get(spender) ?? NO_SPEND, line.need))
  }
  return rest
}

/** Brings the chunk's hold from what these lines held to what they hold now. */
async function changeReservations(
  tx: Writer,
  { claim, lines }: ReserveOrder,
  holds: ReadonlyMap<string | null, Spend>,
): Promise<void> {
  const before = new Map<string | null, Spend>()
  for (const line of lines) if (line.held) addSpend(before, line.entity, line.need)
  const rows = []
  for (const entity of new Set([...before.keys(), ...holds.keys()])) {
    const from = before.get(entity) ?? NO_SPEND
    const to = holds.get(entity) ?? NO_SPEND
    const change = { cost_nanos: to.cost_nanos - from.cost_nanos, tokens: to.tokens - from.tokens }
    if (isNothing(change)) continue
    const { batch_id, idx, project_id } = claim
    rows.push({ batch_id, idx, project_id, entity: entity ?? '', ...change })
  }
  await addReservations(tx, rows)
}
