// Uploads an input file from disk, a large one in parts; reports progress and hashes the bytes that it sends.
import { createHash, randomBytes } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { stat } from 'node:fs/promises'
import { basename } from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { FileObject, UploadObject, UploadPartObject } from '../../wire/file.ts'
import { Failure } from '../terminal/failure.ts'
import { type ProgressView, uploadLine } from '../terminal/progress-view.ts'
import type { ApiClient } from './client.ts'

interface Uploaded {
  file: FileObject
  /** Of the bytes that were sent, in hex. */
  sha256: string
}

export async function uploadInput(
  client: ApiClient,
  path: string,
  view: Pick<ProgressView, 'show'>,
): Promise<Uploaded> {
  const filename = basename(path)
  const onProgress = (sent: number, total: number): void =>
    view.show('uploading', (columns, paint) => uploadLine(sent, total, columns, paint))
  const found = await stat(path)
  if (!found.isFile()) throw new Failure(`${path} is not a regular file; give the path of a JSONL file`)
  if (found.size > PART_BYTES)
    return await uploadInParts(client, { path, filename, bytes: found.size }, onProgress)
  let hash = createHash('sha256')
  const file = await client.send(FileObject, {
    method: 'POST',
    path: '/v1/files',
    body: () => {
      let sent = 0
      hash = createHash('sha256')
      return multipartFile({ purpose: 'batch' }, { path, filename, bytes: found.size }, (block) => {
        hash.update(block)
        sent += block.length
        onProgress(sent, found.size)
      })
    },
  })
  return { file, sha256: hash.digest('hex') }
}

/** SHA-256 of a file, in hex. */
export async function hashFile(path: string): Promise<string> {
  const hash = createHash('sha256')
  await pipeline(createReadStream(path, { highWaterMark: 1024 * 1024 }), hash)
  return hash.digest('hex')
}

// Uploads a large file in parts, several at once. A part that is broken off is sent again by itself, and an upload that
// is interrupted goes on where it stopped: the parts that have arrived are told by their content, whoever sent them.

const PART_BYTES = 64 * 1024 * 1024
const AT_ONCE = 4
const READ_BYTES = 1024 * 1024
/** Pending uploads that are searched for one of the same file. */
const PENDING_MAX = 1000
const PARTS_MAX = 10_000

interface LargeFile {
  path: string
  filename: string
  bytes: number
}

/** Calls `onProgress` with the bytes that have been sent or were there. Returns the file and the SHA-256 of its content. */
export async function uploadInParts(
  client: ApiClient,
  file: LargeFile,
  onProgress: (sent: number, total: number) => void,
  part_bytes = PART_BYTES,
): Promise<{ file: FileObject; sha256: string }> {
  const { upload, arrived } = await findOrCreate(client, file)
  const hashes = hashesOf(file)
  // Its failure is reported where it is awaited.
  hashes.catch(() => {})
  const starts = Array.from({ length: Math.ceil(file.bytes / part_bytes) }, (_, i) => i * part_bytes)
  const part_ids: string[] = []
  const sent: number[] = []
  const progress = (index: number, bytes: number): void => {
    sent[index] = bytes
    onProgress(
      sent.reduce((sum, one) => sum + one, 0),
      file.bytes,
    )
  }
  let next = 0
  let failed = false
  const work = async (): Promise<void> => {
    while (next < starts.length && !failed) {
      const index = next++
      const start = starts[index]!
      const slice = { ...file, start, bytes: Math.min(part_bytes, file.bytes - start) }
      try {
        const known = arrived.size > 0 ? arrived.get(await sha256Of(slice)) : undefined
        part_ids[index] =
          known ?? (await sendPart(client, upload.id, slice, (bytes) => progress(index, bytes)))
        progress(index, slice.bytes)
      } catch (error) {
        failed = true
        throw error
      }
    }
  }
  // After an error, the parts under way may still arrive: the next attempt need not send them.
  const ended = await Promise.allSettled(Array.from({ length: AT_ONCE }, work))
  for (const one of ended) if (one.status === 'rejected') throw one.reason
  const { md5, sha256 } = await hashes
  const done = await client.post(UploadObject, `/v1/uploads/${upload.id}/complete`, { part_ids, md5 })
  if (!done.file) throw new Failure(`the file of ${upload.id} was deleted as soon as it was made`)
  return { file: done.file, sha256 }
}

