// Settling enters finished lines in the ledger, charges them to their day (tally.ts), releases their reservations and
// reduces the projected spend of their batches. All of it runs in the fenced commit that records the lines, so a line
// is charged exactly once, when its result counts.

import { startOfDay } from '../domain/days.ts'
import { entityType } from '../domain/entity.ts'
import { newId } from '../domain/ids.ts'
import { recordOf } from '../domain/json-record.ts'
import { payerKey, thresholdsMet } from '../domain/limit.ts'
import { DAY_SUMS } from '../domain/line-sums.ts'
import { isZero, NO_SPEND, plus, type Spend, sumOf } from '../domain/money.ts'
import { deleteReservations, reduceProjectedSpend, reduceReservation } from '../store/ledger.ts'
import { crossedBefore, insertCrossing, matchingLimits } from '../store/limits.ts'
import { insertRows } from '../store/rows.ts'
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
  await addUsage(tx, usageRows(settlements))
  const limited = await addProjectDays(tx, projectRows(settlements))
  await insertRows(
    tx,
    'ledger_entries',
    settlements.flatMap((settlement) => entries(settlement, now)),
  )
  for (const settlement of settlements) await releaseReservations(tx, settlement)
  return await crossings(tx, settlements, limited, now)
}

/** The sums of tallies with the same key, in the order of the keys. */
function summed<Key extends object, Sums extends Readonly<Record<string, number>>>(
  settlements: readonly Settlement[],
  keyOf: (tally: Tally, settlement: Settlement) => Key,
  sumsOf: (tally: Tally) => Sums,
): (Key & Sums)[] {
  const rows = new Map<string, { key: Key; sums: Sums }>()
  for (const settlement of settlements)
    for (const tally of settlement.tallies) {
      const key = keyOf(tally, settlement)
      const text = JSON.stringify(Object.values(key))
      const old = rows.get(text)?.sums
      const added = sumsOf(tally)
      const sums = old ? plusEach(old, added) : added
      rows.set(text, { key, sums })
    }
  return inOrder(rows).map(({ key, sums }) => ({ ...key, ...sums }))
}

function plusEach<Sums extends Readonly<Record<string, number>>>(a: Sums, b: Sums): Sums {
  return Object.fromEntries(Object.entries(a).map(([name, sum]) => [name, sumOf(sum, b[name] ?? 0)])) as Sums
}

function usageRows(settlements: readonly Settlement[]): UsageDayRow[] {
  return summed(
    settlements,
    ({ entity, day, model }, { project_id, key_id }) => ({
      ...{ project_id, entity: entity ?? '', day, model: model ?? '', key_id },
      entity_type: entityType(entity ?? '') ?? '',
    }),
    (tally) => recordOf(DAY_SUMS, (name) => tally[name]),
  )
}

/** The rows of projects' spend by day; sums are negative where charges are reversed. */
function projectRows(settlements: readonly Settlement[]): ProjectDayRow[] {
  return summed(
    settlements,
    ({ day, model }, { project_id, key_id }) => ({ project_id, day, key_id, model: model ?? '' }),
    spentBy,
  ).filter((row) => !isZero(row))
}

function spentBy({ cost_nanos, total_tokens: tokens, requests }: Tally) {
  return { cost_nanos, tokens, requests }
}

/** The rows by key, an order in which two workers that change the same rows do not deadlock. */
function inOrder<Row>(rows: ReadonlyMap<string, Row>): Row[] {
  return [...rows].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, row]) => row)
}

function entries(settlement: Settlement, now: number) {
  const { project_id, batch_id, idx } = settlement
  return summed(
    [settlement],
    ({ day, entity }) => ({ entity: entity ?? '', day }),
    ({ succeeded, failed, total_tokens, cost_nanos }) => ({
      ...{ lines: succeeded + failed, tokens: total_tokens, cost_nanos },
    }),
  ).map((sums) => ({
    ...{ id: newId('ledger', now), project_id, batch_id, idx, kind: 'settle' as const, created: now },
    ...sums,
  }))
}

function spendByPayer<Part extends Pick<Tally, 'entity' | 'model'>>(
  parts: readonly Part[],
  entitiesOf: (entity: string | null) => readonly string[],
  spendOf: (part: Part) => Spend,
) {
  const rows = new Map<string, { entity: string; model: string } & Spend>()
  for (const part of parts)
    for (const entity of entitiesOf(part.entity)) {
      const model = part.model ?? ''
      const key = payerKey({ entity, model })
      rows.set(key, { entity, model, ...plus(rows.get(key) ?? NO_SPEND, spendOf(part)) })
    }
  return inOrder(rows).filter((row) => !isZero(row))
}

/** The sums of spend by model, and by named entity and model, in the form of a batch's projected spend. */
export function projectedByPayer<Part extends Pick<Tally, 'entity' | 'model'>>(
  parts: readonly Part[],
  spendOf: (part: Part) => Spend,
) {
  return spendByPayer(parts, (entity) => (entity === null ? [''] : ['', entity]), spendOf)
}

/** Subtracts finished lines from their batch's projected spend; its row is locked, so that no commits deadlock. */
export async function releaseProjectedSpend(
  tx: Writer,
  batch_id: string,
  tallies: readonly Tally[],
): Promise<void> {
  const rows = projectedByPayer(tallies, ({ projected }) => projected)
  await reduceProjectedSpend(tx, batch_id, rows)
}

async function releaseReservations(tx: Writer, settlement: Settlement): Promise<void> {
  if (!settlement.hasReservations) return
  if (settlement.last) return await deleteReservations(tx, settlement)
  const released = spendByPayer(
    settlement.tallies,
    (entity) => [entity ?? ''],
    ({ reserved }) => reserved,
  )
  for (const { entity, model, ...spend } of released)
    await reduceReservation(tx, { ...settlement, entity, model }, spend)
}

/** The crossed thresholds; `limited`: the projects that have limits. */
async function crossings(
  tx: Writer,
  settlements: readonly Settlement[],
  limited: ReadonlySet<string>,
  now: number,
): Promise<Crossing[]> {
  const spent = settlements.flatMap(({ project_id, key_id, tallies }) =>
    tallies
      .filter((tally) => !isZero(spentBy(tally)))
      .map(({ day, entity, model }) => ({ project_id, day, payer: { entity, model, key_id } })),
  )
  const crossed: Crossing[] = []
  for (const [project_id, own] of Map.groupBy(spent, (one) => one.project_id)) {
    if (!limited.has(project_id)) continue
    for (const [day, ofDay] of Map.groupBy(own, (one) => one.day)) {
      const payers = ofDay.map(({ payer }) => payer)
      const limits = await matchingLimits(tx, { project_id, ...limitSubjects(payers) })
      if (limits.length === 0) continue
      const counters = await readCounters(tx, project_id, countedBy(limits, payers), startOfDay(day))
      crossed.push(...(await recordThresholds(tx, counters, now)))
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

/** Records the thresholds that the counters have reached, and returns the new ones. */
async function recordThresholds(tx: Writer, counters: readonly Counter[], now: number): Promise<Crossing[]> {
  const crossed: Crossing[] = []
  for (const counter of counters) {
    const { amount, notify_at } = counter.limit
    const met = thresholdsMet({ amount, notify_at: JSON.parse(notify_at) }, counter.spent)
    if (met.length > 0) crossed.push(...(await recordCrossings(tx, counter, met, now)))
  }
  return crossed
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
    if (await insertCrossing(tx, { ...key, threshold, created: now }))
      crossings.push({ ...counter, threshold })
  }
  return crossings
}
