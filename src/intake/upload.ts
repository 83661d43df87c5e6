// Receives an input file. The file part streams into a sealed blob in constant memory, whatever the order of the form
// fields. A large file is validated while it arrives, and if it is valid, its index is stored too. A file exists as
// soon as its row is committed; an upload that is interrupted or rejected leaves neither row nor blob.
import { createHash, type Hash } from 'node:crypto'
import { discardBlobs, type SealedBlob, type SealedBlobs } from '../blobs/sealed.ts'
import { ApiError, invalidParam } from '../domain/errors.ts'
import { COMPRESSION_BYTES, compressionOf, UPLOAD_PURPOSES, type UploadPurpose } from '../domain/file.ts'
import { freeBuffer } from '../domain/free-buffer.ts'
import { newId } from '../domain/ids.ts'
import { shortened } from '../domain/text.ts'
import { insertBlobs } from '../store/blobs.ts'
import { insertRow, readRow } from '../store/rows.ts'
import type { FileRow } from '../store/schema.ts'
import { DatabaseFull, type Ports, type Writer } from '../store/store.ts'
import { insertTask, sizeClass } from '../store/tasks.ts'
import { noFormat } from '../tables/open-table.ts'
import { formatOf } from '../tables/table.ts'
import type { TakeBytes } from './incoming.ts'
import { StoredIds } from './stored-ids.ts'
import type { StreamingUpload, StreamingValidation } from './streaming-validation.ts'

/** One part of a multipart form from the parser; a file must be read before the next part. */
export type FormPart =
  | { type: 'field'; fieldname: string; value: unknown }
  | { type: 'file'; fieldname: string; filename?: string; file: AsyncIterable<Buffer> }

/** The form of a file that the service itself makes. */
export async function* formOfFile(filename: string, file: AsyncIterable<Buffer>): AsyncGenerator<FormPart> {
  yield { type: 'field', fieldname: 'purpose', value: 'batch' }
  yield { type: 'file', fieldname: 'file', filename, file }
}

/** The retention of a file made from `file`: never longer, since the owner wants the content deleted by then. */
export function retainAs<U extends Pick<Upload, 'retention_ms'>>(
  { created, expires_at }: Pick<FileRow, 'created' | 'expires_at'>,
  upload: U,
): U {
  return { ...upload, retention_ms: Math.min(upload.retention_ms, expires_at - created) }
}

export interface Upload {
  project_id: string
  /** The time of the upload, Unix ms. */
  now: number
  retention_ms: number
  file_bytes_max: number
  /** The size of the form from `Content-Length`; 0 without that header. */
  form_bytes: number
  /** Counts each piece before it is stored. */
  take: TakeBytes
  /** The algorithm of the requested hash of the content. */
  digest?: 'sha256' | 'md5'
}

export interface UploadDeps extends Pick<Ports, 'store' | 'sealed'> {
  /** Validates large files while they arrive; without it, all files are validated from their blobs. */
  streamingValidation?: StreamingValidation
}

/** A complete form: its content is stored, and no row refers to the content yet. */
interface Received extends StoredUpload {
  id: string
  purpose: UploadPurpose
  filename: string
  /** The requested hash of the content, hex; null without a request. */
  digest: string | null
  /** The expiry of the file, Unix ms. */
  expires_at: number
}

