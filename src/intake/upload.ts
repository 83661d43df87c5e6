// Receives an input file. The file part streams into a sealed blob as it arrives, in constant memory and
// whatever the order of the form's fields. A big one is read along meanwhile, and its index stored with it, if
// all of it is in order. A file exists from the moment its row is committed; an upload that breaks off, or turns
// out to be unacceptable, leaves neither row nor blob.
import type { SealedBlobs } from '../blobs/sealed.ts'
import { Refusal } from '../domain/errors.ts'
import { newId } from '../domain/ids.ts'
import { insertBlobs } from '../store/blob-rows.ts'
import { insertFile, readFileRow } from '../store/files.ts'
import type { FileRow } from '../store/schema.ts'
import type { Store } from '../store/store.ts'
import { insertTask } from '../store/tasks.ts'
import type { EarlyReadings } from './early-readings.ts'
import { safeFilename } from './filename.ts'
import { type StoredUpload, storeUpload } from './store-upload.ts'

/** One part of a multipart form, as the parser hands it over; a file must be read before the next part comes. */
export type FormPart =
  | { type: 'field'; fieldname: string; value: unknown }
  | { type: 'file'; fieldname: string; filename?: string; file: AsyncIterable<Buffer> }

export interface Upload {
  project_id: string
  /** Unix ms. */
  now: number
  retention_ms: number
  file_bytes_max: number
  /** The size of the form as its sender gives it; 0 where it does not. */
  form_bytes: number
}

export interface UploadDeps {
  store: Store
  sealed: SealedBlobs
  /** Reads big files as they arrive; without it, every file is read afterwards. */
  early?: EarlyReadings
}

interface Received extends StoredUpload {
  id: string
  filename: string
}

/**
 * The row of the new file, `pending`, with its validation waiting to be taken up. Throws refusals for what is
 * wrong with the form, and whatever `form` throws. Fields that it does not know are ignored.
 */
export async function receiveUpload(
  deps: UploadDeps,
  form: AsyncIterable<FormPart>,
  upload: Upload,
): Promise<FileRow> {
  const { store, sealed } = deps
  let received: Received | undefined
  let purpose: unknown
  try {
    for await (const part of form) {
      if (part.type === 'field') {
        if (part.fieldname === 'purpose') purpose = checkPurpose(part.value)
        if (part.fieldname === 'file') throw notAFile()
        continue
      }
      if (part.fieldname !== 'file')
        throw refuse(part.fieldname, `The only file of this form is \`file\`, not \`${part.fieldname}\`.`)
      if (received) throw refuse('file', 'The form holds more than one `file`; upload one at a time.')
      const id = newId('file', upload.now)
      const stored = await storeUpload(deps, bounded(part.file, upload.file_bytes_max), { ...upload, id })
      received = { id, filename: safeFilename(part.filename), ...stored }
    }
    if (!received) throw refuse('file', '`file` is required: the JSONL file, sent as a file.')
    if (purpose === undefined) throw refuse('purpose', '`purpose` is required; it must be "batch".')
  } catch (error) {
    if (received) await sealed.delete(received.content.key)
    if (received?.index) await sealed.delete(received.index.blob.key)
    throw error
  }
  try {
    return await record(store, received, upload)
  } catch (error) {
    // It may have been accepted and only its answer lost. If it was not, or not yet, the content stays all the
    // same: a commit that is still on its way must find it, and where none is, the sweep takes it.
    const file = await readFileRow(store.read, received.id)
    if (file) return file
    throw error
  }
}

async function record(store: Store, received: Received, upload: Upload): Promise<FileRow> {
  const { id, filename, content, index } = received
  const { project_id, now } = upload
  const file: FileRow = {
    id,
    project_id,
    purpose: 'batch',
    filename,
    bytes: content.bytes,
    line_count: index?.line_count ?? 0,
    status: 'pending',
    status_details: null,
    errors: null,
    created: now,
    expires_at: now + upload.retention_ms,
    deleted_at: null,
    content_blob: content.key,
    index_blob: index?.blob.key ?? null,
    batch_id: null,
    part: null,
  }
  await store.write(async (tx) => {
    await insertBlobs(tx, project_id, index ? [content, index.blob] : [content], now)
    await insertFile(tx, file)
    await insertTask(tx, { kind: 'validate', subject: id, project_id }, now)
  })
  return file
}

async function* bounded(source: AsyncIterable<Buffer>, bytes_max: number): AsyncGenerator<Buffer> {
  let bytes = 0
  for await (const piece of source) {
    bytes += piece.length
    if (bytes > bytes_max)
      throw new Refusal('payload_too_large', `The file is larger than ${bytes_max} bytes.`, { param: 'file' })
    yield piece
  }
}

function checkPurpose(value: unknown): 'batch' {
  if (value === 'batch') return value
  throw refuse('purpose', `\`purpose\` must be "batch", not ${clip(JSON.stringify(value) ?? 'nothing')}.`)
}

function notAFile(): Refusal {
  return refuse('file', '`file` must be sent as a file, with a filename, not as a plain field.')
}

function refuse(param: string, message: string): Refusal {
  return new Refusal('invalid_request', message, { param })
}

function clip(text: string): string {
  return text.length > 60 ? `${text.slice(0, 60)}…` : text
}
