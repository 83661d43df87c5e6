// Admission: a batch is let in when, under every limit that matches any of its lines, what is spent, what
// open batches may still cost and what this one may cost at most stay within the cap together. It runs in the
// transaction that creates the batch, with those limits locked, so of two batches that fit alone but not
// together the second is refused.
import type { Language } from '../domain/language.ts'
import { type Limit, WHOLE_PROJECT } from '../domain/limit.ts'
import { counted, NO_SPEND, type Spend } from '../domain/spend.ts'
import { lockMatchingLimits, matchingLimits, readLimitVersion } from '../store/limits.ts'
import { insertProjectedSpend, projectedByEntities, projectedByProject } from '../store/projected-spend.ts'
import type { Reader, Writer } from '../store/store.ts'
import { type Counter, limitSubjects, readCounters, readSpending, spendingOf } from './counters.ts'
import { batchLimitError } from './limit-error.ts'
import type { BatchProjection } from './project-batch.ts'

/** How a batch stands before a limit; amounts in the limit's unit. */
export interface LimitProjection extends Counter {
  /** What the project's open batches may still cost. */
  projectedOpen: number
  /** What this batch may cost. */
  projected: number
  /** Whether all of it together passes the cap. */
  exceeds: boolean
}

/** Throws usage_limit_exceeded for a batch that may pass the cap of a limit that blocks. */
export async function admit(
  tx: Writer,
  project_id: string,
  projection: BatchProjection,
  language: Language,
  now: number,
): Promise<void> {
  if ((await readLimitVersion(tx, project_id)) === 0) return
  const wanted = { project_id, action: 'block' as const, ...namesOf(projection) }
  const judge = async (limits: readonly Limit[]): Promise<void> => {
    const met = (await limitProjections(tx, project_id, limits, projection, now)).filter(
      ({ exceeds }) => exceeds,
    )
    // Of several, the one that stands in the way longest.
    const worst = met.sort((a, b) => b.window.end - a.window.end)[0]
    if (worst) throw batchLimitError(worst, worst, language, now)
  }
  const limits = await matchingLimits(tx, wanted)
  if (limits.length === 0) return
  // What does not fit even now need not wait for its turn to be told so.
  await judge(limits)
  await judge(await lockMatchingLimits(tx, wanted))
}

/** How the batch would stand before each limit that matches, those that only notify included. */
export async function projectLimits(
  db: Reader,
  project_id: string,
  projection: BatchProjection,
  now: number,
): Promise<LimitProjection[]> {
  const limits = await matchingLimits(db, { project_id, ...namesOf(projection) })
  return await limitProjections(db, project_id, limits, projection, now)
}

/** To be called once the batch exists: from now on it counts as open. */
export async function recordProjectedSpend(
  tx: Writer,
  { id, project_id }: { id: string; project_id: string },
  { total, byEntity }: BatchProjection,
): Promise<void> {
  const rows = [...byEntity].map(([entity, spend]) => ({ batch_id: id, project_id, entity, ...spend }))
  await insertProjectedSpend(tx, id, total, rows)
}

/** What is open is read before what is spent, so that what turns from one into the other is never missed. */
async function limitProjections(
  db: Reader,
  project_id: string,
  limits: readonly Limit[],
  projection: BatchProjection,
  now: number,
): Promise<LimitProjection[]> {
  if (limits.length === 0) return []
  const entities = [...projection.byEntity.keys()]
  const open = await readSpending(
    limits.some((limit) => limit.scope === 'project') ? [...entities, WHOLE_PROJECT] : entities,
    (names) => projectedByEntities(db, project_id, names),
    () => projectedByProject(db, project_id),
  )
  const counters = await readCounters(db, project_id, limits, entities, now)
  return counters.map((counter) => {
    const { limit, spender, spent } = counter
    const projected = counted(projectedOf(projection, spender), limit.metric)
    const projectedOpen = spendingOf(open, counter)
    return {
      ...counter,
      projectedOpen,
      projected,
      exceeds: projected > 0 && spent + projectedOpen + projected > limit.amount,
    }
  })
}

function projectedOf({ total, byEntity }: BatchProjection, spender: string): Spend {
  return spender === WHOLE_PROJECT ? total : (byEntity.get(spender) ?? NO_SPEND)
}

function namesOf({ byEntity }: BatchProjection): { entities: string[]; entity_types: string[] } {
  return limitSubjects(byEntity.keys())
}
