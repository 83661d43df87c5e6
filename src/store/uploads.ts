// Uploads in parts. A part belongs to its upload until that is completed, cancelled or expired; then its blob is deleted.
import { sql } from 'kysely'
import type { UploadStatus } from '../domain/upload.ts'
import { markForDeletion } from './blob-rows.ts'
import { exactSum } from './exact-sum.ts'
import { onPage, type Page } from './page.ts'
import type { UploadPartRow, UploadRow } from './schema.ts'
import type { Reader, Writer } from './store.ts'

export async function insertUploadRow(tx: Writer, upload: UploadRow): Promise<void> {
  await tx.insertInto('uploads').values(upload).execute()
}

/** The project's upload; undefined when it does not exist or is another project's. */
export async function readUpload(db: Reader, project_id: string, id: string): Promise<UploadRow | undefined> {
  return await db
    .selectFrom('uploads')
    .selectAll()
    .where('id', '=', id)
    .where('project_id', '=', project_id)
    .executeTakeFirst()
}

/** The same; until the transaction ends, no other can change the upload. */
export async function lockUpload(tx: Writer, project_id: string, id: string): Promise<UploadRow | undefined> {
  return await tx
    .selectFrom('uploads')
    .selectAll()
    .where('id', '=', id)
    .where('project_id', '=', project_id)
    .forNoKeyUpdate()
    .executeTakeFirst()
}

/** A page of them. */
export async function listUploads(
  db: Reader,
  project_id: string,
  page: Page & { status?: UploadStatus },
): Promise<UploadRow[]> {
  let query = onPage(db.selectFrom('uploads').selectAll().where('project_id', '=', project_id), 'id', page)
  if (page.status !== undefined) query = query.where('status', '=', page.status)
  return await query.execute()
}

/** Its upload must be locked. */
export async function insertUploadPart(tx: Writer, part: UploadPartRow): Promise<void> {
  await tx.insertInto('upload_parts').values(part).execute()
  await tx
    .updateTable('uploads')
    .set((eb) => ({ part_bytes: eb('part_bytes', '+', part.bytes) }))
    .where('id', '=', part.upload_id)
    .execute()
}

/** A page of them. */
export async function listUploadParts(db: Reader, upload_id: string, page: Page): Promise<UploadPartRow[]> {
  const all = db.selectFrom('upload_parts').selectAll().where('upload_id', '=', upload_id)
  return await onPage(all, 'id', page).execute()
}

export async function readUploadPart(
  db: Reader,
  upload_id: string,
  id: string,
): Promise<UploadPartRow | undefined> {
  return await db
    .selectFrom('upload_parts')
    .selectAll()
    .where('upload_id', '=', upload_id)
    .where('id', '=', id)
    .executeTakeFirst()
}

/** pending → `status`; its parts are deleted. False when it was not pending. */
export async function endUpload(
  tx: Writer,
  id: string,
  { status, file_id }: { status: Exclude<UploadStatus, 'pending'>; file_id: string | null },
  now: number,
): Promise<boolean> {
  const result = await tx
    .updateTable('uploads')
    .set({ status, file_id })
    .where('id', '=', id)
    .where('status', '=', 'pending')
    .executeTakeFirst()
  if (result.numUpdatedRows === 0n) return false
  const parts = await tx.deleteFrom('upload_parts').where('upload_id', '=', id).returning('blob').execute()
  for (let at = 0; at < parts.length; at += BLOBS_AT_ONCE)
    await markForDeletion(
      tx,
      parts.slice(at, at + BLOBS_AT_ONCE).map(({ blob }) => blob),
      now,
    )
  return true
}

/** A statement of SQLite and PostgreSQL takes more values. */
const BLOBS_AT_ONCE = 1000

export async function listExpiredUploads(db: Reader, now: number, limit: number): Promise<UploadRow[]> {
  return await db
    .selectFrom('uploads')
    .selectAll()
    .where('status', '=', sql.lit('pending' as const))
    .where('expires_at', '<=', now)
    .orderBy('expires_at')
    .limit(limit)
    .execute()
}

/** What the pending uploads of a project count against its quotas: each as large as announced, or as its parts are. */
export async function sumPendingUploads(
  db: Reader,
  project_id: string,
): Promise<{ uploads: number; bytes: number }> {
  const larger = sql<number>`CASE WHEN part_bytes > bytes THEN part_bytes ELSE bytes END`
  return await db
    .selectFrom(
      db
        .selectFrom('uploads')
        .select(larger.as('stored'))
        .where('project_id', '=', project_id)
        .where('status', '=', sql.lit('pending' as const))
        .as('pending'),
    )
    .select((eb) => [eb.fn.countAll<number>().as('uploads'), exactSum('stored').as('bytes')])
    .executeTakeFirstOrThrow()
}

export async function countUploadParts(db: Reader, upload_id: string): Promise<number> {
  const { rows } = await db
    .selectFrom('upload_parts')
    .select((eb) => eb.fn.countAll<number>().as('rows'))
    .where('upload_id', '=', upload_id)
    .executeTakeFirstOrThrow()
  return rows
}
