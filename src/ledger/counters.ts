// Counters: for each limit and each spender that it counts, the spend in its window.
import { entityType } from '../domain/entity.ts'
import {
  accountOfLimit,
  accountsOf,
  LIMIT_WINDOWS,
  type Payer,
  type Period,
  spenderOf,
  WHOLE_PROJECT,
  windowAt,
} from '../domain/limit.ts'
import { addSpend, counted, NO_SPEND, type Spend } from '../domain/money.ts'
import { amountsByEntity, amountsByKey } from '../store/ledger.ts'
import { type LimitQuery, matchingLimits } from '../store/limits.ts'
import type { LimitRow } from '../store/schema.ts'
import type { Reader } from '../store/store.ts'

/** The account that a limit counts for a spender. */
interface Counted {
  limit: LimitRow
  /** An entity; WHOLE_PROJECT for a limit without an entity. */
  spender: string
  account: string
}

export interface Counter extends Counted {
  window: Period
  /** The spend in the limit's unit: nano-dollars, tokens or lines. */
  spent: number
}

export type Spending = ReadonlyMap<string, Spend>

function spendingOf(spending: Spending, { limit, account }: Counted): number {
  return counted(spending.get(account) ?? NO_SPEND, limit.metric)
}

/** An entry for each limit and each spender of it among the payers. */
export function countedBy(limits: readonly LimitRow[], payers: Iterable<Payer>): Counted[] {
  const list = [...payers]
  return limits.flatMap((limit) => {
    const spenders = new Set(list.map((payer) => spenderOf(limit, payer)).filter((one) => one !== null))
    return [...spenders].map((spender) => ({ limit, spender, account: accountOfLimit(limit, spender) }))
  })
}

/** The counters in the windows that contain `at` (Unix ms). */
export async function readCounters(
  db: Reader,
  project_id: string,
  all: readonly Counted[],
  at: number,
): Promise<Counter[]> {
  const counters: Counter[] = []
  for (const window of LIMIT_WINDOWS) {
    const period = windowAt(window, at)
    const found = all.filter(({ limit }) => limit.window === window)
    if (found.length === 0) continue
    const spending = await readSpending(db, project_id, found, ['usage_days', 'project_days'], period)
    for (const one of found) counters.push({ ...one, window: period, spent: spendingOf(spending, one) })
  }
  return counters
}

/** A counter with the amount that is not spent yet, reserved for lines or projected for open batches. */
export interface LimitUsage extends Counter {
  unspent: number
}

/**
 * The usage of limits by payers. What is not spent yet, which `change` may adapt, is read before the spend: an amount that
 * is settled in between counts twice, never zero times.
 */
export async function readUsage(
  db: Reader,
  project_id: string,
  { limits, payers, at }: { limits: readonly LimitRow[]; payers: Iterable<Payer>; at: number },
  table: 'reservations' | 'batch_projected_spend',
  change = (unspent: Spending): Spending => unspent,
): Promise<LimitUsage[]> {
  const found = countedBy(limits, payers)
  const unspent = change(await readSpending(db, project_id, found, [table, table]))
  const counters = await readCounters(db, project_id, found, at)
  return counters.map((counter) => ({ ...counter, unspent: spendingOf(unspent, counter) }))
}

/** Reads the amounts of entities and of keys from a table each, only if a limit counts them. */
async function readSpending(
  db: Reader,
  project_id: string,
  all: readonly Counted[],
  [ofEntities, ofKeys]: [Parameters<typeof amountsByEntity>[1], Parameters<typeof amountsByKey>[1]],
  window?: Period,
): Promise<Spending> {
  const spenders = new Set(all.map(({ spender }) => spender))
  const isWhole = spenders.delete(WHOLE_PROJECT)
  const spending = new Map<string, Spend>()
  for (const { entity, model, ...spend } of await amountsByEntity(
    db,
    ofEntities,
    project_id,
    [...spenders],
    window,
  ))
    for (const account of accountsOf({ entity, key_id: null, model })) addSpend(spending, account, spend)
  for (const { key_id, model, ...spend } of isWhole ? await amountsByKey(db, ofKeys, project_id, window) : [])
    for (const account of accountsOf({ entity: null, key_id, model })) addSpend(spending, account, spend)
  return spending
}

/** Whether a limit of the project blocks lines of these payers once it is reached. */
export async function hasBlockingLimit(
  db: Reader,
  project_id: string,
  payers: Iterable<Payer>,
): Promise<boolean> {
  return (await matchingLimits(db, { project_id, action: 'block', ...limitSubjects(payers) })).length > 0
}

/** The subjects by which limits on these lines are found. */
export function limitSubjects(payers: Iterable<Payer>): Omit<LimitQuery, 'project_id' | 'action'> {
  const list = [...payers]
  const named = <T>(names: readonly (T | null)[]): T[] => [...new Set(names)].filter((name) => name !== null)
  const entities = named(list.map(({ entity }) => entity))
  return {
    entities,
    entity_types: named(entities.map(entityType)),
    key_ids: named(list.map(({ key_id }) => key_id)),
    models: named(list.map(({ model }) => model)),
  }
}
