// The table of settled spend has a row per day: limits read its counters, and usage reports sum them up.
import { type RawBuilder, sql } from 'kysely'
import { dayOf } from '../domain/days.ts'
import type { Period } from '../domain/limit.ts'
import type { Spend } from '../domain/spend.ts'
import { selectRows } from './rows.ts'
import type { ProjectDayRow, UsageDayRow } from './schema.ts'
import { exactPlusExcluded, exactSum, slices } from './sql-parts.ts'
import type { Reader, Writer } from './store.ts'

/** Adds to the counters; `rows` hold each key once. */
export async function addUsage(tx: Writer, rows: readonly UsageDayRow[]): Promise<void> {
  for (const some of slices(rows))
    await tx
      .insertInto('usage_days')
      .values(some)
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

/** What each of these entities has spent in the window; those that spent nothing are left out. */
export async function spentByEntities(
  db: Reader,
  project_id: string,
  entities: readonly string[],
  window: Period,
): Promise<Map<string, Spend>> {
  const spent = new Map<string, Spend>()
  for (const some of slices(entities)) {
    const rows = await selectRows(db, 'usage_days', { project_id, entity: some })
      .select(['entity', exactSum('cost_nanos').as('cost_nanos'), exactSum('total_tokens').as('tokens')])
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
  return await selectRows(db, 'project_days', { project_id })
    .select([exactSum('cost_nanos').as('cost_nanos'), exactSum('tokens').as('tokens')])
    .where('day', '>=', dayOf(window.start))
    .where('day', '<', dayOf(window.end))
    .executeTakeFirstOrThrow()
}

/**
 * Sums of what was settled, for reports: in total, and by any of entity, entity type, day and model. Groups
 * come in pages, so that a report of any size needs little memory and holds up nobody.
 */
export interface UsageFilter {
  project_id: string
  entity?: string
  entity_type?: string
  /** Days since 1970-01-01 UTC; the first is counted, the last no longer. */
  from_day?: number
  to_day?: number
}

export type UsageSums = Pick<
  UsageDayRow,
  'succeeded' | 'failed' | 'prompt_tokens' | 'completion_tokens' | 'total_tokens' | 'cost_nanos'
>

/** In the order of the primary key: groups that begin with the entity are read from it page by page. */
export const USAGE_COLUMNS = ['entity', 'entity_type', 'day', 'model'] as const
export type UsageColumn = (typeof USAGE_COLUMNS)[number]

/** Empty texts stand for lines without an entity, without a type or without a model. */
export type UsageGroupRow = UsageSums &
  Partial<Record<'entity' | 'entity_type' | 'model', string>> & {
    day?: number
  }

export async function sumUsage(db: Reader, filter: UsageFilter): Promise<UsageSums> {
  return await filtered(db, filter).select(SUMS).executeTakeFirstOrThrow()
}

/** Ordered by `by`, which is in the order of USAGE_COLUMNS; those behind the group `after`, if given. */
export async function listUsageGroups(
  db: Reader,
  filter: UsageFilter,
  by: readonly UsageColumn[],
  limit: number,
  after?: UsageGroupRow,
): Promise<UsageGroupRow[]> {
  let query = filtered(db, filter).select(by).select(SUMS).groupBy(by).limit(limit)
  for (const column of by) query = query.orderBy(column)
  if (after) query = query.where(behind(by, after))
  return await query.execute()
}

const SUMS = [
  exactSum('succeeded').as('succeeded'),
  exactSum('failed').as('failed'),
  exactSum('prompt_tokens').as('prompt_tokens'),
  exactSum('completion_tokens').as('completion_tokens'),
  exactSum('total_tokens').as('total_tokens'),
  exactSum('cost_nanos').as('cost_nanos'),
]

function filtered(db: Reader, { project_id, entity, entity_type, from_day, to_day }: UsageFilter) {
  let query = selectRows(db, 'usage_days', { project_id })
  if (entity !== undefined) query = query.where('entity', '=', entity)
  if (entity_type !== undefined) query = query.where('entity_type', '=', entity_type)
  if (from_day !== undefined) query = query.where('day', '>=', from_day)
  if (to_day !== undefined) query = query.where('day', '<', to_day)
  return query
}

function behind(by: readonly UsageColumn[], after: UsageGroupRow): RawBuilder<boolean> {
  const columns = sql.join(by.map((column) => sql.ref(column)))
  const values = sql.join(by.map((column) => after[column]))
  return sql<boolean>`(${columns}) > (${values})`
}
