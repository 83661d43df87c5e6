// What was settled, day by day: the counters that limits read and usage reports sum up.

import type { Period } from '../domain/limit.ts'
import type { Spend } from '../domain/spend.ts'
import { dayOf } from '../domain/utc-day.ts'
import { exactPlusExcluded, exactSum } from './exact-sum.ts'
import type { ProjectDayRow, UsageDayRow } from './schema.ts'
import type { Reader, Writer } from './store.ts'

/** Rows per INSERT, names per SELECT: bound parameters are limited. */
const ROWS_MAX = 500

/** Adds to the counters; `rows` hold each key once. */
export async function addUsage(tx: Writer, rows: readonly UsageDayRow[]): Promise<void> {
  for (let at = 0; at < rows.length; at += ROWS_MAX)
    await tx
      .insertInto('usage_days')
      .values(rows.slice(at, at + ROWS_MAX))
      .onConflict((oc) =>
        oc.columns(['project_id', 'entity', 'day', 'model']).doUpdateSet((eb) => ({
          succeeded: eb('usage_days.succeeded', '+', eb.ref('excluded.succeeded')),
          failed: eb('usage_days.failed', '+', eb.ref('excluded.failed')),
          prompt_tokens: exactPlusExcluded('usage_days', 'prompt_tokens'),
          completion_tokens: exactPlusExcluded('usage_days', 'completion_tokens'),
          total_tokens: exactPlusExcluded('usage_days', 'total_tokens'),
          cost_nanos: exactPlusExcluded('usage_days', 'cost_nanos'),
        })),
      )
      .execute()
}

/**
 * Adds to the counters of whole projects; `rows` hold each key once. Returns which of these projects have ever had
 * a limit: whoever adds needs to know, and a question of its own would cost another round trip for each commit.
 */
export async function addProjectDays(tx: Writer, rows: readonly ProjectDayRow[]): Promise<Set<string>> {
  if (rows.length === 0) return new Set()
  const added = await tx
    .insertInto('project_days')
    .values(rows)
    .onConflict((oc) =>
      oc.columns(['project_id', 'day']).doUpdateSet({
        cost_nanos: exactPlusExcluded('project_days', 'cost_nanos'),
        tokens: exactPlusExcluded('project_days', 'tokens'),
      }),
    )
    .returning((eb) => [
      'project_id',
      eb
        .selectFrom('limit_versions')
        .select('version')
        .whereRef('limit_versions.project_id', '=', 'project_days.project_id')
        .as('limit_version'),
    ])
    .execute()
  return new Set(added.filter((row) => row.limit_version !== null).map((row) => row.project_id))
}

/** The counters of an entity on a day, those of the model that was used most first. */
export async function usageOfEntity(
  db: Reader,
  project_id: string,
  entity: string,
  day: number,
): Promise<UsageDayRow[]> {
  return await db
    .selectFrom('usage_days')
    .selectAll()
    .where('project_id', '=', project_id)
    .where('entity', '=', entity)
    .where('day', '=', day)
    .orderBy('total_tokens', 'desc')
    .orderBy('model')
    .execute()
}

/** What each of these entities has spent in the window; those that spent nothing are left out. */
export async function spentByEntities(
  db: Reader,
  project_id: string,
  entities: readonly string[],
  window: Period,
): Promise<Map<string, Spend>> {
  const spent = new Map<string, Spend>()
  for (let at = 0; at < entities.length; at += ROWS_MAX) {
    const rows = await db
      .selectFrom('usage_days')
      .select(['entity', exactSum('cost_nanos').as('cost_nanos'), exactSum('total_tokens').as('tokens')])
      .where('project_id', '=', project_id)
      .where('entity', 'in', entities.slice(at, at + ROWS_MAX))
      .where('day', '>=', dayOf(window.start))
      .where('day', '<', dayOf(window.end))
      .groupBy('entity')
      .execute()
    for (const { entity, cost_nanos, tokens } of rows) spent.set(entity, { cost_nanos, tokens })
  }
  return spent
}

/** What the whole project has spent in the window. */
export async function spentByProject(db: Reader, project_id: string, window: Period): Promise<Spend> {
  return await db
    .selectFrom('project_days')
    .select([exactSum('cost_nanos').as('cost_nanos'), exactSum('tokens').as('tokens')])
    .where('project_id', '=', project_id)
    .where('day', '>=', dayOf(window.start))
    .where('day', '<', dayOf(window.end))
    .executeTakeFirstOrThrow()
}
