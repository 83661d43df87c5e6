// Settling enters finished lines in the ledger, charges them to their day (tally.ts), releases their reservations and
// reduces the projected spend of their batches. All of it runs in the fenced commit that records the lines, so a line
// is charged exactly once, when its result counts.

import { startOfDay } from '../domain/days.ts'
import { entityType } from '../domain/entity.ts'
import { newId } from '../domain/ids.ts'
import { recordOf } from '../domain/json-record.ts'
import { thresholdsMet } from '../domain/limit.ts'
import { DAY_SUMS } from '../domain/line-sums.ts'
import { AMOUNTS, isZero, type Spend, sumOf } from '../domain/money.ts'
import { deleteReservations, reduceProjectedSpend, reduceReservation } from '../store/ledger.ts'
import { crossedBefore, matchingLimits } from '../store/limits.ts'
import { insertOnce, insertRows } from '../store/rows.ts'
import type { ChunkRow, ProjectDayRow, UsageDayRow } from '../store/schema.ts'
import type { Writer } from '../store/store.ts'
import { addProjectDays, addUsage } from '../store/usage.ts'
import { type Counter, countedBy, limitSubjects, readCounters } from './counters.ts'
import type { Tally } from './tally.ts'

/** The lines of one chunk that one commit records. */
export interface Settlement extends Pick<ChunkRow, 'project_id' | 'key_id' | 'batch_id' | 'idx'> {
  tallies: readonly Tally[]
  /** Whether these are the chunk's last lines, so that its reservations are deleted. */
  last: boolean
  /** Whether the chunk may have reservations, which it lacks if no limit matches. */
  hasReservations: boolean
}

/** Settles lines and returns the thresholds of limits that they crossed. */
export async function settle(
  tx: Writer,
  settlements: readonly Settlement[],
  now: number,
): Promise<Crossing[]> {
  const parts = settlements.flatMap(({ tallies, project_id, key_id, batch_id, idx }) =>
    tallies.map((tally) => ({ ...tally, project_id, key_id, batch_id, idx })),
  )
  await addUsage(tx, usageRows(parts))
  const limited = await addProjectDays(tx, projectRows(parts))
  await insertRows(tx, 'ledger_entries', entries(parts, now))
  for (const settlement of settlements) await releaseReservations(tx, settlement)
  return await crossings(tx, parts, limited, now)
}

/** A tally of a chunk. */
type SettledPart = Tally & Omit<Settlement, 'tallies' | 'last' | 'hasReservations'>

/** The sums of parts with the same key, by key: an order in which two workers that change the same rows do not deadlock. */
function summed<Part, Key extends object, Sums extends Record<string, number>>(
  parts: readonly Part[],
  keyOf: (part: Part) => Key,
  sumsOf: (part: Part) => Sums,
): (Key & Sums)[] {
  const rows = new Map<string, { key: Key; sums: Sums }>()
  for (const part of parts) {
    const key = keyOf(part)
    const text = JSON.stringify(Object.values(key))
    const row = rows.get(text)
    if (row) addEach(row.sums, sumsOf(part))
    else rows.set(text, { key, sums: sumsOf(part) })
  }
  return [...rows].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, { key, sums }]) => ({ ...key, ...sums }))
}

function addEach(sums: Record<string, number>, by: Readonly<Record<string, number>>): void {
  for (const [name, sum] of Object.entries(sums)) sums[name] = sumOf(sum, by[name] ?? 0)
}

function usageRows(parts: readonly SettledPart[]): UsageDayRow[] {
  return summed(
    parts,
    ({ project_id, entity, day, model, key_id }) => ({
      ...{ project_id, entity: entity ?? '', day, model: model ?? '', key_id },
      entity_type: entityType(entity ?? '') ?? '',
    }),
    (part) => recordOf(DAY_SUMS, (name) => part[name]),
  )
}

/** The rows of projects' spend by day; sums are negative where charges are reversed. */
function projectRows(parts: readonly SettledPart[]): ProjectDayRow[] {
  return summed(
    parts,
    ({ project_id, day, key_id, model }) => ({ project_id, day, key_id, model: model ?? '' }),
    spentBy,
  ).filter((row) => !isZero(row))
}

