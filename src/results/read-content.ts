// Reads stored content, a bounded part of it in memory: the content of a file (readContent), a span of a blob
// (streamSpan), or many spans in a given order, from any number of blobs (readSpans).
import { type ByteRange, isDamaged } from '../blobs/blobs.ts'
import type { SealedBlobs } from '../blobs/sealed.ts'
import { mapAhead, Slots } from '../domain/project-queue.ts'
import { readBlobRow } from '../store/blobs.ts'
import { stretchesOf } from '../store/chunks.ts'
import type { ChunkRow, FileRow } from '../store/schema.ts'
import type { Reader } from '../store/store.ts'
import { placesInBlobs, readLineIndex, type Span } from './line-index.ts'

// Reading ahead costs a few frames of memory per reader, for as long as a slow reader takes. With many readers, each
// has only the piece in memory that it is being sent.

export interface Ports {
  db: Reader
  sealed: SealedBlobs
}

/** The number of streams that may read ahead. */
const AHEAD_MAX = 16
/** The number of streams up to which a piece is a frame, which is opened once; beyond it, a quarter of a frame. */
const WHOLE_FRAMES_MAX = 64
const FRAME_BYTES = 256 * 1024
const QUARTER_BYTES = FRAME_BYTES / 4

/** The limit of pieces opened at once: each takes three times its size, stored, decrypted and decompressed. */
const OPENED_MAX = 8

/** The number of open streams of this process. */
let streams = 0
const opened = new Slots(OPENED_MAX)

/** Streams a span. Throws BlobMissing, BlobDamaged, BlobStoreFailed. */
export async function* streamSpan(
  sealed: SealedBlobs,
  { project_id, blob, range }: Span,
): AsyncGenerator<Buffer, void, undefined> {
  streams++
  try {
    if (streams <= AHEAD_MAX) {
      yield* sealed.read(project_id, blob, range)
      return
    }
    for (let start = range.start; start < range.end; ) {
      const pieceBytes = streams <= WHOLE_FRAMES_MAX ? FRAME_BYTES : QUARTER_BYTES
      const end = Math.min(range.end, (Math.floor(start / pieceBytes) + 1) * pieceBytes)
      yield await opened.run(() => sealed.readAll(project_id, blob, { start, end }))
      start = end
    }
  } finally {
    streams--
  }
}

/** Bytes that are in memory, or a span to read. */
export type Bytes = Buffer | Span

/** The default size of a window. A longer span is streamed by itself. */
const WINDOW_BYTES = 2 * 1024 * 1024
/** The gap up to which neighbouring spans are read together. */
const GAP_BYTES_MAX = 4 * 1024
/** The limit of concurrent reads. */
const READS_MAX = 4

export function bytesIn(bytes: Bytes): number {
  return Buffer.isBuffer(bytes) ? bytes.length : bytes.range.end - bytes.range.start
}

/**
 * Yields the bytes of spans in order. `moved` returns the new location of a span (by number) whose blob was deleted
 * meanwhile. Throws BlobMissing, BlobDamaged, BlobStoreFailed.
 */
export async function* readSpans(
  sealed: SealedBlobs,
  all: readonly Bytes[],
  {
    windowBytes: windowBytesMax = WINDOW_BYTES,
    moved,
  }: { windowBytes?: number; moved?: (number: number) => Promise<Span | undefined> } = {},
): AsyncGenerator<Buffer, void, undefined> {
  const read = async (from: number, to: number): Promise<Buffer[]> => {
    const window = all.slice(from, to)
    try {
      return await readWindow(sealed, window)
    } catch (error) {
      if (!moved || !isDamaged(error)) throw error
      const again = await Promise.all(window.map(async (bytes, i) => (await moved(from + i)) ?? bytes))
      return await readWindow(sealed, again)
    }
  }
  let from = 0
  let windowBytes = 0
  for (const [number, bytes] of all.entries()) {
    const length = bytesIn(bytes)
    const alone = length > windowBytesMax && !Buffer.isBuffer(bytes)
    if (number > from && (alone || windowBytes + length > windowBytesMax)) {
      yield* await read(from, number)
      from = number
      windowBytes = 0
    }
    if (alone) {
      yield* streamMoved(sealed, bytes, () => moved?.(number))
      from = number + 1
    } else windowBytes += length
  }
  if (from < all.length) yield* await read(from, all.length)
}

