// Reads the finished lines of a batch: those of one chunk, from the blobs of a sealed chunk by the index at their end
// or from the journals of an open one; a page of the batch; or all of it as rows. A line is read from its location,
// without the others.
import { isDamaged } from '../blobs/blobs.ts'
import { BoundedMap } from '../domain/bounded-map.ts'
import { ApiError } from '../domain/errors.ts'
import { byteLines } from '../jsonl/byte-lines.ts'
import { lineNumbers, placesInChunk, selectLines } from '../jsonl/chunk-lines.ts'
import { readBatchInput } from '../store/batches.ts'
import { readBlobRow } from '../store/blobs.ts'
import { firstUnsealed, readChunkOfLine, readChunksOfLines, startOf, stretchesOf } from '../store/chunks.ts'
import { readExpiries, readVisibleResults } from '../store/files.ts'
import { readRow } from '../store/rows.ts'
import type { BatchRow, BlobRow, ChunkRow } from '../store/schema.ts'
import { LINE_BYTES_MAX, parseResultRow, type ResultRow } from '../tables/answer-cells.ts'
import { chunkKey } from './chunk-results.ts'
import { readChunkJournal } from './journal.ts'
import { type FinishedLine, placesInBlobs, readLineIndex, type Span } from './line-index.ts'
import { bytesIn, type Ports, readSpans } from './read-content.ts'

/** The ports for reading results and inputs for users. */
export interface ReadPorts extends Ports {
  /** The time (Unix ms) at which results and inputs must not have expired. */
  now: number
}

/** A line of the input file. */
export interface InputLine {
  line: number
  bytes: Buffer
}

/** The bytes of the lines of a chunk in the input of its batch; undefined if the input is deleted. */
export async function inputOfChunk(
  { db, sealed }: Ports,
  content: BlobRow | undefined,
  chunk: ChunkRow,
): Promise<Buffer | undefined> {
  const own = chunk.input_blob === null ? undefined : await readBlobRow(db, chunk.input_blob)
  let damage: unknown
  if (own)
    try {
      return await sealed.readAll(own.project_id, own)
    } catch (error) {
      if (!isDamaged(error)) throw error
      damage = error
    }
  // Lines of a stretch are in the batch's input as well, and those of single requests since their batch was closed, which may
  // have been after the row of the chunk was read.
  const isJoined = chunk.input_blob !== null && !content
  const input = isJoined ? (await readBatchInput(db, chunk.batch_id))?.content : content
  if (!input && damage !== undefined) throw damage
  if (!input) return undefined
  const range = { start: chunk.byte_start, end: chunk.byte_end }
  const numbers = lineNumbers(chunk)
  if (numbers === null) return await sealed.readAll(input.project_id, input, range)
  return await selectLines(sealed.read(input.project_id, input, range), startOf(chunk), numbers)
}

/** The lines of a chunk in the input of its batch, without blank ones. */
export async function inputLines(
  ports: Ports,
  content: BlobRow | undefined,
  chunk: ChunkRow,
): Promise<InputLine[]> {
  const bytes = (await inputOfChunk(ports, content, chunk)) ?? Buffer.alloc(0)
  const places = placesInChunk(bytes, chunk)
  return Array.from(places, (place) => ({ line: place.line, bytes: bytes.subarray(place.start, place.end) }))
}

/**
 * The lines of open chunks that were read last, as of a commit: calls that wait for one line read its chunk again and
 * again.
 */
const lastRead = new WeakMap<Ports['db'], BoundedMap<string, { commit: string; lines: FinishedLines }>>()
const LAST_READ_MAX = 32
type FinishedLines = Promise<readonly FinishedLine[]>

/** The finished lines in order; of a chunk sealed meanwhile from its blobs, but none of other deleted journals. */
export async function finishedLines(ports: ReadPorts, chunk: ChunkRow): FinishedLines {
  if (chunk.state === 'sealed') return await inBlobs(ports, chunk)
  const known = lastRead.get(ports.db) ?? new BoundedMap(LAST_READ_MAX)
  lastRead.set(ports.db, known)
  const [name, commit] = [chunkKey(chunk.batch_id, chunk.idx), `${chunk.epoch} ${chunk.commit_seq}`]
  const last = known.get(name)
  if (last?.commit === commit) return await last.lines
  const lines = inJournals(ports, chunk)
  known.set(name, { commit, lines })
  // Lines whose journals cannot be read now are looked for again.
  const isWhole = (all: readonly FinishedLine[]): boolean => all.length >= chunk.completed + chunk.failed
  lines.then(isWhole, () => false).then((isKept) => isKept || known.delete(name))
  return await lines
}

