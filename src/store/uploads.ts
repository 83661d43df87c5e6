// Uploads in parts. A part belongs to its upload until that is completed, cancelled or expired; then it is deleted.
import { sql } from 'kysely'
import type { UploadStatus } from '../domain/file.ts'
import { markForDeletion } from './blobs.ts'
import { type Listed, listed, type Page } from './page.ts'
import {
  changesRow,
  deleteRows,
  exactSum,
  findsRow,
  insertRow,
  NOW,
  selectRows,
  slices,
  updateRows,
} from './rows.ts'
import type { UploadPartRow, UploadRow } from './schema.ts'
import type { Reader, Writer } from './store.ts'

/** The column values of an upload that no call completes. */
export const NOT_COMPLETING = {
  completion_attempt: 0,
  completing_until: null,
  completion_order: null,
  completion_failure: null,
}

/** The project's upload as of `now` (Unix ms); undefined when it does not exist or is another project's. */
export async function readUpload(
  db: Reader,
  project_id: string,
  id: string,
  now: number,
): Promise<UploadRow | undefined> {
  const upload = await uploadsOf(db, project_id).where('id', '=', id).executeTakeFirst()
  return upload && at(upload, now)
}

/** The project's upload as of `now`, locked until the transaction ends. */
export async function lockUpload(
  tx: Writer,
  project_id: string,
  id: string,
  now: number,
): Promise<UploadRow | undefined> {
  const upload = await uploadsOf(tx, project_id).where('id', '=', id).forNoKeyUpdate().executeTakeFirst()
  return upload && at(upload, now)
}

export async function listUploads(
  db: Reader,
  project_id: string,
  page: Page & { status?: UploadStatus },
  now: number,
): Promise<Listed<UploadRow>> {
  const { status } = page
  const is = status !== undefined && sql<boolean>`${statusAt(now)} = ${status}`
  const found = await listed(uploadsOf(db, project_id), 'id', page, [is])
  return { ...found, rows: found.rows.map((upload) => at(upload, now)) }
}

function uploadsOf(db: Reader, project_id: string) {
  return selectRows(db, 'uploads', { project_id }).selectAll()
}

/** The upload as of `now`: `expired` from its `expires_at` on, although maintenance ends it later. */
function at(upload: UploadRow, now: number): UploadRow {
  return upload.status === 'pending' && upload.expires_at <= now ? { ...upload, status: 'expired' } : upload
}

function statusAt(now: number) {
  return sql<UploadStatus>`CASE WHEN status = 'pending' AND expires_at <= ${now} THEN 'expired' ELSE status END`
}

/** Inserts a part; the caller has locked its upload. */
export async function insertUploadPart(tx: Writer, part: UploadPartRow): Promise<void> {
  await insertRow(tx, 'upload_parts', part)
  await updateRows(tx, 'uploads', { id: part.upload_id })
    .set((eb) => ({ part_bytes: eb('part_bytes', '+', part.bytes) }))
    .execute()
}

/** A page of an upload's parts; none once the upload has ended. */
export async function listUploadParts(
  db: Reader,
  { id, status }: Pick<UploadRow, 'id' | 'status'>,
  page: Page,
): Promise<Listed<UploadPartRow>> {
  if (status !== 'pending') return { rows: [], lookedTo: null }
  return await listed(selectRows(db, 'upload_parts', { upload_id: id }).selectAll(), 'id', page)
}

/** Moves an upload from pending to `status` and deletes its parts. False when it was not pending. */
export async function endUpload(
  tx: Writer,
  id: string,
  { status, file_id }: { status: Exclude<UploadStatus, 'pending'>; file_id: string | null },
  now: number,
): Promise<boolean> {
  const ended = updateRows(tx, 'uploads', { id, status: 'pending' }).set({ status, file_id })
  if (!(await changesRow(ended))) return false
  const parts = await deleteRows(tx, 'upload_parts', { upload_id: id }).returning('blob').execute()
  for (const some of slices(parts))
    await markForDeletion(
      tx,
      some.map(({ blob }) => blob),
      now,
    )
  return true
}

/**
 * Leases the upload for `lease_ms` to one call that completes it; returns the number of the attempt. Null when another
 * call has the lease, or when the upload is not pending.
 */
export async function beginCompletion(
  tx: Writer,
  id: string,
  { order, lease_ms }: { order: string; lease_ms: number },
): Promise<number | null> {
  const begun = await updateRows(tx, 'uploads', { id, status: 'pending' })
    .set((eb) => ({
      completion_attempt: eb('completion_attempt', '+', 1),
      completing_until: eb(NOW, '+', lease_ms),
      completion_order: order,
      completion_failure: null,
    }))
    .where(({ or, eb }) => or([eb('completing_until', 'is', null), eb('completing_until', '<=', NOW)]))
    .returning('completion_attempt')
    .executeTakeFirst()
  return begun?.completion_attempt ?? null
}

export async function renewCompletion(
  tx: Writer,
  id: string,
  { attempt, lease_ms }: { attempt: number; lease_ms: number },
): Promise<void> {
  await updateRows(tx, 'uploads', { id, completion_attempt: attempt })
    .set((eb) => ({ completing_until: eb(NOW, '+', lease_ms) }))
    .where('completing_until', 'is not', null)
    .execute()
}

/** Ends a failed attempt, so that another one may start. */
export async function leaveCompletion(
  tx: Writer,
  id: string,
  attempt: number,
  completion_failure: string | null,
): Promise<void> {
  await updateRows(tx, 'uploads', { id, completion_attempt: attempt })
    .set({ completing_until: null, completion_failure })
    .execute()
}

/** Whether a call has the upload's lease. */
export async function isCompleting(db: Reader, id: string): Promise<boolean> {
  return await findsRow(selectRows(db, 'uploads', { id }).select('id').where('completing_until', '>', NOW))
}

export async function listExpiredUploads(db: Reader, now: number, limit: number): Promise<UploadRow[]> {
  return await selectRows(db, 'uploads', { status: 'pending' })
    .selectAll()
    .where('expires_at', '<=', now)
    .orderBy('expires_at')
    .limit(limit)
    .execute()
}

/** The pending uploads of a project. `stored`: their bytes for quotas, the announced ones or those of larger parts. */
export function pendingUploads(db: Reader, project_id: string) {
  const larger = sql<number>`CASE WHEN part_bytes > bytes THEN part_bytes ELSE bytes END`
  return db.selectFrom(
    selectRows(db, 'uploads', { project_id, status: 'pending' }).select(larger.as('stored')).as('pending'),
  )
}

/** The number of pending uploads, and their bytes. */
export async function sumPendingUploads(
  db: Reader,
  project_id: string,
): Promise<{ uploads: number; bytes: number }> {
  return await pendingUploads(db, project_id)
    .select((eb) => [eb.fn.countAll<number>().as('uploads'), exactSum('stored').as('bytes')])
    .executeTakeFirstOrThrow()
}