/** The audit records at these spans. */
export async function readRecords(sealed: SealedBlobs, spans: readonly Span[]): Promise<string[]> {
  const pieces = await Array.fromAsync(readSpans(sealed, spans))
  return Buffer.concat(pieces).toString('utf8').split('\n')
}

/** Streams a span, from its new location if its blob is deleted before the first byte was read. */
async function* streamMoved(
  sealed: SealedBlobs,
  span: Span,
  moved: () => Promise<Span | undefined> | undefined,
): AsyncGenerator<Buffer, void, undefined> {
  let begun = false
  try {
    for await (const piece of streamSpan(sealed, span)) {
      begun = true
      yield piece
    }
  } catch (error) {
    const again = begun || !isDamaged(error) ? undefined : await moved()
    if (!again) throw error
    yield* streamSpan(sealed, again)
  }
}

/** A range that is read at once, and the window's spans in it. */
interface Reading extends Span {
  parts: { place: number; range: ByteRange }[]
}

async function readWindow(sealed: SealedBlobs, window: readonly Bytes[]): Promise<Buffer[]> {
  const found = new Array<Buffer>(window.length)
  const toRead: { place: number; span: Span }[] = []
  for (const [place, bytes] of window.entries()) {
    if (Buffer.isBuffer(bytes)) found[place] = bytes
    else toRead.push({ place, span: bytes })
  }
  const read = async ({ project_id, blob, range, parts }: Reading): Promise<void> => {
    const bytes = await sealed.readAll(project_id, blob, range)
    for (const { place, range: own } of parts)
      found[place] = bytes.subarray(own.start - range.start, own.end - range.start)
  }
  for await (const _ of mapAhead(readTogether(toRead), READS_MAX - 1, read));
  return found
}

function readTogether(toRead: readonly { place: number; span: Span }[]): Reading[] {
  const inOrder = toRead.toSorted(({ span: a }, { span: b }) => {
    if (a.blob.key === b.blob.key) return a.range.start - b.range.start
    return a.blob.key < b.blob.key ? -1 : 1
  })
  const readings: Reading[] = []
  for (const { place, span } of inOrder) {
    const { range } = span
    const last = readings.at(-1)
    if (last?.blob.key === span.blob.key && range.start - last.range.end <= GAP_BYTES_MAX) {
      last.range = { start: last.range.start, end: Math.max(last.range.end, range.end) }
      last.parts.push({ place, range })
    } else readings.push({ ...span, parts: [{ place, range }] })
  }
  return readings
}

// The content of an upload is one blob; that of a result file is the sealed chunks of its batch in order. While one
// chunk is sent, the next is opened.

/** A part of a blob, or parts of the blobs of several chunks by turns. */
type Piece = { key: string; range: ByteRange } | { spans: Span[]; chunks: number }

/** The limit of readers whose windows have a frame of each chunk: smaller windows read a frame several times. */
const WIDE_MAX = 4
let wide = 0

export type Content = Pick<FileRow, 'id' | 'project_id' | 'content_blob' | 'batch_id' | 'part' | 'bytes'>

