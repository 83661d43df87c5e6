// The input file of a batch on its way to the service: it is uploaded from disk, a large one in parts, with progress and a
// hash of the bytes that are sent; its endpoint is read, and the model in its lines replaced, as bytes.
import { createHash } from 'node:crypto'
import { createReadStream, type Stats } from 'node:fs'
import { access, constants, stat } from 'node:fs/promises'
import { basename } from 'node:path'
import { Readable } from 'node:stream'
import type { FormData } from 'undici'
import { type BatchEndpoint, DEFAULT_ENDPOINT, type EndpointPath, MIXED } from '../../domain/endpoint.ts'
import type { UploadPurpose } from '../../domain/file.ts'
import { byteLines, hasByteOrderMark, jsonLines, LINE_BREAK } from '../../jsonl/byte-lines.ts'
import { LineScanner } from '../../jsonl/line-scan.ts'
import { FileObject, UploadObject, UploadPartObject } from '../../wire/file.ts'
import { Failure } from '../terminal/failure.ts'
import { type ProgressView, uploadLine } from '../terminal/progress-view.ts'
import { counted } from '../terminal/terminal.ts'
import type { ApiClient } from './client.ts'

interface Uploaded {
  file: FileObject
  /** The SHA-256 of the sent bytes in hex. */
  sha256: string
}

export async function uploadInput(
  client: ApiClient,
  path: string,
  view: Pick<ProgressView, 'show'>,
  purpose: UploadPurpose = 'batch',
): Promise<Uploaded> {
  const onProgress = (sent: number, total: number): void =>
    view.show('uploading', (columns, paint) => uploadLine(sent, total, columns, paint))
  const found = await checkInput(path)
  const input = { path, filename: basename(path), start: 0, bytes: found.size }
  // Only input files of batches are uploaded in parts.
  if (found.size > PART_BYTES && purpose === 'batch') return await uploadInParts(client, input, onProgress)
  let hash = createHash('sha256')
  const body = (): Promise<FormData> => {
    let sent = 0
    hash = createHash('sha256')
    const content = new Slice(input, (block) => {
      hash.update(block)
      sent += block.length
      onProgress(sent, found.size)
    })
    return form({ purpose, file: content })
  }
  const file = await client.object(FileObject, { method: 'POST', path: '/v1/files', body })
  return { file, sha256: hash.digest('hex') }
}

/** Throws where this user cannot read a file at `path`. */
export async function checkInput(path: string): Promise<Stats> {
  await access(path, constants.R_OK)
  const found = await stat(path)
  if (found.isFile()) return found
  throw new Failure(`${path} is not a regular file; give the path of a JSONL file, or of a table`)
}

export async function hashFile(path: string): Promise<string> {
  return (await hashesOf({ path }, 'sha256')).sha256
}

// Uploads a large file in parts, several at once. A part that is broken off is sent again by itself, and an upload that
// is interrupted goes on where it stopped: parts that have arrived are recognized by their content.

const PART_BYTES = 64 * 1024 * 1024
const AT_ONCE = 4
const READ_BYTES = 1024 * 1024
/** The most pending uploads that are searched for one of the same file. */
const PENDING_MAX = 1000
const PARTS_MAX = 10_000

interface Place {
  path: string
  filename: string
  /** The offset of the part in the file. */
  start: number
  /** The most bytes that are read, so that a growing file does not exceed the declared length. */
  bytes: number
}

