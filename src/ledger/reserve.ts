// Before a line of a chunk is sent, its projected cost is reserved under every limit that matches, in one transaction
// that locks those limits. So the sum of spend and reservations never exceeds a cap, however many workers reserve
// concurrently.
//
// The limits are checked in the windows of one day, and the lines are charged to that day whenever they end.
// Reservations of other days count in every window, which can only make lines wait.

import { dayOf } from '../domain/days.ts'
import { accountsOf, type LimitMetric, type Payer, payerKey, REACHED } from '../domain/limit.ts'
import { counted, minus, NO_SPEND, negative, type Spend } from '../domain/money.ts'
import { hasLease } from '../store/chunks.ts'
import { addReservations } from '../store/ledger.ts'
import { lockMatchingLimits, matchingLimits } from '../store/limits.ts'
import type { ChunkRow } from '../store/schema.ts'
import type { Reader, Writer } from '../store/store.ts'
import { type LimitUsage, limitSubjects, readUsage, type Spending } from './counters.ts'
import { type Crossing, recordCrossings, spendByPayer } from './settle.ts'

export interface ReserveLine extends Candidate {
  /** Whether the chunk's reservation includes the line's projected spend already. */
  isReserved: boolean
}

interface ReserveRequest {
  claim: Pick<ChunkRow, 'batch_id' | 'idx' | 'epoch' | 'project_id' | 'key_id'>
  /** The lines in order of preference. */
  lines: readonly ReserveLine[]
}

export interface Reservation extends Pick<Allocation, 'allowed' | 'refused' | 'waiting'> {
  /** The accounts that limits cap, and the metric. */
  capped: readonly { account: string; metric: LimitMetric }[]
  /** Whether the allowed lines are reserved; false where no limit matches. */
  isReserved: boolean
  /** The UTC day whose windows were checked. */
  day: number
  /** Caps that were reached for the first time. */
  crossings: Crossing[]
}

/** Reserves the lines' projected costs; null when the lease was lost: then nothing is reserved. */
export async function reserve(tx: Writer, order: ReserveRequest, now: number): Promise<Reservation | null> {
  const { claim, lines } = order
  if (!(await hasLease(tx, claim))) return null
  const payers = [...payersOf(lines, claim.key_id).values()]
  const { project_id } = claim
  const limits = await lockMatchingLimits(tx, { project_id, action: 'block', ...limitSubjects(payers) })
  const isReserved = limits.length > 0
  const usages = await readUsage(tx, project_id, { limits, payers, at: now }, 'reservations', (all) =>
    withoutLines(all, lines, claim.key_id),
  )
  const { allowed, refused, waiting } = allocateLines(lines, usages, claim.key_id)
  await changeReservations(tx, order, isReserved ? allowed : [])
  const reached = [...new Set(refused.values())]
  const crossings: Crossing[] = []
  for (const usage of reached) crossings.push(...(await recordCrossings(tx, usage, [REACHED], now)))
  const capped = usages.map(({ account, limit }) => ({ account, metric: limit.metric }))
  return { allowed, refused, waiting, isReserved, capped, day: dayOf(now), crossings }
}

/** The caps on lines of these payers that spend and reservations together exceed. */
export async function overcommittedLimits(
  db: Reader,
  project_id: string,
  payers: readonly Payer[],
  now: number,
): Promise<LimitUsage[]> {
  const limits = await matchingLimits(db, { project_id, action: 'block', ...limitSubjects(payers) })
  const usages = await readUsage(db, project_id, { limits, payers, at: now }, 'reservations')
  return usages.filter(({ limit, spent, unspent }) => spent + unspent > limit.amount)
}

type Paid = Pick<Candidate, 'entity' | 'model'>

/** The distinct payers of lines of one batch. */
function payersOf(lines: readonly Paid[], key_id: string): Map<string, Payer> {
  return new Map(lines.map(({ entity, model }) => [payerKey({ entity, model }), { entity, model, key_id }]))
}