/** Reads a form and stores its file. Throws an ApiError for an invalid form, and the errors of `form`. */
export async function receiveForm(
  deps: Pick<UploadDeps, 'sealed' | 'streamingValidation'>,
  form: AsyncIterable<FormPart>,
  upload: Upload,
): Promise<Received> {
  const { sealed } = deps
  let received: ReceivedContent | undefined
  let purpose: UploadPurpose | undefined
  const expiry = new ExpiresAfter()
  try {
    for await (const part of form) {
      if (part.type === 'field') {
        if (part.fieldname === 'purpose') purpose = checkPurpose(part.value, purpose)
        else if (part.fieldname === 'file')
          throw invalidParam('file', '`file` must be sent as a file, with a filename, not as a plain field.')
        else if (!expiry.take(part.fieldname, part.value)) throw unknownField(part.fieldname)
        continue
      }
      if (part.fieldname !== 'file')
        throw invalidParam(
          part.fieldname,
          `The form accepts a file in the field \`file\` only, not in \`${part.fieldname}\`.`,
        )
      if (received)
        throw invalidParam('file', 'The form contains more than one `file`. Upload one file at a time.')
      const file = { filename: part.filename, content: part.file, purpose }
      received = await receiveContent(deps, file, upload)
    }
    if (!received) throw invalidParam('file', '`file` is required. Send the JSONL file as a file part.')
    if (purpose === undefined)
      throw invalidParam('purpose', '`purpose` is required; it must be "batch", or "table".')
    if (purpose === 'table') received = await asTable(sealed, received)
    return { ...received, purpose, expires_at: upload.now + Math.min(upload.retention_ms, expiry.ms) }
  } catch (error) {
    if (received) await discard(sealed, received)
    throw error
  }
}

type ReceivedContent = Omit<Received, 'expires_at' | 'purpose'>

/** The content as a table, without an index: its rows are checked when lines are made of them. */
async function asTable(sealed: SealedBlobs, received: ReceivedContent): Promise<ReceivedContent> {
  // Rows that arrived before the form's `purpose` may have been valid lines.
  await discardBlobs(sealed, received.index?.blobs ?? [])
  return { ...received, index: null }
}

/**
 * Stores the content of a future file; `purpose` may be unknown yet. Throws payload_too_large, and invalid_request for
 * compressed content that is no table.
 */
export async function receiveContent(
  deps: Pick<UploadDeps, 'sealed' | 'streamingValidation'>,
  file: { filename: string | undefined; content: AsyncIterable<Buffer>; purpose?: UploadPurpose | undefined },
  upload: Upload,
): Promise<ReceivedContent> {
  const { filename, content, purpose } = file
  const id = newId('file', upload.now)
  const hash = upload.digest === undefined ? null : createHash(upload.digest)
  const whole = bounded(content, upload.file_bytes_max, 'file', upload.take)
  const pieces = purpose === 'table' ? whole : uncompressed(whole)
  const ports = purpose === 'table' ? { sealed: deps.sealed } : deps
  const stored = await storeUpload(ports, hash ? hashed(pieces, hash) : pieces, { ...upload, id })
  return { id, filename: safeFilename(filename), digest: hash?.digest('hex') ?? null, ...stored }
}

/** Deletes stored content to which no row refers. */
export async function discard(
  sealed: SealedBlobs,
  { content, index }: Pick<Received, 'content' | 'index'>,
): Promise<void> {
  await discardBlobs(sealed, [content, ...(index?.blobs ?? [])])
}

/**
 * Inserts the row of the new file, `pending`, and the task that validates it. Throws the errors of receiveForm, and
 * those of `check`, which runs in the same transaction.
 */
export async function receiveUpload(
  deps: UploadDeps,
  form: AsyncIterable<FormPart>,
  upload: Upload,
  check: (tx: Writer, bytes: number) => Promise<void> = async () => {},
): Promise<FileRow> {
  const { store, sealed } = deps
  const received = await receiveForm(deps, form, upload)
  const commit = (): Promise<FileRow> =>
    store.write(async (tx) => {
      await check(tx, received.content.bytes)
      return await insertUpload(tx, received, upload)
    })
  try {
    return await commitOrDiscard(commit, () => discard(sealed, received))
  } catch (error) {
    // A commit whose response was lost may have succeeded.
    const file =
      error instanceof ApiError ? undefined : await readRow(store.read, 'files', { id: received.id })
    if (file) return file
    throw error
  }
}

/**
 * Runs `commit`, and `discard` if it throws an ApiError or the database is full; the error stays that of `commit`. After
 * another error the commit may have taken effect, or may still do so and need the content; otherwise the sweep deletes it.
 */
export async function commitOrDiscard<T>(commit: () => Promise<T>, discard: () => Promise<void>): Promise<T> {
  try {
    return await commit()
  } catch (error) {
    if (error instanceof ApiError || error instanceof DatabaseFull) await discard().catch(() => {})
    throw error
  }
}

