// Uploads in parts: each part is stored as it arrives, in any order and beside others, and survives a restart. Completing
// the upload reads its parts in the given order as one content, which becomes a file like any other (complete-upload.ts).
import { createHash } from 'node:crypto'
import { ApiError } from '../domain/errors.ts'
import { newId } from '../domain/ids.ts'
import { quotaExceeded } from '../domain/quota.ts'
import { insertBlobs } from '../store/blobs.ts'
import { lockProject } from '../store/projects.ts'
import type { UploadPartRow, UploadRow } from '../store/schema.ts'
import type { Writer } from '../store/store.ts'
import {
  countUploadParts,
  insertUploadPart,
  insertUploadRow,
  lockUpload,
  NOT_COMPLETING,
  sumPendingUploads,
} from '../store/uploads.ts'
import { checkQuotas, type QuotaHolder } from './check-quota.ts'
import { safeFilename } from './filename.ts'
import type { TakeBytes } from './incoming.ts'
import { bounded, hashed, type UploadDeps } from './upload.ts'

/** How long an upload that is neither completed nor cancelled is kept, with its parts. */
const UPLOAD_KEPT_MS = 24 * 3_600_000
const PARTS_MAX = 10_000

export interface UploadOrder extends QuotaHolder {
  filename: string
  mime_type: string
  bytes: number
  /** How soon the file is to be gone, where that is sooner than the plan says. */
  file_expires_after_ms: number | null
  /** Uploads of the project that are under way otherwise. */
  running: number
}

/** Throws quota_exceeded. The bytes count from now on. */
export async function createUpload(tx: Writer, order: UploadOrder, now: number): Promise<UploadRow> {
  const { project_id, quotas, filename, mime_type, bytes, file_expires_after_ms, running } = order
  if (quotas.uploads !== null) {
    await lockProject(tx, project_id)
    const used = (await sumPendingUploads(tx, project_id)).uploads + running
    if (used >= quotas.uploads) throw quotaExceeded('uploads', quotas.uploads, used, 1)
  }
  await checkQuotas(tx, { project_id, quotas }, { stored_bytes: bytes })
  const upload: UploadRow = {
    id: newId('upload', now),
    project_id,
    status: 'pending',
    filename: safeFilename(filename),
    mime_type,
    bytes,
    part_bytes: 0,
    file_expires_after_ms,
    file_id: null,
    ...NOT_COMPLETING,
    created: now,
    expires_at: now + UPLOAD_KEPT_MS,
  }
  await insertUploadRow(tx, upload)
  return upload
}

/** Throws upload_not_found and upload_not_pending. */
export function openUpload(upload: UploadRow | undefined): UploadRow {
  if (!upload) throw new ApiError('upload_not_found')
  if (upload.status !== 'pending') throw new ApiError('upload_not_pending', `The upload is ${upload.status}.`)
  return upload
}

/** Throws upload_not_found, upload_not_pending, payload_too_large and quota_exceeded; then nothing is stored. */
export async function addPart(
  { store, sealed }: Pick<UploadDeps, 'store' | 'sealed'>,
  { project_id, quotas }: QuotaHolder,
  upload: UploadRow,
  data: AsyncIterable<Buffer>,
  take: TakeBytes,
  now: () => number,
): Promise<UploadPartRow> {
  const id = newId('part', now())
  const hash = createHash('sha256')
  const blob = await sealed.put(
    project_id,
    `uploads/${upload.id}/${id}`,
    hashed(bounded(data, upload.bytes, 'data', take), hash),
  )
  const part = { id, upload_id: upload.id, bytes: blob.bytes, sha256: hash.digest('hex'), blob: blob.key }
  try {
    return await store.write(async (tx) => {
      const created = now()
      const { bytes, part_bytes } = openUpload(await lockUpload(tx, project_id, upload.id, created))
      const count = await countUploadParts(tx, upload.id)
      if (count >= PARTS_MAX)
        throw new ApiError('invalid_request', `An upload has at most ${PARTS_MAX} parts. Send larger ones.`)
      // Parts that are sent twice count twice.
      const more = Math.max(0, part_bytes + part.bytes - Math.max(bytes, part_bytes))
      if (more > 0) await checkQuotas(tx, { project_id, quotas }, { stored_bytes: more })
      await insertBlobs(tx, project_id, [blob], created)
      await insertUploadPart(tx, { ...part, created })
      return { ...part, created }
    })
  } catch (error) {
    // After another error the commit may have happened all the same; if it has not, the sweep deletes the blob.
    if (error instanceof ApiError) await sealed.delete(blob.key)
    throw error
  }
}
