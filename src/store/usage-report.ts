// Sums of what was settled, for reports: in total, and by any of entity, entity type, day and model. Groups
// come in pages, so that a report of any size needs little memory and holds up nobody.
import { type RawBuilder, sql } from 'kysely'
import { exactSum } from './exact-sum.ts'
import type { Reader } from './store.ts'

export interface UsageFilter {
  project_id: string
  entity?: string
  entity_type?: string
  /** Days since 1970-01-01 UTC; the first is counted, the last no longer. */
  from_day?: number
  to_day?: number
}

export interface UsageSums {
  succeeded: number
  failed: number
  prompt_tokens: number
  completion_tokens: number
  total_tokens: number
  cost_nanos: number
}

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
  let query = db.selectFrom('usage_days').where('project_id', '=', project_id)
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
