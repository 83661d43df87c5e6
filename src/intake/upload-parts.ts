// Uploads in parts: each part is stored as it arrives, in any order and beside others, and survives a restart.
// Completing the upload reads its parts in the given order as one content, which becomes a file like any other.
import { createHash } from 'node:crypto'
import { discardBlobs, type SealedBlob } from '../blobs/sealed.ts'
import { type Clock, every, sleep } from '../domain/clock.ts'
import { ApiError, ERRORS, invalidParam, isErrorCode } from '../domain/errors.ts'
import { newId } from '../domain/ids.ts'
import { quotaExceeded } from '../domain/plan.ts'
import { counted } from '../domain/text.ts'
import { insertBlobs, readBlobRow } from '../store/blobs.ts'
import { findFile } from '../store/files.ts'
import { lockProject } from '../store/projects.ts'
import { countRows, insertRow, readRow } from '../store/rows.ts'
import type { FileRow, UploadPartRow, UploadRow } from '../store/schema.ts'
import type { Writer } from '../store/store.ts'
import {
  beginCompletion,
  endUpload,
  insertUploadPart,
  isCompleting,
  leaveCompletion,
  lockUpload,
  NOT_COMPLETING,
  readUpload,
  renewCompletion,
  sumPendingUploads,
} from '../store/uploads.ts'
import { checkQuotas, type QuotaHolder } from './check-quota.ts'
import type { Incoming, TakeBytes } from './incoming.ts'
import {
  bounded,
  commitOrDiscard,
  discard,
  hashed,
  insertUpload,
  receiveContent,
  safeFilename,
  type Upload,
  type UploadDeps,
} from './upload.ts'

/** The time after which an upload that is neither completed nor cancelled is deleted, with its parts. */
const UPLOAD_KEPT_MS = 24 * 3_600_000
const PARTS_MAX = 10_000

interface UploadOrder extends QuotaHolder {
  filename: string
  mime_type: string
  bytes: number
  /** The requested expiry of the file after its creation, where the caller asked for one. */
  file_expires_after_ms: number | null
  /** The number of the project's other running uploads. */
  running: number
}

/** Creates an upload, whose announced bytes count as stored from now on. Throws quota_exceeded. */
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
  await insertRow(tx, 'uploads', upload)
  return upload
}

/** Returns a pending upload. Throws upload_not_found and upload_not_pending. */
export function openUpload(upload: UploadRow | undefined): UploadRow {
  if (!upload) throw new ApiError('upload_not_found')
  if (upload.status !== 'pending') throw new ApiError('upload_not_pending', `The upload is ${upload.status}.`)
  return upload
}

/** Stores a part. Throws upload_not_found, upload_not_pending, payload_too_large and quota_exceeded. */
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
  const commit = (): Promise<UploadPartRow> =>
    store.write(async (tx) => {
      const created = now()
      const { bytes, part_bytes } = openUpload(await lockUpload(tx, project_id, upload.id, created))
      const count = await countRows(tx, 'upload_parts', { upload_id: upload.id })
      if (count >= PARTS_MAX)
        throw new ApiError('invalid_request', `An upload has at most ${PARTS_MAX} parts. Send larger ones.`)
      // A part that is sent twice counts twice.
      const more = Math.max(0, part_bytes + part.bytes - Math.max(bytes, part_bytes))
      if (more > 0) await checkQuotas(tx, { project_id, quotas }, { stored_bytes: more })
      await insertBlobs(tx, project_id, [blob], created)
      await insertUploadPart(tx, { ...part, created })
      return { ...part, created }
    })
  return await commitOrDiscard(commit, () => discardBlobs(sealed, [blob]))
}

// Makes a file of the parts of an upload, one call at a time over all API processes, so that the content is stored no
// more than twice until its parts are deleted. The row of the upload names the running attempt and the end of its
// lease. A concurrent call with the same parts waits and shares the outcome, a failure included; another one gets
// upload_completing.

const LEASE_MS = 15_000
const RENEWALS_PER_LEASE = 3
const RETRY_S = 1
/** The polling interval while another process completes the upload; it doubles after each poll. */
const POLL_MS_MIN = 20
const POLL_MS_MAX = 500