async function inJournals(ports: ReadPorts, chunk: ChunkRow): Promise<FinishedLine[]> {
  const { written, unusable } = await readChunkJournal(ports, chunk, false)
  if (written.length < chunk.completed + chunk.failed) {
    const now = await readRow(ports.db, 'chunks', { batch_id: chunk.batch_id, idx: chunk.idx })
    if (now?.state === 'sealed') return await inBlobs(ports, now)
  }
  for (const { part, error } of unusable)
    if (error !== null && (await readBlobRow(ports.db, part.journal_blob))) throw error
  return written.sort((a, b) => a.line - b.line)
}

/** The same of chunks that share a stretch. */
async function finishedTogether(
  ports: ReadPorts,
  stretch: readonly ChunkRow[],
): Promise<(FinishedLine & { chunk: ChunkRow })[]> {
  const all = await Promise.all(
    stretch.map(async (chunk) => (await finishedLines(ports, chunk)).map((line) => ({ ...line, chunk }))),
  )
  return all.length === 1 ? all[0]! : all.flat().sort((a, b) => a.line - b.line)
}

/** A finished line; undefined if it is not finished, or not in the chunk. */
export async function findLine(
  ports: ReadPorts,
  chunk: ChunkRow,
  line: number,
): Promise<FinishedLine | undefined> {
  return (await finishedLines(ports, chunk)).find((one) => one.line === line)
}

async function inBlobs({ db, sealed, now }: ReadPorts, chunk: ChunkRow): Promise<FinishedLine[]> {
  const blob = chunk.audit_blob === null ? undefined : await readBlobRow(db, chunk.audit_blob)
  if (!blob) return []
  const { project_id } = blob
  return placesInBlobs(await readLineIndex(sealed, project_id, blob), {
    project_id,
    audit: blob,
    output: await readVisibleResults(db, chunk, 'output', now),
    error: await readVisibleResults(db, chunk, 'error', now),
  })
}

// Pages of a batch, in input order. Lines do not finish in that order, so a page also names the line up to which none
// is missing; a caller that continues there misses none. A page has the locations of its lines; their bytes are read
// while they are sent.

/** The size after which a page ends with the current line. */
const PAGE_BYTES_MAX = 8 * 1024 * 1024
/** Bytes that are read at a time; small, because there may be many slow callers. */
const WINDOW_BYTES = 256 * 1024

type ResultPart = 'output' | 'error' | 'all'

interface PageOrder {
  /** The number of the line after which the page begins (in the input file, from 1). */
  after: number
  limit: number
  part: ResultPart
  /** Whether the page ends before the first unfinished line, so that consecutive pages do not overlap. */
  contiguous: boolean
  /** The only lines of the page, in ascending order; all, by default. */
  only?: ReadonlySet<number> | undefined
  /** The parts whose lines are omitted if their file is deleted; any, by default. */
  gone?: readonly ResultPart[]
}

interface FinishedPage {
  /** The lines, each with its line break. */
  text: AsyncIterable<Buffer>
  /** Whether there are more lines after `nextAfter`. */
  hasMore: boolean
  /**
   * The line after which the next page begins: the last line of this page or, after the last page, the line up to which
   * none is missing.
   */
  nextAfter: number
}

interface Found {
  chunk: ChunkRow
  line: number
  span: Span
}

/**
 * A page of the finished lines of a batch. Lines whose result file was deleted or has expired are left out, unless
 * `gone` lacks their part: then it throws file_not_found.
 */
export async function readFinished(
  ports: ReadPorts,
  batch_id: string,
  order: PageOrder,
): Promise<FinishedPage> {
  const { only } = order
  // This is read first, so that lines that finish meanwhile are found below and not missed.
  const through = only ? order.after : await completeThrough(ports, batch_id)
  const last = order.contiguous ? through : Number.POSITIVE_INFINITY
  const lines: Found[] = []
  let bytes = 0
  let at = order.after
  const all = only ? finishedAmong(ports, batch_id, only) : finishedAfter(ports, batch_id, order, last)
  for await (const found of all) {
    if (lines.length === order.limit || (lines.length > 0 && bytes >= PAGE_BYTES_MAX))
      return { text: textOf(ports, lines), hasMore: true, nextAfter: at }
    lines.push(found)
    bytes += bytesIn(found.span)
    at = found.line
  }
  const nextAfter = order.contiguous ? at : Math.min(at, through)
  return { text: textOf(ports, lines), hasMore: false, nextAfter }
}

