// The counters that commits add to: settled spend by day, which limits read and usage reports sum up, statistics of
// each batch, and sizes of the prompts of each model.
import { type RawBuilder, sql } from 'kysely'
import { recordOf } from '../domain/json-record.ts'
import { DAY_SUMS, type SumOf } from '../domain/line-sums.ts'
import { AMOUNTS, sumOf } from '../domain/money.ts'
import { PROMPT_SUMS, type PromptStatistics } from '../domain/tokens.ts'
import { pagesOf } from './page.ts'
import { adding, addRows, exactSum, selectRows, updateRows } from './rows.ts'
import type { BatchRow, BatchStatisticsRow, ProjectDayRow, UsageDayRow } from './schema.ts'
import type { Reader, Writer } from './store.ts'

/** Adds to the counters of usage by day; each key once in `rows`. */
export async function addUsage(tx: Writer, rows: readonly UsageDayRow[]): Promise<void> {
  await addRows(tx, 'usage_days', rows, DAY_SUMS)
}

/**
 * Adds to the counters of whole projects; each key once in `rows`. Returns the projects that have ever had a limit:
 * commits need them, and a separate query would cost another round trip for each commit.
 */
export async function addProjectDays(tx: Writer, rows: readonly ProjectDayRow[]): Promise<Set<string>> {
  if (rows.length === 0) return new Set()
  const added = await sql<{ project_id: string; limit_version: number | null }>`
    ${adding('project_days', rows, AMOUNTS)}
    RETURNING project_id, (SELECT version FROM limit_versions
      WHERE limit_versions.project_id = project_days.project_id) AS limit_version`.execute(tx)
  return new Set(added.rows.filter((row) => row.limit_version !== null).map((row) => row.project_id))
}

/**
 * Sums of settled usage for reports: in total, and by any of entity, entity type, day, model and key. They are computed
 * over one piece of the table at a time, so that a report of any size needs little memory and delays no other call.
 */
export interface UsageFilter {
  project_id: string
  entity?: string
  entity_type?: string
  key?: string
  model?: string
  /** Days since 1970-01-01 UTC; the first is included, the last excluded. */
  from_day?: number
  to_day?: number
}

export type UsageSums = Record<SumOf<'usage_days'>, number>

/** The columns in the order of the primary key: a group that begins with the entity is complete at the next one. */
export const USAGE_COLUMNS = ['entity', 'entity_type', 'day', 'model', 'key'] as const
export type UsageColumn = (typeof USAGE_COLUMNS)[number]

/** A group of usage. Empty texts stand for lines without an entity, type or model, and for unknown keys. */
export type UsageGroupRow = UsageSums &
  Partial<Record<'entity' | 'entity_type' | 'model' | 'key', string>> & {
    day?: number
  }

/** The number of rows that one statement sums up. */
const PIECE_ROWS = 5_000
/** The limit of incomplete groups in memory. */
const OPEN_GROUPS_MAX = 100_000

/** Thrown when more groups are incomplete than fit into memory. */
export class TooManyGroups extends Error {}

/**
 * Yields the completed groups after each piece of the table, ordered by `by`, which is in the order of USAGE_COLUMNS.
 * Without `by`, one group at most. Throws TooManyGroups.
 */
export async function* listUsage(
  db: Reader,
  filter: UsageFilter,
  by: readonly UsageColumn[],
): AsyncGenerator<UsageGroupRow[]> {
  const open = new Map<string, UsageGroupRow>()
  for (let after: PieceEnd | undefined, isLast = false; !isLast; ) {
    const end = await endOfPiece(db, filter, after)
    for (const group of await sumPiece(db, filter, by, after, end)) {
      const key = JSON.stringify(by.map((column) => group[column]))
      open.set(key, addUsageSums(open.get(key), group))
    }
    if (open.size > OPEN_GROUPS_MAX) throw new TooManyGroups()
    isLast = end === undefined
    const complete: UsageGroupRow[] = []
    for (const [key, group] of open) {
      if (!isLast && (by[0] !== 'entity' || group.entity === end?.entity)) continue
      open.delete(key)
      complete.push(group)
    }
    yield by[0] === 'entity' ? complete : complete.sort((a, b) => inOrder(a, b, by))
    after = end
  }
}

export function addUsageSums<T extends UsageSums>(sums: UsageSums | undefined, group: T): T {
  if (!sums) return group
  return { ...group, ...Object.fromEntries(DAY_SUMS.map((name) => [name, sumOf(sums[name], group[name])])) }
}

function inOrder(a: UsageGroupRow, b: UsageGroupRow, by: readonly UsageColumn[]): number {
  const differs = by.find((column) => a[column] !== b[column])
  return differs === undefined ? 0 : (a[differs] ?? '') < (b[differs] ?? '') ? -1 : 1
}

type PieceEnd = Pick<UsageDayRow, 'entity' | 'day' | 'model' | 'key_id'>