interface Completion {
  part_ids: readonly string[]
  /** The MD5 of the whole content, hex; null: not checked. */
  md5: string | null
}

export interface Completed {
  upload: UploadRow
  file: FileRow
}

type Rules = Pick<Upload, 'retention_ms' | 'file_bytes_max'>

interface CompletionDeps extends UploadDeps {
  clock: Clock
  incoming: Incoming
}

interface Call {
  owner: QuotaHolder
  id: string
  completion: Completion
  /** A hash of the parts and the MD5, equal for calls that may share an outcome. */
  order: string
  rules: Rules
}

export class UploadCompletions {
  readonly #deps: CompletionDeps
  /** The running attempts of this process, by upload ID. */
  readonly #running = new Map<string, Promise<unknown>>()

  constructor(deps: CompletionDeps) {
    this.#deps = deps
  }

  /**
   * Makes the file, or returns the file that was made before. Stops waiting once `signal` aborts. Throws
   * upload_not_found, upload_not_pending, upload_completing, invalid_request for parts of another upload,
   * upload_mismatch for content that differs from the announced one, and the errors of receiving a file.
   */
  async complete(
    owner: QuotaHolder,
    id: string,
    completion: Completion,
    rules: Rules,
    signal: AbortSignal,
  ): Promise<Completed> {
    const { store, clock } = this.#deps
    const { part_ids, md5 } = completion
    const order = createHash('sha256')
      .update(JSON.stringify([part_ids, md5]))
      .digest('hex')
    const call = { owner, id, completion, order, rules }
    let waitedFor: number | null = null
    for (let pauseMs = POLL_MS_MIN; ; pauseMs = Math.min(pauseMs * 2, POLL_MS_MAX)) {
      const upload = await readUpload(store.read, owner.project_id, id, clock.now())
      const made = upload && (await this.#madeFile(upload))
      if (made) return made
      const { completion_attempt, completion_order, completion_failure } = openUpload(upload)
      if (await isCompleting(store.read, id)) {
        if (completion_order !== order || signal.aborted)
          throw new ApiError('upload_completing', undefined, {}, RETRY_S)
        waitedFor = completion_attempt
        await (this.#running.get(id)?.catch(() => {}) ?? sleep(clock, pauseMs, signal))
        continue
      }
      if (waitedFor === completion_attempt && completion_failure !== null) throw failureOf(completion_failure)
      const completed = await this.#attempt(call)
      if (completed) return completed
    }
  }

  /** The file of a completed upload; null if there is none, or it is deleted. */
  async #madeFile(upload: UploadRow): Promise<Completed | null> {
    if (upload.file_id === null) return null
    const { store, clock } = this.#deps
    const file = await findFile(store.read, upload.project_id, upload.file_id, clock.now())
    return file ? { upload, file } : null
  }

  /** Makes the file under a lease; null if another call has the lease, or has ended the upload. */
  async #attempt(call: Call): Promise<Completed | null> {
    const { store } = this.#deps
    const { id, order } = call
    const attempt = await store.write((tx) => beginCompletion(tx, id, { order, lease_ms: LEASE_MS }))
    if (attempt === null) return null
    const running = this.#run(call, attempt)
    this.#running.set(id, running)
    const stopRenewing = this.#renew(id, attempt)
    try {
      return await running
    } finally {
      stopRenewing()
      if (this.#running.get(id) === running) this.#running.delete(id)
    }
  }

  /** Makes the file. After an error the stored content is deleted before the lease ends. */
  async #run(call: Call, attempt: number): Promise<Completed | null> {
    const { store, incoming } = this.#deps
    const announced = { bytes: 0, zstd: false, countedBytes: Number.POSITIVE_INFINITY }
    try {
      return await incoming.receive(call.owner, announced, (take) => this.#make(call, attempt, take))
    } catch (error) {
      // A quota's lack of room does not depend on the call's parameters.
      const isFinal =
        error instanceof ApiError && !ERRORS[error.code].retryable && error.code !== 'quota_exceeded'
      const failure = isFinal ? JSON.stringify(error.toWire()) : null
      await store.write((tx) => leaveCompletion(tx, call.id, attempt, failure)).catch(() => {})
      throw error
    }
  }

  async #make(
    { owner, id, completion, rules }: Call,
    attempt: number,
    take: TakeBytes,
  ): Promise<Completed | null> {
    const { store, sealed, clock } = this.#deps
    const { project_id } = owner
    const { part_ids, md5 } = completion
    const now = clock.now()
    const upload = openUpload(await readUpload(store.read, project_id, id, now))
    const blobs = await this.#partBlobs(upload, part_ids)
    const bytes = blobs.reduce((sum, blob) => sum + blob.bytes, 0)
    if (bytes !== upload.bytes)
      throw new ApiError(
        'upload_mismatch',
        `The parts have ${counted(bytes, 'byte')}; the upload was announced with ${upload.bytes}.`,
        { param: 'part_ids' },
      )
    async function* content(): AsyncGenerator<Buffer> {
      for (const blob of blobs) yield* sealed.read(project_id, blob)
    }
    const order: Upload = {
      ...rules,
      project_id,
      now,
      take,
      form_bytes: bytes,
      ...(md5 === null ? {} : { digest: 'md5' }),
    }
    const received = await receiveContent(
      this.#deps,
      { filename: upload.filename, content: content(), purpose: 'batch' },
      order,
    )
    const commit = async (): Promise<FileRow | null> => {
      if (md5 !== null && received.digest !== md5.toLowerCase())
        throw new ApiError('upload_mismatch', `The MD5 of the content is ${received.digest}, not ${md5}.`, {
          param: 'md5',
        })
      const keptMs = Math.min(rules.retention_ms, upload.file_expires_after_ms ?? rules.retention_ms)
      return await store.write(async (tx) => {
        const current = await lockUpload(tx, project_id, id, clock.now())
        if (current?.completion_attempt !== attempt) return null
        const ended = { status: 'completed' as const, file_id: received.id }
        if (!(await endUpload(tx, id, ended, now))) return null
        await checkQuotas(tx, owner, { stored_bytes: bytes })
        return await insertUpload(tx, { ...received, purpose: 'batch', expires_at: now + keptMs }, order)
      })
    }
    const file = await commitOrDiscard(commit, () => discard(sealed, received))
    if (file) return { upload: { ...upload, status: 'completed', file_id: file.id }, file }
    await discard(sealed, received)
    return null
  }