export async function insertUpload(
  tx: Writer,
  { id, purpose, filename, content, index, expires_at }: Received,
  { project_id, now }: Pick<Upload, 'project_id' | 'now'>,
): Promise<FileRow> {
  const isUnknown = purpose === 'table' && formatOf(filename) === undefined
  const status = isUnknown ? 'error' : purpose === 'table' ? 'processed' : 'pending'
  const file: FileRow = {
    id,
    project_id,
    purpose,
    filename,
    bytes: content.bytes,
    line_count: index?.line_count ?? 0,
    status,
    status_details: isUnknown ? `No table: ${noFormat(filename)}.` : null,
    errors: null,
    created: now,
    expires_at,
    deleted_at: null,
    content_blob: content.key,
    index_blob: index?.blobs[0].key ?? null,
    ids_blob: index?.blobs[1].key ?? null,
    batch_id: null,
    part: null,
    source: null,
    not_kept: 0,
  }
  await insertBlobs(tx, project_id, [content, ...(index?.blobs ?? [])], now)
  await insertRow(tx, 'files', file)
  if (purpose === 'table') return file
  // A file with an index is not read again.
  const large = index ? 0 : sizeClass(content.bytes)
  await insertTask(tx, { kind: 'validate', subject: id, project_id, large }, now)
  return file
}

export async function* hashed(pieces: AsyncIterable<Buffer>, hash: Hash): AsyncGenerator<Buffer> {
  for await (const piece of pieces) {
    hash.update(piece)
    yield piece
  }
}

export async function* bounded(
  source: AsyncIterable<Buffer>,
  bytes_max: number,
  param: string,
  take: TakeBytes,
): AsyncGenerator<Buffer> {
  let bytes = 0
  for await (const piece of source) {
    bytes += piece.length
    if (bytes > bytes_max)
      throw new ApiError('payload_too_large', `The ${param} is larger than ${bytes_max} bytes.`, { param })
    take(piece.length)
    yield piece
  }
}

/** The pieces of uncompressed content. Throws invalid_request for compressed content before the first piece. */
export async function* uncompressed(source: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  let beginning: Buffer | null = Buffer.alloc(0)
  for await (const piece of source) {
    if (beginning === null) {
      yield piece
      continue
    }
    beginning = beginning.length === 0 ? piece : Buffer.concat([beginning, piece])
    if (beginning.length < COMPRESSION_BYTES) continue
    rejectCompressed(beginning)
    yield beginning
    beginning = null
  }
  if (beginning === null || beginning.length === 0) return
  rejectCompressed(beginning)
  yield beginning
}

function rejectCompressed(beginning: Buffer): void {
  const compression = compressionOf(beginning)
  if (compression !== null)
    throw invalidParam(
      'file',
      `The file is compressed (${compression}). Upload the decompressed JSONL; of a table, send \`purpose\` before \`file\`.`,
    )
}

function checkPurpose(value: unknown, before: UploadPurpose | undefined): UploadPurpose {
  if (before !== undefined) throw invalidParam('purpose', '`purpose` is given twice.')
  const purpose = UPLOAD_PURPOSES.find((name) => name === value)
  if (purpose !== undefined) return purpose
  throw invalidParam(
    'purpose',
    `\`purpose\` must be "batch", or "table", not ${clip(JSON.stringify(value) ?? 'nothing')}.`,
  )
}

function unknownField(name: string): ApiError {
  return invalidParam(
    clip(name),
    `\`${clip(name)}\` is not a field of this form. The form has the fields \`purpose\`, \`file\`, \`expires_after[anchor]\` and \`expires_after[seconds]\`.`,
  )
}

function clip(text: string): string {
  return shortened(text, 60)
}

/**
 * Stores an upload as a sealed blob while it arrives. A large file is validated at the same time, and if it is valid,
 * its index is stored too.
 */
interface StoredUpload {
  content: SealedBlob
  /** The index of a file that streaming validation found valid; null for files that are validated from their blobs. */
  index: { blobs: readonly [index: SealedBlob, ids: SealedBlob]; line_count: number } | null
}