/** An upload of such a file that was begun before, with its parts by their SHA-256; else a new one. */
async function findOrCreate(
  client: ApiClient,
  { filename, bytes }: LargeFile,
): Promise<{ upload: UploadObject; arrived: ReadonlyMap<string, string> }> {
  const pending = await client.list(UploadObject, '/v1/uploads', PENDING_MAX, { status: 'pending' })
  const begun = pending.find((one) => one.filename === filename && one.bytes === bytes)
  if (begun) {
    const parts = await client.list(UploadPartObject, `/v1/uploads/${begun.id}/parts`, PARTS_MAX)
    return { upload: begun, arrived: new Map(parts.map(({ sha256, id }) => [sha256, id])) }
  }
  const order = { filename, bytes, purpose: 'batch', mime_type: 'application/jsonl' }
  return { upload: await client.post(UploadObject, '/v1/uploads', order), arrived: new Map() }
}

interface Slice extends LargeFile {
  start: number
}

async function sendPart(
  client: ApiClient,
  upload_id: string,
  slice: Slice,
  onSent: (bytes: number) => void,
): Promise<string> {
  const part = await client.send(UploadPartObject, {
    method: 'POST',
    path: `/v1/uploads/${upload_id}/parts`,
    body: () => {
      let sent = 0
      onSent(0)
      return multipartFile({}, { ...slice, field: 'data' }, (block) => {
        sent += block.length
        onSent(sent)
      })
    },
  })
  return part.id
}

async function sha256Of({ path, start, bytes }: Slice): Promise<string> {
  const hash = createHash('sha256')
  const read = createReadStream(path, { start, end: start + bytes - 1, highWaterMark: READ_BYTES })
  await pipeline(read, hash)
  return hash.digest('hex')
}

/** Of the whole, in one pass: the service checks that it has the content that was hashed. */
async function hashesOf({ path, bytes }: LargeFile): Promise<{ md5: string; sha256: string }> {
  const md5 = createHash('md5')
  const sha256 = createHash('sha256')
  const blocks: AsyncIterable<Buffer> = createReadStream(path, { end: bytes - 1, highWaterMark: READ_BYTES })
  for await (const block of blocks) {
    md5.update(block)
    sha256.update(block)
  }
  return { md5: md5.digest('hex'), sha256: sha256.digest('hex') }
}

interface FilePart {
  path: string
  filename: string
  /** The name of its field; `file` if not given. */
  field?: string
  /** Where in the file it begins; 0 if not given. */
  start?: number
  /** At most this many bytes are read, so that a file that grows does not exceed the declared length. */
  bytes: number
}

interface MultipartBody {
  headers: Record<string, string>
  content: Readable
}

/** Smaller than for hashing: each is shown as progress. */
const SENT_BYTES = 256 * 1024

/**
 * A file from disk as multipart/form-data (RFC 7578) with a known length. `fields` are sent before the file; `onBlock` is
 * called with each block of the file.
 */
function multipartFile(
  fields: Readonly<Record<string, string>>,
  file: FilePart,
  onBlock: (block: Buffer) => void,
): MultipartBody {
  const { start = 0 } = file
  const boundary = `offpeak-${randomBytes(16).toString('hex')}`
  const before = Buffer.from(
    Object.entries(fields)
      .map(
        ([name, value]) =>
          `--${boundary}\r\ncontent-disposition: form-data; name="${name}"\r\n\r\n${value}\r\n`,
      )
      .join('') +
      `--${boundary}\r\ncontent-disposition: form-data; name="${file.field ?? 'file'}"; filename="${quoted(file.filename)}"\r\n` +
      'content-type: application/jsonl\r\n\r\n',
  )
  const after = Buffer.from(`\r\n--${boundary}--\r\n`)
  async function* content(): AsyncGenerator<Buffer> {
    yield before
    if (file.bytes > 0) {
      const blocks: AsyncIterable<Buffer> = createReadStream(file.path, {
        start,
        end: start + file.bytes - 1,
        highWaterMark: SENT_BYTES,
      })
      for await (const block of blocks) {
        onBlock(block)
        yield block
      }
    }
    yield after
  }
  return {
    headers: {
      'content-type': `multipart/form-data; boundary=${boundary}`,
      'content-length': String(before.length + file.bytes + after.length),
    },
    content: Readable.from(content(), { objectMode: false }),
  }
}

/** Escapes a file name as the WHATWG's form encoding does. */
function quoted(filename: string): string {
  return filename.replaceAll('\r', '%0D').replaceAll('\n', '%0A').replaceAll('"', '%22')
}