/** The text of lines. If a chunk is sealed meanwhile, which deletes its journals, its blobs are read instead. */
function textOf(ports: ReadPorts, lines: readonly Found[]): AsyncIterable<Buffer> {
  return readSpans(
    ports.sealed,
    lines.map(({ span }) => span),
    {
      windowBytes: WINDOW_BYTES,
      async moved(number) {
        const found = lines[number]
        const chunk =
          found &&
          (await readRow(ports.db, 'chunks', { batch_id: found.chunk.batch_id, idx: found.chunk.idx }))
        return chunk && ((await findLine(ports, chunk, found.line))?.result ?? undefined)
      },
    },
  )
}

/** The last line before which every line is finished; infinite when all are. */
async function completeThrough(ports: ReadPorts, batch_id: string): Promise<number> {
  const chunk = await firstUnsealed(ports.db, batch_id)
  if (!chunk) return Number.POSITIVE_INFINITY
  let through = startOf(chunk) - 1
  const { value: stretch = [] } = await stretchesOf(ports.db, batch_id, { from_line: through + 1 }).next()
  // Blank lines have numbers but no entry: the result may be too low, never too high.
  for (const { line } of await finishedTogether(ports, stretch)) {
    if (line !== through + 1) break
    through = line
  }
  return through
}

async function* finishedAfter(
  ports: ReadPorts,
  batch_id: string,
  { after, part, gone }: PageOrder,
  last: number,
): AsyncGenerator<Found> {
  const first = await readChunkOfLine(ports.db, batch_id, after + 1)
  const from_line = first && startOf(first)
  for await (const stretch of stretchesOf(ports.db, batch_id, { from_line, begun: true })) {
    if (startOf(stretch[0]) > last) return
    for (const { chunk, line, part: own, result: span } of await finishedTogether(ports, stretch)) {
      if (span === null && gone && !gone.includes(own))
        throw new ApiError('file_not_found', 'A result file of the batch was deleted while it was read.')
      if (span && line > after && line <= last && (part === 'all' || part === own))
        yield { chunk, line, span }
    }
  }
}

async function* finishedAmong(
  ports: ReadPorts,
  batch_id: string,
  only: ReadonlySet<number>,
): AsyncGenerator<Found> {
  const places = Array.from(only, (line) => ({ batchId: batch_id, line }))
  const chunks = await readChunksOfLines(ports.db, places)
  for (const chunk of new Map(chunks.map((one) => [one?.idx, one])).values()) {
    if (!chunk || chunk.completed + chunk.failed === 0) continue
    for (const { line, result: span } of await finishedLines(ports, chunk))
      if (span && only.has(line)) yield { chunk, line, span }
  }
}

/** The limit of lines in a chunk. */
const PAGE_LINES = 1_000
/** Bytes that are parsed before other calls run. */
const BATCH_BYTES = 64 * 1024

/** The finished lines of a batch as parsed rows, in the order of the input, in groups of about BATCH_BYTES. */
export async function* readResultRows(ports: ReadPorts, batch: ResultFiles): AsyncGenerator<ResultRow[]> {
  let rows: ResultRow[] = []
  let size = 0
  for await (const { line, bytes } of readResultLines(ports, batch, LINE_BYTES_MAX)) {
    const row = parseResultRow(line, bytes)
    if (row === null) throw new Error(`${batch.id} has a result line of another shape`)
    rows.push(row)
    size += bytes
    if (size < BATCH_BYTES) continue
    yield rows
    rows = []
    size = 0
  }
  if (rows.length > 0) yield rows
}

type ResultFiles = Pick<BatchRow, 'id' | 'output_file_id' | 'error_file_id'>

/**
 * The finished lines of a batch without their line breaks, each clipped to `bytesMax`. Throws file_not_found if a file
 * is deleted meanwhile, since the rest must not pass for all.
 */
export async function* readResultLines(
  ports: ReadPorts,
  { id, output_file_id, error_file_id }: ResultFiles,
  bytesMax: number,
): AsyncGenerator<{ line: Buffer; bytes: number }> {
  const files = { output: output_file_id, error: error_file_id }
  const expiries = await readExpiries(
    ports.db,
    Object.values(files).filter((file) => file !== null),
  )
  const gone = (['output', 'error'] as const).filter(
    (part) => (expiries.get(files[part] ?? '') ?? Number.POSITIVE_INFINITY) <= ports.now,
  )
  for (let after = 0, more = true; more; ) {
    const order = { after, limit: PAGE_LINES, part: 'all', contiguous: false, gone } as const
    const page = await readFinished(ports, id, order)
    yield* byteLines(page.text, bytesMax)
    after = page.nextAfter
    more = page.hasMore
  }
}
