// Uploads in parts: each part is stored as it arrives, in any order and beside others, and survives a restart. Completing
// the upload reads its parts in the given order as one content, which becomes a file like any other.
import { createHash } from 'node:crypto'
import type { SealedBlob } from '../blobs/sealed.ts'
import { ApiError } from '../domain/errors.ts'
import { newId } from '../domain/ids.ts'
import { type Quotas, quotaExceeded } from '../domain/quota.ts'
import { insertBlobs, readBlobRow } from '../store/blob-rows.ts'
import { readFile } from '../store/files.ts'
import { lockProject } from '../store/quota-use.ts'
import type { FileRow, UploadPartRow, UploadRow } from '../store/schema.ts'
import type { Writer } from '../store/store.ts'
import {
  countUploadParts,
  endUpload,
  insertUploadPart,
  insertUploadRow,
  lockUpload,
  readUpload,
  readUploadPart,
  sumPendingUploads,
} from '../store/uploads.ts'
import { checkQuotas } from './check-quota.ts'
import { safeFilename } from './filename.ts'
import {
  bounded,
  discard,
  hashed,
  insertUpload,
  receiveContent,
  type Upload,
  type UploadDeps,
} from './upload.ts'

/** How long an upload that is neither completed nor cancelled is kept, with its parts. */
const UPLOAD_KEPT_MS = 24 * 3_600_000
const PARTS_MAX = 10_000

export interface UploadOwner {
  project_id: string
  quotas: Quotas
}

export interface UploadOrder extends UploadOwner {
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
  { project_id, quotas }: UploadOwner,
  upload: UploadRow,
  data: AsyncIterable<Buffer>,
  now: () => number,
): Promise<UploadPartRow> {
  const id = newId('part', now())
  const hash = createHash('sha256')
  const blob = await sealed.put(
    project_id,
    `uploads/${upload.id}/${id}`,
    hashed(bounded(data, upload.bytes, 'data'), hash),
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

export interface Completion {
  part_ids: readonly string[]
  /** Of the whole content, hex; null: not checked. */
  md5: string | null
}

/**
 * Makes the file, or returns the one that was made before. Throws upload_not_pending, invalid_request for parts that
 * are not the upload's, upload_mismatch for a content that is not as announced, and what receiving a file throws.
 */
export async function completeUpload(
  deps: UploadDeps,
  owner: UploadOwner,
  upload: UploadRow,
  { part_ids, md5 }: Completion,
  rules: Pick<Upload, 'retention_ms' | 'file_bytes_max' | 'now'>,
): Promise<{ upload: UploadRow; file: FileRow }> {
  const { store, sealed } = deps
  const { project_id } = owner
  const made = await madeFile(deps, project_id, upload.id, rules.now)
  if (made) return made
  openUpload(upload)
  const blobs = await partBlobs(deps, upload, part_ids)
  const bytes = blobs.reduce((sum, blob) => sum + blob.bytes, 0)
  if (bytes !== upload.bytes)
    throw new ApiError(
      'upload_mismatch',
      `The parts have ${bytes} bytes; the upload was announced with ${upload.bytes}.`,
      { param: 'part_ids' },
    )
  async function* content(): AsyncGenerator<Buffer> {
    for (const blob of blobs) yield* sealed.read(project_id, blob)
  }
  const order: Upload = {
    ...rules,
    project_id,
    form_bytes: bytes,
    ...(md5 === null ? {} : { digest: 'md5' }),
  }
  const received = await receiveContent(deps, { filename: upload.filename, content: content() }, order)
  try {
    if (received.digest !== md5?.toLowerCase() && md5 !== null)
      throw new ApiError('upload_mismatch', `The MD5 of the content is ${received.digest}, not ${md5}.`, {
        param: 'md5',
      })
    const keptMs = Math.min(rules.retention_ms, upload.file_expires_after_ms ?? rules.retention_ms)
    const file = await store.write(async (tx) => {
      const ended = { status: 'completed' as const, file_id: received.id }
      if (!(await endUpload(tx, upload.id, ended, rules.now))) return null
      await checkQuotas(tx, owner, { stored_bytes: bytes })
      return await insertUpload(tx, { ...received, expires_at: rules.now + keptMs }, order)
    })
    if (file) return { upload: { ...upload, status: 'completed', file_id: file.id }, file }
    // Another call has ended the upload meanwhile.
    await discard(sealed, received)
  } catch (error) {
    if (error instanceof ApiError) await discard(sealed, received)
    throw error
  }
  const first = await madeFile(deps, project_id, upload.id, rules.now)
  if (first) return first
  throw new ApiError('upload_not_pending')
}

/** Of an upload that is completed, as long as its file is there. */
async function madeFile(
  { store }: UploadDeps,
  project_id: string,
  id: string,
  now: number,
): Promise<{ upload: UploadRow; file: FileRow } | null> {
  const upload = await readUpload(store.read, project_id, id, now)
  if (upload?.file_id == null) return null
  const file = await readFile(store.read, project_id, upload.file_id, now)
  return file ? { upload, file } : null
}

async function partBlobs(
  { store }: UploadDeps,
  upload: UploadRow,
  part_ids: readonly string[],
): Promise<SealedBlob[]> {
  const param = 'part_ids'
  if (new Set(part_ids).size < part_ids.length)
    throw new ApiError('invalid_request', '`part_ids` names a part twice.', { param })
  const blobs: SealedBlob[] = []
  for (const id of part_ids) {
    const part = await readUploadPart(store.read, upload.id, id)
    const blob = part && (await readBlobRow(store.read, part.blob))
    if (!blob) {
      const message = `\`part_ids\` names ${JSON.stringify(id.slice(0, 60))}, which is no part of this upload.`
      throw new ApiError('upload_mismatch', message, { param })
    }
    blobs.push(blob)
  }
  return blobs
}