/** The reservations without those of these lines, which are about to be checked again. */
function withoutLines(reserved: Spending, lines: readonly ReserveLine[], key_id: string): Spending {
  const rest = new Map(reserved)
  for (const { isReserved, projected, entity, model } of lines)
    for (const account of isReserved ? accountsOf({ entity, model, key_id }) : [])
      rest.set(account, minus(rest.get(account) ?? NO_SPEND, projected))
  return rest
}

/** Changes the chunk's reservation by the difference between the lines' old and new reservations. */
async function changeReservations(
  tx: Writer,
  { claim, lines }: ReserveRequest,
  allowed: readonly number[],
): Promise<void> {
  const { batch_id, idx, project_id, key_id } = claim
  const reserved = new Set(allowed)
  const changed = lines.filter(({ position, isReserved }) => reserved.has(position) !== isReserved)
  const rows = spendByPayer(
    changed.map(({ entity, model, projected, isReserved }) => ({
      ...(isReserved ? negative(projected) : projected),
      entity,
      model,
    })),
  )
  await addReservations(
    tx,
    rows.map((row) => ({ batch_id, idx, project_id, key_id, ...row })),
  )
}

/**
 * A line that asks for a reservation. It may be sent if its projected cost, the spend and all reservations together
 * stay within each matching cap. It is blocked if its projected cost and the spend alone exceed a cap. A line that only
 * reservations keep out waits, since reservations are seldom used up.
 */
export interface Candidate {
  position: number
  entity: string | null
  model: string | null
  projected: Spend
  /** Whether the line was sent already, so that it gets a reservation in any case. */
  isSent: boolean
}

interface Allocation {
  /** Positions of lines that may be sent or were sent already. */
  allowed: number[]
  /** Positions of blocked lines, and the limit that blocks each. */
  refused: Map<number, LimitUsage>
  /** Positions of lines that may be allowed later. */
  waiting: number[]
}

/**
 * Allows lines of one batch in the given order, and adds their projected spend to `unspent` of the usages. `key_id` is
 * that of the batch.
 */
export function allocateLines(
  candidates: readonly Candidate[],
  usages: readonly LimitUsage[],
  key_id: string,
): Allocation {
  const allocation: Allocation = { allowed: [], refused: new Map(), waiting: [] }
  const usagesOf = byPayer(usages, key_id)
  const allow = (candidate: Candidate): void => {
    const { position, projected } = candidate
    for (const usage of usagesOf(candidate)) usage.unspent += counted(projected, usage.limit.metric)
    allocation.allowed.push(position)
  }
  for (const candidate of candidates) if (candidate.isSent) allow(candidate)
  for (const candidate of candidates) {
    if (candidate.isSent) continue
    const { position, projected } = candidate
    const exceeded = usagesOf(candidate).find((usage) => !isWithinCap(usage, projected, 0))
    if (exceeded) allocation.refused.set(position, exceeded)
    else if (usagesOf(candidate).every((usage) => isWithinCap(usage, projected, usage.unspent)))
      allow(candidate)
    else allocation.waiting.push(position)
  }
  return allocation
}

function isWithinCap({ limit, spent }: LimitUsage, projected: Spend, reserved: number): boolean {
  const units = counted(projected, limit.metric)
  return units === 0 || spent + reserved + units <= limit.amount
}

/** A function that returns the usages which count a line. */
function byPayer(usages: readonly LimitUsage[], key_id: string): (line: Paid) => readonly LimitUsage[] {
  const byAccount = Map.groupBy(usages, (usage) => usage.account)
  const known = new Map<string, readonly LimitUsage[]>()
  return ({ entity, model }) => {
    const key = payerKey({ entity, model })
    const found =
      known.get(key) ??
      accountsOf({ entity, model, key_id }).flatMap((account) => byAccount.get(account) ?? [])
    known.set(key, found)
    return found
  }
}
