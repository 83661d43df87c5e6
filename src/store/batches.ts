// Batches. Each verb that moves a batch is guarded by the table of legal transitions.
import { type Insertable, type RawBuilder, sql } from 'kysely'
import {
  BATCH_STATUSES,
  type BatchSort,
  type BatchStatus,
  isTerminal,
  OPEN_STATUSES,
  statusesBefore,
} from '../domain/batch.ts'
import { firstIdAt } from '../domain/ids.ts'
import { recordOf } from '../domain/json-record.ts'
import { BATCH_SUMS } from '../domain/line-sums.ts'
import { SAMPLE_MS } from '../domain/progress.ts'
import { readBlobRow } from './blobs.ts'
import { cursorAt, cursorId, type Listed, listed, type Page } from './page.ts'
import { changesRow, exactPlus, findsRow, readRow, selectRows, updateRows, wordsIn } from './rows.ts'
import { type BatchRow, type BlobRow, MESSAGE_BATCHES, type Schema } from './schema.ts'
import type { Reader, Writer } from './store.ts'

type NewBatch = Omit<Insertable<Schema['batches']>, 'status' | 'input_filename' | 'name'>

export async function insertBatch(tx: Writer, batch: NewBatch): Promise<BatchRow> {
  const input = await readRow(tx, 'files', { id: batch.input_file_id })
  const input_filename = input?.filename ?? null
  return await tx
    .insertInto('batches')
    .values(() => ({
      ...batch,
      input_filename,
      name: batchName({ ...batch, input_filename }),
      status: 'validating',
    }))
    .returningAll()
    .executeTakeFirstOrThrow()
}

/** The caller's name for the batch, else the name of its input file; an empty name does not count. */
export function batchName({ id, metadata, input_filename }: NameFields): string {
  const { name }: { name?: unknown } = JSON.parse(metadata ?? '{}')
  return (typeof name === 'string' && name) || input_filename || id
}

type NameFields = Pick<BatchRow, 'id' | 'input_filename'> & { metadata?: string | null | undefined }

interface BatchFilter {
  /** 1: only batches that gather single requests; 0: only other batches. */
  is_gathered?: number | undefined
  status?: BatchStatus | undefined
  model?: string | undefined
  retry_of?: string | undefined
  /** Words that must occur in the ID, the input's ID or name, the metadata or the models, in any case. */
  search?: string | undefined
  /** The first creation time (Unix ms); `until`: the time before which batches were created. */
  since?: number | undefined
  until?: number | undefined
}

/** The column of each order, with an index; null: the ID alone, which begins with the creation time. */
const SORT_COLUMNS = {
  created: null,
  name: 'name',
  status: 'status',
  lines: 'total',
  failed: 'run_failed',
  cost: 'cost_nanos',
  speed: 'speed',
  deadline: 'expires_at',
} as const satisfies Record<BatchSort, keyof BatchRow | null>

type SortColumn = NonNullable<(typeof SORT_COLUMNS)[BatchSort]>

/** The cursor after a batch in an order. It holds the column's value, so it stays valid when the batch changes. */
export function batchCursor(batch: BatchRow, sort: BatchSort): string {
  const column = SORT_COLUMNS[sort]
  return column === null || column === 'name' ? batch.id : cursorAt(batch.id, batch[column])
}

type BatchPage = Page & BatchFilter & { sort?: BatchSort | undefined }

export async function listBatches(
  db: Reader,
  project_id: string,
  {
    status,
    is_gathered,
    model,
    retry_of,
    search,
    since,
    until,
    sort = 'created',
    behind: cursor,
    ...rest
  }: BatchPage,
): Promise<Listed<BatchRow>> {
  const page = { ...rest, behind: cursorId(cursor) }
  let batches = selectRows(db, 'batches', { project_id }).selectAll()
  const [from, to] = [since, until].map((ms) => (ms === undefined ? undefined : firstIdAt('batch', ms)))
  // Within one status the order is that of the ID.
  const column = status !== undefined && sort === 'status' ? null : SORT_COLUMNS[sort]
  const filter = [
    is_gathered !== undefined && sql<boolean>`is_gathered = ${is_gathered}`,
    // In a JSON array of strings only a whole element is between quotes.
    model !== undefined && containsText('models', JSON.stringify(model)),
    // A quote within a JSON string is escaped.
    retry_of !== undefined && containsText('metadata', `"retry_of":${JSON.stringify(retry_of)}`),
    ...wordsIn(['id', 'input_file_id', 'input_filename', 'metadata', 'models'], search),
  ]
  if (column !== null) {
    const by = { column, value: await valueAt(db, column, cursor) }
    return await listed(batches, 'id', { ...page, by }, [
      ...filter,
      status !== undefined && sql<boolean>`status = ${status}`,
      from !== undefined && sql<boolean>`id >= ${from}`,
      to !== undefined && sql<boolean>`id < ${to}`,
    ])
  }
  if (status !== undefined) batches = batches.where('status', '=', status)
  // A retry is created after its batch, and IDs begin with their time.
  if (retry_of !== undefined) batches = batches.where('id', '>', retry_of)
  const isAscending = page.order === 'asc'
  const starts = [page.behind, isAscending ? from : to].filter((id) => id !== undefined).sort()
  const within = { ...page, behind: isAscending ? starts.at(-1) : starts[0] }
  const { rows, lookedTo } = await listed(batches, 'id', within, filter)
  // Bounds on both sides make SQLite use an index without the status.
  const isWithin = (id: string): boolean =>
    isAscending ? to === undefined || id < to : from === undefined || id >= from
  return {
    rows: rows.filter(({ id }) => isWithin(id)),
    lookedTo: lookedTo !== null && isWithin(lookedTo) ? lookedTo : null,
  }
}