/** Uploads a file in parts. `onProgress` gets the bytes sent or already there. Returns the file and its SHA-256. */
export async function uploadInParts(
  client: ApiClient,
  file: Omit<Place, 'start'>,
  onProgress: (sent: number, total: number) => void,
  part_bytes = PART_BYTES,
): Promise<{ file: FileObject; sha256: string }> {
  const { upload, arrived } = await findOrCreate(client, file)
  const hashes = hashesOf({ ...file, start: 0 }, 'md5', 'sha256')
  // The failure is thrown where the hashes are awaited.
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
        const known = arrived.size > 0 ? arrived.get((await hashesOf(slice, 'sha256')).sha256) : undefined
        part_ids[index] =
          known ?? (await sendPart(client, upload.id, slice, (bytes) => progress(index, bytes)))
        progress(index, slice.bytes)
      } catch (error) {
        failed = true
        throw error
      }
    }
  }
  // After an error, parts in flight may still arrive: the next attempt need not send them.
  const ended = await Promise.allSettled(Array.from({ length: AT_ONCE }, work))
  for (const one of ended) if (one.status === 'rejected') throw one.reason
  const { md5, sha256 } = await hashes
  const done = await client.post(UploadObject, `/v1/uploads/${upload.id}/complete`, { part_ids, md5 })
  if (!done.file) throw new Failure(`the file of ${upload.id} was deleted as soon as it was made`)
  return { file: done.file, sha256 }
}