function spentBy({ cost_nanos, total_tokens: tokens, requests }: Tally) {
  return { cost_nanos, tokens, requests }
}

function entries(parts: readonly SettledPart[], now: number) {
  return summed(
    parts,
    ({ project_id, batch_id, idx, entity, day }) => ({
      project_id,
      batch_id,
      idx,
      entity: entity ?? '',
      day,
    }),
    ({ succeeded, failed, total_tokens, cost_nanos }) => ({
      ...{ lines: succeeded + failed, tokens: total_tokens, cost_nanos },
    }),
  ).map((sums) => ({ id: newId('ledger', now), kind: 'settle' as const, created: now, ...sums }))
}

type PaidSpend = Pick<Tally, 'entity' | 'model'> & Spend

/** The sums of spend by entity and model. */
export function spendByPayer(parts: readonly PaidSpend[]) {
  return summed(
    parts,
    ({ entity, model }) => ({ entity: entity ?? '', model: model ?? '' }),
    (part) => recordOf(AMOUNTS, (name) => part[name]),
  ).filter((row) => !isZero(row))
}

/** The sums of spend by model, and by named entity and model, in the form of a batch's projected spend. */
export function projectedByPayer(parts: readonly PaidSpend[]) {
  const named = parts.filter(({ entity }) => entity !== null)
  return spendByPayer([...parts.map((part) => ({ ...part, entity: null })), ...named])
}

/** Subtracts finished lines from their batch's projected spend; its row is locked, so that no commits deadlock. */
export async function releaseProjectedSpend(
  tx: Writer,
  batch_id: string,
  tallies: readonly Tally[],
): Promise<void> {
  const rows = projectedByPayer(
    tallies.map(({ entity, model, projected }) => ({ entity, model, ...projected })),
  )
  await reduceProjectedSpend(tx, batch_id, rows)
}

async function releaseReservations(tx: Writer, settlement: Settlement): Promise<void> {
  if (!settlement.hasReservations) return
  if (settlement.last) return await deleteReservations(tx, settlement)
  const released = spendByPayer(
    settlement.tallies.map(({ entity, model, reserved }) => ({ entity, model, ...reserved })),
  )
  for (const { entity, model, ...spend } of released)
    await reduceReservation(tx, { ...settlement, entity, model }, spend)
}

/** The crossed thresholds; `limited`: the projects that have limits. */
async function crossings(
  tx: Writer,
  parts: readonly SettledPart[],
  limited: ReadonlySet<string>,
  now: number,
): Promise<Crossing[]> {
  const spent = parts.filter((part) => limited.has(part.project_id) && !isZero(spentBy(part)))
  const crossed: Crossing[] = []
  for (const payers of Map.groupBy(spent, ({ project_id, day }) => `${project_id} ${day}`).values()) {
    const { project_id, day } = payers[0]!
    const limits = await matchingLimits(tx, { project_id, ...limitSubjects(payers) })
    const counters = await readCounters(tx, project_id, countedBy(limits, payers), startOfDay(day))
    for (const counter of counters) {
      const { amount, notify_at } = counter.limit
      const met = thresholdsMet({ amount, notify_at: JSON.parse(notify_at) }, counter.spent)
      if (met.length > 0) crossed.push(...(await recordCrossings(tx, counter, met, now)))
    }
  }
  return crossed
}

// Records when spend reaches a threshold of a limit: once per threshold, window and spender, in the transaction that
// changed the spend.

/** A threshold that was reached for the first time. */
export interface Crossing extends Counter {
  /** The threshold as a fraction of the cap; 1 when the cap is reached. */
  threshold: number
}

/** Records that these thresholds were reached, whatever the counters, and returns the new ones. */
export async function recordCrossings(
  tx: Writer,
  counter: Counter,
  thresholds: readonly number[],
  now: number,
): Promise<Crossing[]> {
  const { limit, spender, window } = counter
  const key = { limit_id: limit.id, entity: spender, window_start: window.start }
  const known = await crossedBefore(tx, key)
  const crossings: Crossing[] = []
  for (const threshold of thresholds) {
    if (known.includes(threshold)) continue
    if (await insertOnce(tx, 'limit_crossings', { ...key, threshold, created: now }))
      crossings.push({ ...counter, threshold })
  }
  return crossings
}