/** Stores a file while it arrives. Throws the errors of `pieces` and the blob store; then nothing is stored. */
async function storeUpload(
  { sealed, streamingValidation }: { sealed: SealedBlobs; streamingValidation?: StreamingValidation },
  pieces: AsyncIterable<Buffer>,
  { id, project_id, form_bytes }: { id: string; project_id: string; form_bytes: number },
): Promise<StoredUpload> {
  const ids = new StoredIds(sealed, project_id, `files/${id}/index-ids`)
  const validation = streamingValidation?.begin(project_id, form_bytes, ids) ?? null
  const read = Promise.withResolvers<void>()
  const storeIndex = async (): Promise<StoredUpload['index']> => {
    await read.promise
    try {
      const found = await validation?.verdict()
      const idIndex = found && (await ids.storeIndex(found.seed, found.ids))
      if (!idIndex) return null
      const index = await sealed.put(project_id, `files/${id}/index`, [Buffer.from(found.index_json)])
      return { blobs: [index, idIndex], line_count: found.line_count }
    } finally {
      await ids.discard()
    }
  }
  // Without an index the file is validated from its blob.
  const index = storeIndex().catch(() => null)
  try {
    const passed = passOn(pieces, validation, read.resolve)
    const content = await sealed.put(project_id, `files/${id}/upload`, passed)
    return { content, index: await index }
  } catch (error) {
    validation?.leave()
    read.resolve()
    await discardBlobs(sealed, (await index)?.blobs ?? [])
    throw error
  }
}

/** Passes the pieces on and frees each: the store copies a piece before it requests the next one. */
async function* passOn(
  pieces: AsyncIterable<Buffer>,
  validation: StreamingUpload | null,
  ended: () => void,
): AsyncGenerator<Buffer, void, undefined> {
  for await (const piece of pieces) {
    const wait = validation?.take(piece)
    if (wait) await wait
    yield piece
    // The memory of a shorter piece may hold other pieces.
    if (piece.byteLength === piece.buffer.byteLength) freeBuffer(piece)
  }
  ended()
}

// The expiry that a caller requests for a file, in the form of the OpenAI API: a number of seconds after creation.
// It can only shorten the retention of the plan.

const ANCHOR = 'expires_after[anchor]'
/** The limit of an expiry in seconds: 317 years, more than any retention. */
export const EXPIRES_AFTER_S_MAX = 9_999_999_999
const SECONDS = 'expires_after[seconds]'

/** Reads the two form fields of an expiry, in any order. */
class ExpiresAfter {
  /** The requested time from creation to expiry in ms; infinite without a request. */
  ms = Number.POSITIVE_INFINITY

  /** Reads a field; false for fields of other names. Throws invalid_request. */
  take(name: string, value: unknown): boolean {
    if (name === ANCHOR) {
      if (value !== 'created_at') throw badExpiry(ANCHOR, 'must be "created_at"')
      return true
    }
    if (name !== SECONDS) return false
    if (typeof value !== 'string' || !/^[1-9]\d{0,9}$/.test(value))
      throw badExpiry(SECONDS, 'must be a whole number of seconds, at least 1')
    if (this.ms !== Number.POSITIVE_INFINITY) throw badExpiry(SECONDS, 'is given twice')
    this.ms = Number(value) * 1000
    return true
  }
}

function badExpiry(param: string, problem: string): ApiError {
  return invalidParam(param, `\`${param}\` ${problem}.`)
}

// The filename of an upload is shown to users and sent in headers, so folders, line breaks, control characters and
// bidirectional controls are removed.

const LENGTH_MAX = 255
/** C0 and C1 controls, line and paragraph separators, and bidirectional controls. */
const UNSEEN = /[\p{Cc}\p{Zl}\p{Zp}\u200e\u200f\u202a-\u202e\u2066-\u2069]/gu

export function safeFilename(given: string | undefined): string {
  const name = (given ?? '').toWellFormed().split(/[/\\]/).at(-1) ?? ''
  const clean = [...name.replace(UNSEEN, '').trim()].slice(0, LENGTH_MAX).join('')
  return clean === '' || clean === '.' || clean === '..' ? 'upload.jsonl' : clean
}