/** Finds a pending upload of such a file, with its parts by their SHA-256, or creates one. */
async function findOrCreate(
  client: ApiClient,
  { filename, bytes }: Pick<Place, 'filename' | 'bytes'>,
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

async function sendPart(
  client: ApiClient,
  upload_id: string,
  slice: Place,
  onSent: (bytes: number) => void,
): Promise<string> {
  const body = (): Promise<FormData> => {
    let sent = 0
    onSent(0)
    const data = new Slice(slice, (block) => {
      sent += block.length
      onSent(sent)
    })
    return form({ data })
  }
  const path = `/v1/uploads/${upload_id}/parts`
  return (await client.object(UploadPartObject, { method: 'POST', path, body })).id
}

/** The digests of a file in hex, in one pass: the service checks them against the content. */
async function hashesOf<A extends string>(
  { path, start = 0, bytes = Number.POSITIVE_INFINITY }: Pick<Place, 'path'> & Partial<Place>,
  ...algorithms: A[]
): Promise<Record<A, string>> {
  const hashes = algorithms.map((name) => [name, createHash(name)] as const)
  const end = start + bytes - 1
  const blocks: AsyncIterable<Buffer> = createReadStream(path, { start, end, highWaterMark: READ_BYTES })
  for await (const block of blocks) for (const [, hash] of hashes) hash.update(block)
  return Object.fromEntries(hashes.map(([name, hash]) => [name, hash.digest('hex')])) as Record<A, string>
}

/** Makes a multipart form with the fields in their order. */
async function form(fields: Readonly<Record<string, string | Slice>>): Promise<FormData> {
  const { FormData } = await import('undici')
  const made = new FormData()
  for (const [name, value] of Object.entries(fields)) made.set(name, value)
  return made
}

/** The bytes of a sent block, smaller than for hashing because each block is shown as progress. */
const SENT_BYTES = 256 * 1024

/** Bytes of a file on disk, read when they are sent: Node's Blob rejects a file that grows meanwhile. */
class Slice extends File {
  readonly #place: Place
  readonly #onBlock: (block: Buffer) => void

  constructor(place: Place, onBlock: (block: Buffer) => void) {
    super([], place.filename, { type: 'application/jsonl' })
    this.#place = place
    this.#onBlock = onBlock
  }

  override get size(): number {
    return this.#place.bytes
  }

  override stream(): ReturnType<File['stream']> {
    return Readable.toWeb(Readable.from(this.#blocks(), { objectMode: false }), { type: 'bytes' })
  }

  async *#blocks(): AsyncGenerator<Buffer> {
    const { path, start, bytes } = this.#place
    if (bytes === 0) return
    const end = start + bytes - 1
    const blocks: AsyncIterable<Buffer> = createReadStream(path, { start, end, highWaterMark: SENT_BYTES })
    for await (const block of blocks) {
      this.#onBlock(block)
      yield block
    }
  }
}

// The endpoint that a file of requests asks for, and the model in its lines.

interface FileAsks {
  /** The endpoint of the lines; DEFAULT_ENDPOINT where no line is a request. */
  endpoint: BatchEndpoint
  /** The models in the lines, each with its endpoint; empty where there are too many. */
  asks: { model: string; endpoint: EndpointPath }[]
  /** The entities that lines name, as far as they were read. */
  entities: string[]
}

/** Reads models, endpoints and entities from the beginning of a file. */
export async function asksOfFile(path: string): Promise<FileAsks> {
  return await asksOf(createReadStream(path, { end: ASKED_BYTES }))
}

/** Reads models, endpoints and entities from the first lines. */
export async function asksOf(bytes: AsyncIterable<Buffer>, linesMax = Infinity): Promise<FileAsks> {
  const scanner = new LineScanner({ validated: true })
  const found = new Map<string, FileAsks['asks'][number]>()
  const entities = new Set<string>()
  const endpoints = new Set<EndpointPath>()
  for await (const { line, number } of jsonLines(bytes)) {
    if (number > linesMax) break
    const scanned = scanner.scan(line, 0, line.length)
    // The last line may be cut off, and the service reports invalid lines.
    if (!scanned.ok) continue
    const { url: endpoint, entity } = scanned
    const { model } = scanned.body
    endpoints.add(endpoint)
    if (entity !== null && entities.size < ASKS_MAX) entities.add(entity)
    if (model !== null && found.size <= ASKS_MAX) found.set(`${endpoint} ${model}`, { model, endpoint })
  }
  const [first = DEFAULT_ENDPOINT] = endpoints
  return {
    endpoint: endpoints.size > 1 ? MIXED : first,
    asks: found.size > ASKS_MAX ? [] : [...found.values()],
    entities: [...entities],
  }
}

const ASKS_MAX = 20
/** The bytes of a file's beginning from which models are read. */
const ASKED_BYTES = 16 * 1024 * 1024

const NAMED_MAX = 3

/** The model that a run sets in its requests. */
export class ModelOverride {
  readonly model: string
  /** The number of lines by replaced model; null: a line without a model. */
  readonly #replaced = new Map<string | null, number>()

  constructor(model: string) {
    this.model = model
  }

  /** Sets the model in each line. Invalid lines stay unchanged: the service reports them. */
  async *lines(input: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
    const scanner = new LineScanner({ validated: true })
    const name = Buffer.from(JSON.stringify(this.model))
    for await (const { line: bytes } of byteLines(input)) {
      const line = scanner.scan(bytes, hasByteOrderMark(bytes, 0, bytes.length) ? 3 : 0, bytes.length)
      if (!line.ok || line.body.model === this.model) {
        yield Buffer.concat([bytes, LINE_BREAK])
        continue
      }
      const { span, model, model_spans } = line.body
      this.#replaced.set(model, (this.#replaced.get(model) ?? 0) + 1)
      const pieces: Uint8Array[] = []
      let at = 0
      for (const { start, end } of model_spans) {
        pieces.push(bytes.subarray(at, start), name)
        at = end
      }
      if (model_spans.length === 0) {
        at = span.start + 1
        const isEmpty = bytes.toString('utf8', at, span.end - 1).trim() === ''
        pieces.push(bytes.subarray(0, at), Buffer.from('"model":'), name, Buffer.from(isEmpty ? '' : ','))
      }
      yield Buffer.concat([...pieces, bytes.subarray(at), LINE_BREAK])
    }
  }

  /** A description: `sim-1, in place of gpt-4o in 300 lines`; null where the file named no other model. */
  get text(): string | null {
    if (this.#replaced.size === 0) return null
    const all = [...this.#replaced].sort(([, a], [, b]) => b - a)
    const parts = all
      .slice(0, NAMED_MAX)
      .map(([model, lines]) => `${model ?? 'no model'} in ${counted(lines, 'line')}`)
    const more = all.length - parts.length
    return `${this.model}, in place of ${parts.join(', ')}${more > 0 ? ` and ${counted(more, 'other')}` : ''}`
  }
}
