// Records when spend reaches a threshold of a limit: once per threshold, window and spender, in the transaction that
// changed the spend.
import { type Limit, type Period, thresholdsMet } from '../domain/limit.ts'
import { crossedBefore, insertCrossing } from '../store/limits.ts'
import type { Writer } from '../store/store.ts'
import type { Counter } from './counters.ts'

/** A threshold that was reached for the first time. */
export interface Crossing {
  limit: Limit
  /** Empty for the whole project. */
  spender: string
  window: Period
  /** A fraction of the cap; 1 when the cap is reached. */
  threshold: number
  spent: number
}

/** Records the thresholds that the counters have reached, and returns the new ones. */
export async function recordThresholds(
  tx: Writer,
  counters: readonly Counter[],
  now: number,
): Promise<Crossing[]> {
  const crossed: Crossing[] = []
  for (const counter of counters) {
    const met = thresholdsMet(counter.limit, counter.spent)
    if (met.length > 0) crossed.push(...(await recordCrossings(tx, counter, met, now)))
  }
  return crossed
}

/** Records that these thresholds were reached, whatever the counter is, and returns the new ones. */
export async function recordCrossings(
  tx: Writer,
  { limit, spender, window, spent }: Counter,
  thresholds: readonly number[],
  now: number,
): Promise<Crossing[]> {
  const key = { limit_id: limit.id, entity: spender, window_start: window.start }
  const known = await crossedBefore(tx, key)
  const crossings: Crossing[] = []
  for (const threshold of thresholds) {
    if (known.includes(threshold)) continue
    if (await insertCrossing(tx, { ...key, threshold, created: now }))
      crossings.push({ limit, spender, window, threshold, spent })
  }
  return crossings
}