/** The end of the next piece; undefined if the rest of the table is no longer than a piece. */
async function endOfPiece(db: Reader, filter: UsageFilter, after?: PieceEnd): Promise<PieceEnd | undefined> {
  return await pieceOf(db, filter, after)
    .select(['entity', 'day', 'model', 'key_id'])
    .orderBy('entity')
    .orderBy('day')
    .orderBy('model')
    .orderBy('key_id')
    .offset(PIECE_ROWS - 1)
    .limit(1)
    .executeTakeFirst()
}

async function sumPiece(
  db: Reader,
  filter: UsageFilter,
  by: readonly UsageColumn[],
  after?: PieceEnd,
  end?: PieceEnd,
): Promise<UsageGroupRow[]> {
  const { entity_type, key, model, from_day, to_day } = filter
  let query = pieceOf(db, filter, after, end).select(DAY_SUMS.map((name) => exactSum(name).as(name)))
  if (entity_type !== undefined) query = query.where('entity_type', '=', entity_type)
  if (key !== undefined) query = query.where('key_id', '=', key)
  if (model !== undefined) query = query.where('model', '=', model)
  if (from_day !== undefined) query = query.where('day', '>=', from_day)
  if (to_day !== undefined) query = query.where('day', '<', to_day)
  if (by.length === 0) return await query.execute()
  let grouped = query
  for (const name of by) {
    const column = name === 'key' ? 'key_id' : name
    grouped = grouped.select(sql.ref<string>(column).as(name)).groupBy(column).orderBy(column)
  }
  return await grouped.execute()
}

function pieceOf(db: Reader, { project_id, entity }: UsageFilter, after?: PieceEnd, end?: PieceEnd) {
  let query = selectRows(db, 'usage_days', { project_id })
  if (entity !== undefined) query = query.where('entity', '=', entity)
  if (after) query = query.where(sql<boolean>`(entity, day, model, key_id) > ${keyOf(after)}`)
  if (end) query = query.where(sql<boolean>`(entity, day, model, key_id) <= ${keyOf(end)}`)
  return query
}

function keyOf({ entity, day, model, key_id }: PieceEnd): RawBuilder<unknown> {
  return sql`(${entity}, ${day}, ${model}, ${key_id})`
}

// Statistics of batches: errors by code and message, and finished lines by time. One row per batch, of bounded size
// (results/batch-statistics.ts).

/** The existing rows, in no order. */
export async function readBatchStatistics(
  db: Reader,
  batch_ids: readonly string[],
): Promise<BatchStatisticsRow[]> {
  if (batch_ids.length === 0) return []
  return await selectRows(db, 'batch_statistics', { batch_id: batch_ids }).selectAll().execute()
}

const TIMELINES_AT_ONCE = 200

/** The timelines of the project's batches whose windows end at a time (Unix ms) or later, in pages. */
export async function* listTimelines(
  db: Reader,
  project_id: string,
  expires_at: number,
): AsyncGenerator<Pick<BatchStatisticsRow, 'batch_id' | 'timeline'>[]> {
  const batches = selectRows(db, 'batches', { project_id })
    .leftJoin('batch_statistics', 'batch_statistics.batch_id', 'batches.id')
    .select(['expires_at', 'id', 'batch_statistics.timeline'])
    .orderBy('expires_at')
    .orderBy('id')
    .limit(TIMELINES_AT_ONCE)
  type Row = Pick<BatchRow, 'expires_at' | 'id'> & { timeline: string | null }
  for await (const rows of pagesOf<Row>(TIMELINES_AT_ONCE, (last = { expires_at, id: '', timeline: null }) =>
    batches.where(sql<boolean>`(expires_at, id) > (${last.expires_at}, ${last.id})`).execute(),
  ))
    yield rows.flatMap(({ id, timeline }) => (timeline === null ? [] : [{ batch_id: id, timeline }]))
}

// Sizes of prompts, in bytes and in reported tokens, summed by model. Large sums are divided by two, so that recent
// prompts outweigh those of an earlier tokenizer.

/** The number of tokens from which sums are divided by two. */
const TOKENS_MAX = 10_000_000

/** Adds to the statistics in the order of the models' names, so that two workers cannot deadlock. */
export async function addPromptStatistics(
  tx: Writer,
  seen: ReadonlyMap<string, PromptStatistics>,
): Promise<void> {
  const rows = [...seen].sort(([a], [b]) => (a < b ? -1 : 1)).map(([model, sums]) => ({ model, ...sums }))
  for (const row of rows) {
    await addRows(tx, 'prompt_statistics', [row], PROMPT_SUMS)
    await updateRows(tx, 'prompt_statistics', { model: row.model })
      .set(recordOf(PROMPT_SUMS, (name) => sql<number>`${sql.ref(name)} / 2`))
      .where('tokens', '>', TOKENS_MAX)
      .execute()
  }
}

/** The statistics by model; a model without reports is absent. */
export async function readPromptStatistics(db: Reader): Promise<Map<string, PromptStatistics>> {
  const rows = await db.selectFrom('prompt_statistics').selectAll().execute()
  return new Map(rows.map(({ model, ...seen }) => [model, seen]))
}