/** The value where the page begins: from the cursor, or else the batch's current value. */
async function valueAt(
  db: Reader,
  column: SortColumn,
  cursor: string | undefined,
): Promise<string | number | undefined> {
  if (cursor === undefined) return undefined
  const id = cursorId(cursor)
  const text = cursor.slice(id.length + 1)
  if (column === 'status' && BATCH_STATUSES.some((status) => status === text)) return text
  if (column !== 'status' && column !== 'name' && /^\d{1,20}(\.\d+)?(e[+-]\d+)?$/.test(text))
    return Number(text)
  return (await readRow(db, 'batches', { id }))?.[column]
}

function containsText(column: string, text: string): RawBuilder<boolean> {
  return sql<boolean>`replace(${sql.ref(column)}, ${text}, '') <> ${sql.ref(column)}`
}

/** The columns with the times at which a batch enters the statuses whose times the API shows, in their order. */
export const SHOWN_AT = {
  in_progress: 'in_progress_at',
  cancelling: 'cancelling_at',
  completed: 'completed_at',
  failed: 'failed_at',
  expired: 'expired_at',
  cancelled: 'cancelled_at',
} as const

const ENTERED_AT = { queued: 'queued_at', ...SHOWN_AT } as const

/** Moves the batch to a status; undefined if the table of transitions does not allow it. */
export async function moveBatch(
  tx: Writer,
  id: string,
  to: Exclude<BatchStatus, 'validating'>,
  now: number,
): Promise<BatchRow | undefined> {
  return await updateRows(tx, 'batches', { id, status: statusesBefore(to) })
    .set({ status: to, [ENTERED_AT[to]]: now, ...(isTerminal(to) && { speed: meanSpeed(now) }) })
    .returningAll()
    .executeTakeFirst()
}

/** Lines per second of a batch that ends, by whole seconds as in the API; 0 for a batch without a duration. */
function meanSpeed(now: number): RawBuilder<number> {
  const seconds = sql<number>`(${Math.floor(now / 1000)} - coalesce(in_progress_at, created) / 1000)`
  return sql`CASE WHEN ${seconds} > 0 THEN (completed + failed - not_run) * 1.0 / ${seconds} ELSE 0 END`
}

/**
 * Facts about a batch beside its status and counts. `errors`: of a failed batch, a JSON array of its first lines'
 * errors. `total`, `models`: of a batch created before its file was validated. `output_url…`: the progress of writing
 * its results there. `deleted_at`: of a deleted message batch.
 */
type BatchFacts = Pick<
  BatchRow,
  | ('errors' | 'total' | 'models' | 'output_file_id' | 'error_file_id' | 'chunk_count' | 'unshared_lines')
  | ('prefix_bytes' | 'lines_ahead' | 'fetched' | 'gathers_until')
  | ('output_url' | 'output_url_status' | 'output_url_error' | 'deleted_at')
>

export async function setBatch(tx: Writer, id: string, facts: Partial<BatchFacts>): Promise<void> {
  await updateRows(tx, 'batches', { id }).set(facts).execute()
}