/** The bytes of `range`, which lies within the file. Throws if the file is deleted meanwhile. */
export async function* readContent(ports: Ports, file: Content, range: ByteRange): AsyncGenerator<Buffer> {
  const pieces =
    file.content_blob === null ? resultPieces(ports, file, range) : [{ key: file.content_blob, range }]
  const open = new Set<AsyncGenerator<Buffer>>()
  const begin = async (
    piece: Piece,
  ): Promise<{ first: IteratorResult<Buffer>; bytes: AsyncGenerator<Buffer> }> => {
    const bytes = readPiece(ports, file.project_id, piece)
    open.add(bytes)
    return { first: await bytes.next(), bytes }
  }
  try {
    for await (const { first, bytes } of mapAhead(pieces, 1, begin)) {
      if (!first.done) {
        yield first.value
        yield* bytes
      }
      open.delete(bytes)
    }
  } finally {
    // The reader may stop early.
    for (const bytes of open) await bytes.return(undefined)
  }
}

async function* readPiece({ db, sealed }: Ports, project_id: string, piece: Piece): AsyncGenerator<Buffer> {
  if ('spans' in piece) {
    const isWide = wide < WIDE_MAX
    wide += Number(isWide)
    const windowBytes = Math.max(WINDOW_BYTES, isWide ? piece.chunks * FRAME_BYTES : 0)
    try {
      return yield* readSpans(sealed, piece.spans, { windowBytes })
    } finally {
      wide -= Number(isWide)
    }
  }
  const blob = await readBlobRow(db, piece.key)
  if (!blob) throw destroyed(piece.key)
  yield* streamSpan(sealed, { project_id, blob, range: piece.range })
}

async function* resultPieces(ports: Ports, file: Content, range: ByteRange): AsyncGenerator<Piece> {
  const { batch_id, part } = file
  if (batch_id === null || part === null) return
  let offset = 0
  for await (const stretch of stretchesOf(ports.db, batch_id)) {
    const bytes = stretch.reduce((sum, chunk) => sum + chunk[`${part}_bytes`], 0)
    const wanted = { start: Math.max(range.start - offset, 0), end: Math.min(range.end - offset, bytes) }
    const key = stretch[0][`${part}_blob`]
    if (wanted.start < wanted.end) {
      if (stretch.length > 1)
        yield { spans: cutSpans(await linesInTurn(ports, stretch, part), wanted), chunks: stretch.length }
      else if (key !== null) yield { key, range: wanted }
    }
    offset += bytes
    if (offset >= range.end) return
  }
  // The database is damaged. The response has announced the missing bytes, and the caller would wait for them.
  if (offset < range.end)
    throw new Error(`the chunks of ${file.id} hold ${offset} bytes, but the file has ${file.bytes}`)
}

/** The result lines of chunks that share a stretch, in the order of the input. */
async function linesInTurn(
  { db, sealed }: Ports,
  stretch: readonly ChunkRow[],
  part: 'output' | 'error',
): Promise<Span[]> {
  const all = await Promise.all(
    stretch.map(async ({ project_id, audit_blob, output_blob, error_blob }) => {
      const key = part === 'output' ? output_blob : error_blob
      const audit = await readBlobRow(db, audit_blob ?? '')
      const blob = key === null ? undefined : await readBlobRow(db, key)
      if (!audit || (key !== null && !blob)) throw destroyed(key ?? `${audit_blob}`)
      const index = await readLineIndex(sealed, project_id, audit)
      return placesInBlobs(index, { project_id, audit, output: blob, error: blob })
    }),
  )
  const lines = all.flat().filter((one) => one.part === part)
  return lines.sort((a, b) => a.line - b.line).flatMap(({ result }) => result ?? [])
}

/** The part of their bytes, one behind the other, that `range` has. */
function cutSpans(spans: readonly Span[], { start, end }: ByteRange): Span[] {
  let at = 0
  return spans.flatMap((span) => {
    const from = span.range.start - at
    at += bytesIn(span)
    const range = {
      start: Math.max(span.range.start, from + start),
      end: Math.min(span.range.end, from + end),
    }
    return range.start < range.end ? [{ ...span, range }] : []
  })
}

/** The error for a file that was deleted while it was being read. */
function destroyed(key: string): Error {
  return new Error(`the content in ${key} has been destroyed`)
}
