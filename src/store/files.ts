// Files: uploads, and the result files of batches. A deleted file keeps its row, which no user sees again. A file ends
// at its `expires_at`, or when the last unfinished batch that reads it has ended, whichever is later. It is deleted for
// its users from that moment on: users' reads go through `visibleFiles` or `readVisibleResults`, and maintenance only
// frees the space afterwards.
import { type ExpressionBuilder, sql } from 'kysely'
import { ApiError } from '../domain/errors.ts'
import type { FilePurpose, ForeignPurpose } from '../domain/file.ts'
import type { BatchTable, FailedLines } from '../wire/batch.ts'
import type { FileProblem } from '../wire/file.ts'
import { OPEN_STATUSES_SQL } from './batches.ts'
import { type Listed, listed, type Page } from './page.ts'
import { changesRow, findsRow, selectRows, updateRows, wordsIn } from './rows.ts'
import type { BatchRow, BlobRow, ChunkRow, FileRow, Schema } from './schema.ts'
import type { Reader, Writer } from './store.ts'

/** The files of a project that its users see at `now` (Unix ms). */
function visibleFiles(db: Reader, project_id: string, now: number) {
  return db
    .selectFrom('files')
    .where('files.project_id', '=', project_id)
    .where('files.deleted_at', 'is', null)
    .where((eb) => eb.or([eb('files.expires_at', '>', now), isRead(eb)]))
}

/** Files that have ended and are not deleted yet. */
export function expiredFiles(db: Reader, now: number) {
  return selectRows(db, 'files', { deleted_at: null })
    .where('expires_at', '<=', now)
    .where((eb) => eb.not(isRead(eb)))
}

/** Whether an unfinished batch reads the file. */
function isRead({ exists, selectFrom }: ExpressionBuilder<Schema, 'files'>) {
  return exists(
    selectFrom('batches')
      .select('batches.id')
      .whereRef('batches.input_file_id', '=', 'files.id')
      .where('batches.status', 'in', OPEN_STATUSES_SQL),
  )
}

/** The project's file, as findFile returns it. Throws content_not_kept if retention has deleted its content. */
export async function readFile(
  db: Reader,
  project_id: string,
  id: string,
  now: number,
): Promise<FileRow | undefined> {
  const file = await findFile(db, project_id, id, now)
  if (!file && (await findsRow(selectRows(db, 'files', { id, project_id, not_kept: 1 }).select('id'))))
    throw new ApiError('content_not_kept')
  return file
}

/** The project's file; undefined when it does not exist, is another project's, was deleted, or has expired. */
export async function findFile(
  db: Reader,
  project_id: string,
  id: string,
  now: number,
): Promise<FileRow | undefined> {
  return await visibleFiles(db, project_id, now).selectAll().where('id', '=', id).executeTakeFirst()
}

/** The end of files for their users (Unix ms), by ID. */
export async function readExpiries(db: Reader, ids: readonly string[]): Promise<Map<string, number>> {
  if (ids.length === 0) return new Map()
  const rows = await selectRows(db, 'files', { id: ids }).select(['id', 'expires_at', 'deleted_at']).execute()
  return new Map(rows.map(({ id, expires_at, deleted_at }) => [id, deleted_at ?? expires_at]))
}

/** Bytes of the index of the project's file; 0 without an index. */
export async function readIndexBytes(
  db: Reader,
  project_id: string,
  id: string,
  now: number,
): Promise<number> {
  const row = await visibleFiles(db, project_id, now)
    .innerJoin('blobs', 'blobs.key', 'files.index_blob')
    .select('blobs.bytes')
    .where('files.id', '=', id)
    .executeTakeFirst()
  return row?.bytes ?? 0
}

/** The content of a batch's input, or its index of custom_ids, for users; for workers there is readBatchInput. */
export async function readVisibleInput(
  db: Reader,
  { project_id, input_file_id }: Pick<BatchRow, 'project_id' | 'input_file_id'>,
  now: number,
  blob: 'content_blob' | 'ids_blob' = 'content_blob',
): Promise<BlobRow | undefined> {
  return await visibleFiles(db, project_id, now)
    .innerJoin('blobs', 'blobs.key', `files.${blob}`)
    .selectAll('blobs')
    .where('files.id', '=', input_file_id)
    .where('blobs.deletion_pending_since', 'is', null)
    .executeTakeFirst()
}

/** The results of a sealed chunk, for users; undefined if it has none, or if their file was deleted or has expired. */
export async function readVisibleResults(
  db: Reader,
  { batch_id, output_blob, error_blob }: Pick<ChunkRow, 'batch_id' | 'output_blob' | 'error_blob'>,
  part: 'output' | 'error',
  now: number,
): Promise<BlobRow | undefined> {
  const key = part === 'output' ? output_blob : error_blob
  if (key === null) return undefined
  return await selectRows(db, 'blobs', { key, deletion_pending_since: null })
    .selectAll()
    // Results have no file before their batch has ended.
    .where(({ not, exists, selectFrom }) =>
      not(
        exists(
          selectFrom('batches')
            .innerJoin('files', 'files.id', `batches.${part}_file_id`)
            .select('files.id')
            .where('batches.id', '=', batch_id)
            .where('files.expires_at', '<=', now),
        ),
      ),
    )
    .executeTakeFirst()
}