/** Adds a chunk to a batch that gathers requests. False if the batch accepts no more of them. */
export async function extendBatch(
  tx: Writer,
  id: string,
  to: Pick<BatchRow, 'total' | 'chunk_count' | 'models'>,
  hasLineEvents: boolean,
): Promise<boolean> {
  const open = updateRows(tx, 'batches', {
    id,
    status: ['queued', 'in_progress'],
    paused_at: null,
    input_deleted_at: null,
  })
  const naming = ['request', 'response'].map((kind) => sql`event_types LIKE ${`%"${kind}.%`}`)
  const has_line_events = hasLineEvents
    ? 1
    : sql<number>`CASE WHEN has_line_events = 1 OR EXISTS (SELECT 1 FROM webhooks WHERE webhooks.project_id = batches.project_id
        AND webhooks.batch_id IS NULL AND disabled_at IS NULL AND (${sql.join(naming, sql` OR `)})) THEN 1 ELSE 0 END`
  return await changesRow(open.where('gathers_until', '>', 0).set({ ...to, has_line_events }))
}

/** The columns of a batch that commits add to. */
const COUNTED = [
  ...BATCH_SUMS,
  ...['completed', 'expired_lines', 'chunks_sealed'],
  ...['output_bytes', 'output_lines', 'error_bytes', 'error_lines'],
] as const

/** The sums that one commit adds to a batch. `at`: when its lines ended (Unix ms), for the batch's rate. */
export type BatchDelta = Partial<Record<(typeof COUNTED)[number], number>> & { at?: number }

export async function addToBatch(tx: Writer, id: string, delta: BatchDelta): Promise<BatchRow> {
  const { completed = 0, failed = 0, not_run = 0, at } = delta
  const counted = COUNTED.filter((name) => delta[name] !== undefined)
  return await updateRows(tx, 'batches', { id })
    .set({
      ...recordOf(counted, (name) => exactPlus(name, delta[name] ?? 0)),
      run_failed: sql<number>`failed - not_run + ${failed - not_run}`,
      ...(at === undefined ? {} : rateSample(completed + failed, at)),
    })
    .returningAll()
    .executeTakeFirstOrThrow()
}

/** Lowers the rate's last line count after lines were reversed. */
export async function lowerRateMark(tx: Writer, id: string): Promise<void> {
  await updateRows(tx, 'batches', { id })
    .set((eb) => ({ rate_lines: eb('completed', '+', eb.ref('failed')) }))
    .where((eb) => eb('rate_lines', '>', eb('completed', '+', eb.ref('failed'))))
    .execute()
}

/**
 * A new sample of the rate if the last one is old enough; otherwise the columns stay as they are. The rate is the mean
 * of the new sample and the rate before.
 */
function rateSample(done: number, now: number) {
  const due = sql<boolean>`rate_sampled_at IS NOT NULL AND ${now} - rate_sampled_at >= ${SAMPLE_MS}`
  const first = sql<boolean>`rate_sampled_at IS NULL`
  const sampled = sql<number>`(completed + failed + ${done} - rate_lines) * 1000.0 / (${now} - rate_sampled_at)`
  const mean = sql<number>`(${sampled} + coalesce(lines_per_s, ${sampled})) / 2`
  return {
    lines_per_s: sql<number>`CASE WHEN ${due} THEN ${mean} ELSE lines_per_s END`,
    speed: sql<number>`CASE WHEN ${due} THEN ${mean} ELSE speed END`,
    rate_lines: sql<number>`CASE WHEN ${first} OR ${due} THEN completed + failed + ${done} ELSE rate_lines END`,
    rate_sampled_at: sql<number>`CASE WHEN ${first} OR ${due} THEN ${now} ELSE rate_sampled_at END`,
  }
}

/** The state of a batch with open chunks. */
export interface BatchStatusRow
  extends Pick<
    BatchRow,
    | 'id'
    | 'project_id'
    | 'status'
    | 'input_deleted_at'
    | 'paused_at'
    | 'line_cancels'
    | 'created'
    | 'expires_at'
  > {
  /** The version of the project's limits; 0 for a project that never had a limit. */
  limit_version: number
  /** A model that the project has paused; null: none. */
  paused_model: string | null
}

/** The states of batches, each a row; of one batch of each project several, one for each paused model of the project. */
export async function readBatchStatuses(db: Reader, ids: readonly string[]): Promise<BatchStatusRow[]> {
  if (ids.length === 0) return []
  const batches = selectRows(db, 'batches', { id: ids })
    .select(['id', 'project_id', 'status', 'input_deleted_at', 'paused_at', 'line_cancels', 'created'])
    .select(['expires_at', sql<number>`row_number() OVER (PARTITION BY project_id)`.as('of_project')])
  return await db
    .selectFrom(batches.as('batches'))
    .leftJoin('limit_versions', 'limit_versions.project_id', 'batches.project_id')
    .leftJoin('paused_models', (join) =>
      join.onRef('paused_models.project_id', '=', 'batches.project_id').on('of_project', '=', 1),
    )
    .selectAll('batches')
    .select((eb) => [eb.fn.coalesce('version', eb.val(0)).as('limit_version'), 'model as paused_model'])
    .execute()
}

/** The input of a batch, and the version of its project's limits. */
export interface BatchInput {
  batch: BatchRow
  /** The blob of the batch's input file; undefined if its key is destroyed. */
  content: BlobRow | undefined
  /** The version of the project's limits; 0 for a project that never had a limit. */
  limit_version: number
}

/** The input of a batch; undefined if there is no such batch. */
export async function readBatchInput(db: Reader, id: string): Promise<BatchInput | undefined> {
  const row = await db
    .selectFrom('batches')
    .leftJoin('files', 'files.id', 'batches.input_file_id')
    .leftJoin('limit_versions', 'limit_versions.project_id', 'batches.project_id')
    .selectAll('batches')
    .select(['files.content_blob', 'version as limit_version'])
    .where('batches.id', '=', id)
    .executeTakeFirst()
  if (!row) return undefined
  const { content_blob, limit_version, ...batch } = row
  const content = content_blob === null ? undefined : await readBlobRow(db, content_blob)
  return { batch, content, limit_version: limit_version ?? 0 }
}

/** SQL literals of the open statuses, in the order of the partial indexes, which serve queries with them. */
export const OPEN_STATUSES_SQL = OPEN_STATUSES.map((status) => sql.lit(status))

/** The unfinished batches that read this file. */
export async function openBatchesOfInput(db: Reader, file_id: string): Promise<BatchRow[]> {
  return await selectRows(db, 'batches', { input_file_id: file_id, status: OPEN_STATUSES })
    .selectAll()
    .execute()
}

export async function markInputDeleted(tx: Writer, ids: readonly string[], now: number): Promise<void> {
  if (ids.length === 0) return
  await updateRows(tx, 'batches', { id: ids }).set({ input_deleted_at: now }).execute()
}

/** Whether another batch has the same input. */
export async function isInputShared(db: Reader, { id, input_file_id }: BatchRow): Promise<boolean> {
  return await findsRow(selectRows(db, 'batches', { input_file_id }).where('id', '<>', id).select('id'))
}

// Message batches, as clients of Anthropic's API see them. The words of the index let SQLite use it.
const isMessageBatch = sql<boolean>`${sql.raw(MESSAGE_BATCHES)}`

export async function readMessageBatch(
  db: Reader,
  project_id: string,
  id: string,
): Promise<BatchRow | undefined> {
  return await selectRows(db, 'batches', { id, project_id })
    .where(isMessageBatch)
    .selectAll()
    .executeTakeFirst()
}

export async function listMessageBatches(
  db: Reader,
  project_id: string,
  page: Page,
): Promise<Listed<BatchRow>> {
  return await listed(selectRows(db, 'batches', { project_id }).where(isMessageBatch).selectAll(), 'id', page)
}

const PACE = [
  'id',
  'project_id',
  'status',
  'total',
  'completed',
  'failed',
  'in_progress_at',
  'created',
  'expires_at',
  'rate_sampled_at',
  'rate_lines',
  'lines_per_s',
  'start_after',
  'models',
] as const

/** Unfinished batches that are not paused, for progress and risk, earliest deadline first. */
export async function listPaces(db: Reader, limit: number): Promise<Pick<BatchRow, (typeof PACE)[number]>[]> {
  return await db
    .selectFrom('batches')
    .select(PACE)
    .where('status', 'in', [sql.lit('queued' as const), sql.lit('in_progress' as const)])
    .where('paused_at', 'is', null)
    .orderBy('expires_at')
    .limit(limit)
    .execute()
}

// The queries of GET /v1/live, once a second and project: unfinished batches, new ones, and those that just ended.

/** Unfinished batches of the project, newest first. */
export async function listOpenBatches(db: Reader, project_id: string, limit: number): Promise<BatchRow[]> {
  return await selectRows(db, 'batches', { project_id, status: OPEN_STATUSES })
    .selectAll()
    .orderBy('id', 'desc')
    .limit(limit)
    .execute()
}

/** Batches of the project that were created after the batch `id`, and those of `ids`. */
export async function listLaterBatches(
  db: Reader,
  project_id: string,
  { id, ids, limit }: { id: string; ids: readonly string[]; limit: number },
): Promise<BatchRow[]> {
  const own = selectRows(db, 'batches', { project_id }).selectAll()
  const later = await own.where('id', '>', id).orderBy('id', 'desc').limit(limit).execute()
  // A single statement would read every batch of the project.
  const named = ids.length === 0 ? [] : await own.where('id', 'in', ids).where('id', '<=', id).execute()
  return [...later, ...named]
}
