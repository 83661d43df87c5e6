// Counters: for each limit and each spender that it counts, the spend in its window.
import { entityType } from '../domain/entity.ts'
import { LIMIT_WINDOWS, type Period, spenderOf, WHOLE_PROJECT, windowAt } from '../domain/limit.ts'
import { counted, NO_SPEND, type Spend } from '../domain/money.ts'
import type { LimitRow } from '../store/schema.ts'
import type { Reader } from '../store/store.ts'
import { spentByEntities, spentByProject } from '../store/usage.ts'

export interface Counter {
  limit: LimitRow
  /** An entity, or the whole project. */
  spender: string
  window: Period
  /** In the limit's unit: nano-dollars or tokens. */
  spent: number
}

/** By spender. */
export type Spending = ReadonlyMap<string, Spend>

export function spendingOf(
  spending: Spending,
  { limit, spender }: Pick<Counter, 'limit' | 'spender'>,
): number {
  return counted(spending.get(spender) ?? NO_SPEND, limit.metric)
}

/** One counter for each limit and spender, in the windows that contain `at` (Unix ms). */
export async function readCounters(
  db: Reader,
  project_id: string,
  limits: readonly LimitRow[],
  entities: Iterable<string>,
  at: number,
): Promise<Counter[]> {
  const counters: Counter[] = []
  const list = [...entities]
  for (const window of LIMIT_WINDOWS) {
    const period = windowAt(window, at)
    const found = limits
      .filter((limit) => limit.window === window)
      .flatMap((limit) => spendersOf(limit, list).map((spender) => ({ limit, spender })))
    if (found.length === 0) continue
    const spending = await readSpending(
      found.map(({ spender }) => spender),
      (names) => spentByEntities(db, project_id, names, period),
      () => spentByProject(db, project_id, period),
    )
    for (const one of found) counters.push({ ...one, window: period, spent: spendingOf(spending, one) })
  }
  return counters
}

/** Reads the entities and the whole project only if they are among `spenders`. */
export async function readSpending(
  spenders: Iterable<string>,
  ofEntities: (names: string[]) => Promise<Map<string, Spend>>,
  ofProject: () => Promise<Spend>,
): Promise<Spending> {
  const distinct = new Set(spenders)
  const wantsProject = distinct.delete(WHOLE_PROJECT)
  const spending = distinct.size > 0 ? await ofEntities([...distinct]) : new Map<string, Spend>()
  if (wantsProject) spending.set(WHOLE_PROJECT, await ofProject())
  return spending
}

/** The spenders among these entities that the limit counts. */
function spendersOf(limit: LimitRow, entities: readonly string[]): string[] {
  if (limit.scope === 'project') return [WHOLE_PROJECT]
  return entities.filter((entity) => spenderOf(limit, entity) !== null)
}

/** Entities and their types, by which limits are looked up. */
export function limitSubjects(entities: Iterable<string>): { entities: string[]; entity_types: string[] } {
  const list = [...entities]
  const types = list.map((entity) => entityType(entity)).filter((type) => type !== null)
  return { entities: list, entity_types: [...new Set(types)] }
}