/** Reads the column `errors`. */
export function fileProblems(errors: string): FileProblem[] {
  return JSON.parse(errors)
}

/** The source of a file's lines: the rows of a table, or the failed lines of a batch. */
export type MadeOf = { file_id: string; table: BatchTable } | { batch_id: string; which: FailedLines }

/** The source of an input's content, and the parts of it that are stored. */
export interface FileSource {
  /** The URL in a bucket; empty for a file whose lines are made. */
  url: string
  made?: MadeOf
  /** The version of the fetched content; null until the object's head has been read. */
  etag: string | null
  /** The blobs of the fetched parts, in order; empty once the file has its content. */
  parts: { blob: string; bytes: number }[]
}

export function fileSource({ source }: Pick<FileRow, 'source'>): FileSource | null {
  return source === null ? null : JSON.parse(source)
}

/** Updates a file that waits for its content. False when the file was deleted or has ended meanwhile. */
export async function updateFetched(
  tx: Writer,
  id: string,
  { source, ...fetched }: { bytes: number; source: FileSource; content_blob?: string },
): Promise<boolean> {
  const pending = updateRows(tx, 'files', { id, status: 'pending', content_blob: null, deleted_at: null })
  return await changesRow(pending.set({ ...fetched, source: JSON.stringify(source) }))
}

/** Reads a file as readFile does, and locks it against deletion until the transaction ends. */
export async function lockInputFile(
  tx: Writer,
  project_id: string,
  id: string,
  now: number,
): Promise<FileRow | undefined> {
  const file = visibleFiles(tx, project_id, now).selectAll().where('id', '=', id).forShare()
  return (await file.executeTakeFirst()) ?? (await readFile(tx, project_id, id, now))
}

/** The row of a file, deleted or not, locked until the end of the transaction. */
export async function lockFileRow(tx: Writer, id: string): Promise<FileRow | undefined> {
  return await selectRows(tx, 'files', { id }).selectAll().forNoKeyUpdate().executeTakeFirst()
}

export async function listFiles(
  db: Reader,
  project_id: string,
  {
    purpose,
    search,
    ...page
  }: Page & { purpose?: FilePurpose | ForeignPurpose; search?: string | undefined },
  now: number,
): Promise<Listed<FileRow>> {
  const all = visibleFiles(db, project_id, now).selectAll()
  const files = purpose === undefined ? all : all.where(sql<string>`purpose`, '=', purpose)
  return await listed(files, 'id', page, wordsIn(['id', 'filename'], search))
}

/** Moves a file from pending to processed. False when the file was deleted or validated meanwhile. */
export async function markProcessed(
  tx: Writer,
  id: string,
  found: Pick<FileRow, 'line_count' | 'index_blob'> & Partial<Pick<FileRow, 'ids_blob'>>,
): Promise<boolean> {
  const pending = updateRows(tx, 'files', { id, status: 'pending', deleted_at: null })
  return await changesRow(pending.set({ status: 'processed', ...found }))
}

/** Replaces a damaged index. False when the file was deleted or its index replaced meanwhile. */
export async function replaceIndex(
  tx: Writer,
  id: string,
  damaged: string,
  index_blob: string,
): Promise<boolean> {
  const current = updateRows(tx, 'files', { id, index_blob: damaged, deleted_at: null })
  return await changesRow(current.set({ index_blob }))
}

/** Moves a file from pending to error. False when the file was deleted or validated meanwhile. */
export async function markInvalid(
  tx: Writer,
  id: string,
  found: { line_count: number; status_details: string; errors: string },
): Promise<boolean> {
  const pending = updateRows(tx, 'files', { id, status: 'pending', deleted_at: null })
  return await changesRow(pending.set({ status: 'error', ...found }))
}

/** Marks the file as deleted; the caller marks its content for deletion. False if it was deleted before. */
export async function markDeleted(tx: Writer, id: string, now: number): Promise<boolean> {
  return await changesRow(updateRows(tx, 'files', { id, deleted_at: null }).set({ deleted_at: now }))
}

/** Ends a file whose content is not kept at `at` (Unix ms), unless it ends before. */
export async function expireFile(tx: Writer, id: string, at: number): Promise<void> {
  await updateRows(tx, 'files', { id })
    .set({
      not_kept: 1,
      expires_at: sql<number>`CASE WHEN expires_at > ${at} THEN ${at} ELSE expires_at END`,
    })
    .execute()
}

/** Whether an unfinished batch makes its lines from the rows of this table. */
export async function isTableRead(db: Reader, project_id: string, table_id: string): Promise<boolean> {
  return await findsRow(
    db
      .selectFrom('batches')
      .innerJoin('files', 'files.id', 'batches.input_file_id')
      .select('files.id')
      .where('batches.project_id', '=', project_id)
      .where('batches.status', 'in', OPEN_STATUSES_SQL)
      .where('files.source', 'like', `%"file_id":"${table_id}"%`),
  )
}

/** The IDs of files that have ended, oldest first. */
export async function listExpiredFiles(db: Reader, now: number, limit: number): Promise<string[]> {
  const rows = await expiredFiles(db, now).select('id').orderBy('expires_at').limit(limit).execute()
  return rows.map(({ id }) => id)
}