  async #partBlobs(upload: UploadRow, part_ids: readonly string[]): Promise<SealedBlob[]> {
    const { read } = this.#deps.store
    const param = 'part_ids'
    if (new Set(part_ids).size < part_ids.length) throw invalidParam(param, '`part_ids` names a part twice.')
    const blobs: SealedBlob[] = []
    for (const id of part_ids) {
      const part = await readRow(read, 'upload_parts', { upload_id: upload.id, id })
      const blob = part && (await readBlobRow(read, part.blob))
      if (!blob) {
        const message = `\`part_ids\` names ${JSON.stringify(id.slice(0, 60))}, which is no part of this upload.`
        throw new ApiError('upload_mismatch', message, { param })
      }
      blobs.push(blob)
    }
    return blobs
  }

  /** Renews the lease until the function that it returns is called. */
  #renew(id: string, attempt: number): () => void {
    const { store, clock } = this.#deps
    // The lease outlasts two failed renewals.
    return every(clock, LEASE_MS / RENEWALS_PER_LEASE, () =>
      store.write((tx) => renewCompletion(tx, id, { attempt, lease_ms: LEASE_MS })).catch(() => {}),
    )
  }
}

/** The stored error of another call for the same parts. */
function failureOf(text: string): ApiError {
  const { code, message, param } = Object(JSON.parse(text))
  if (!isErrorCode(code)) throw new Error(`an upload failed with the code ${code}, which is not known here`)
  return new ApiError(code, String(message), typeof param === 'string' ? { param } : {})
}
