// Lists the lines of a batch by filters, while it runs and afterwards. Chunks that cannot have a matching line, by
// their counts or by the custom_ids of their input, are skipped; of the others, one page reads a bounded number. A page
// that reaches this bound is short, and the next page continues there.
import { type ByteRange, isDamaged } from '../blobs/blobs.ts'
import type { SealedBlobs } from '../blobs/sealed.ts'
import { CHUNK_BYTES_MAX } from '../domain/batch.ts'
import { errorPattern } from '../domain/batch-statistics.ts'
import { entityOf } from '../domain/entity.ts'
import { ApiError } from '../domain/errors.ts'
import { LINE_NUMBER_MAX, lineRequestId, parseLineRequestId } from '../domain/ids.ts'
import { placesInChunk } from '../jsonl/chunk-lines.ts'
import { linesInIndex } from '../jsonl/custom-ids.ts'
import { LineScanner } from '../jsonl/line-scan.ts'
import {
  finishedLines,
  type InputLine,
  inputLines,
  inputOfChunk,
  type ReadPorts,
} from '../results/finished-lines.ts'
import type { FinishedLine } from '../results/line-index.ts'
import { readRecords } from '../results/read-content.ts'
import { listBatches } from '../store/batches.ts'
import { readChunkOfLine, startOf, stretchesOf } from '../store/chunks.ts'
import { readVisibleInput } from '../store/files.ts'
import { ROWS_LOOKED_AT_MAX } from '../store/page.ts'
import { readOwn, readRow } from '../store/rows.ts'
import type { BatchRow, BlobRow, ChunkRow } from '../store/schema.ts'
import type { FindLinesQuery, FoundLine, LineStatus, LineSummary, LinesQuery } from '../wire/batch-line.ts'

/** The limit of chunks read for one page; a chunk of which only the input is read counts by its bytes. */
const CHUNKS_READ_MAX = 50

interface LinesPage {
  lines: LineSummary[]
  /** The `after` of the next page; null when no line can follow now. */
  next: number | null
  /** Whether the lines were found by an index, at a cost independent of the batch's size. */
  isIndexed?: true
}

type Order = Required<Pick<LinesQuery, 'after' | 'limit'>> & LineFilter

export async function listLines(ports: ReadPorts, batch: BatchRow, order: Order): Promise<LinesPage> {
  const content = await readVisibleInput(ports.db, batch, ports.now)
  const indexed = await indexedLines(ports, batch, order)
  if (indexed) {
    const lines = await linesAt(ports, batch, content, indexed, order)
    return { lines, next: null, isIndexed: true }
  }
  const lines: LineSummary[] = []
  let read = 0
  let seen = 0
  const first = await readChunkOfLine(ports.db, batch.id, order.after + 1)
  for await (const stretch of stretchesOf(ports.db, batch.id, { from_line: first && startOf(first) })) {
    const matching = stretch.filter((chunk) => mayMatch(chunk, order))
    seen += stretch.length
    const isEnough = seen > ROWS_LOOKED_AT_MAX || (read >= CHUNKS_READ_MAX && matching.length > 0)
    if (isEnough) return { lines, next: Math.max(startOf(stretch[0]) - 1, order.after) }
    const found: AsyncGenerator<LineSummary>[] = []
    for (const chunk of matching) {
      const named = await linesNamed(ports, chunk, content, order.custom_id ?? order.search)
      const isSkipped = named?.size === 0
      read += isSkipped ? (chunk.byte_end - chunk.byte_start) / CHUNK_BYTES_MAX : 1
      if (!isSkipped) found.push(linesOfChunk(ports, batch, chunk, content, named, order))
    }
    for await (const line of inLineOrder(found)) {
      if (!matchesLine(line, order)) continue
      // An additional line shows that there are more.
      if (lines.length === order.limit) return { lines, next: lines.at(-1)?.line ?? order.after }
      lines.push(line)
    }
  }
  return { lines, next: null }
}

/** Merges the lines of several chunks, each in its order, in the order of the input. */
async function* inLineOrder(sources: readonly AsyncGenerator<LineSummary>[]): AsyncGenerator<LineSummary> {
  if (sources[0] && sources.length === 1) return yield* sources[0]
  const heads: { source: AsyncGenerator<LineSummary>; line: LineSummary }[] = []
  const advance = async (source: AsyncGenerator<LineSummary>): Promise<void> => {
    const { done, value } = await source.next()
    if (!done) heads.push({ source, line: value })
  }
  for (const source of sources) await advance(source)
  while (heads.length > 0) {
    const least = heads.reduce((at, { line }, i) => (line.line < heads[at]!.line.line ? i : at), 0)
    const [{ source, line }] = heads.splice(least, 1) as [(typeof heads)[number]]
    yield line
    await advance(source)
  }
}

/** The lines with the custom_id by the input's index; undefined without an index. */
async function indexedLines(
  { db, sealed, now }: ReadPorts,
  batch: BatchRow,
  { custom_id, after }: Order,
): Promise<number[] | undefined> {
  if (custom_id === undefined) return undefined
  const index = await readVisibleInput(db, batch, now, 'ids_blob')
  if (!index) return undefined
  const read = (range: ByteRange): Promise<Buffer> => sealed.readAll(index.project_id, index, range)
  try {
    return (await linesInIndex(index.bytes, custom_id, read)).filter((line) => line > after)
  } catch (error) {
    // The input itself replaces a damaged index.
    if (isDamaged(error)) return undefined
    throw error
  }
}

async function linesAt(
  ports: ReadPorts,
  batch: BatchRow,
  content: BlobRow | undefined,
  numbers: readonly number[],
  order: Order,
): Promise<LineSummary[]> {
  const lines: LineSummary[] = []
  for (const number of numbers) {
    const chunk = await readChunkOfLine(ports.db, batch.id, number)
    if (!chunk) continue
    for await (const line of linesOfChunk(ports, batch, chunk, content, new Set([number]), order))
      if (matchesLine(line, order)) lines.push(line)
  }
  return lines
}

/** The limits of batches and lines that are searched for one page. */
const BATCHES_PER_SEARCH = 20
const LINES_PER_SEARCH = 200_000

type FindFilter = Pick<FindLinesQuery, 'custom_id' | 'search' | 'kind' | 'status' | 'entity' | 'conversation'>

interface FindPage {
  limit: number
  behind: string | undefined
}

/** The lines with a custom_id in all batches of a project, the newest batch first; `behind` is a request ID. */
export async function findLines(
  ports: ReadPorts,
  project_id: string,
  { limit, behind, kind, ...filter }: FindFilter & FindPage,
): Promise<{ lines: FoundLine[]; next: string | null }> {
  const from = behind === undefined ? null : parseLineRequestId(behind)
  const begun = from && (await readOwn(ports.db, 'batches', project_id, from.batchId))
  if (behind !== undefined && !begun)
    throw new ApiError('cursor_not_found', undefined, { param: 'starting_after' })
  const page = {
    limit: BATCHES_PER_SEARCH,
    behind: from?.batchId,
    is_gathered: kind === 'requests' ? 1 : undefined,
  }
  const batches = [...(begun ? [begun] : []), ...(await listBatches(ports.db, project_id, page)).rows]
  const lines: FoundLine[] = []
  let seen = 0
  for (const batch of batches) {
    const after = batch === begun ? (from?.line ?? 0) : 0
    const found = await listLines(ports, batch, { ...filter, after, limit: limit - lines.length })
    lines.push(...found.lines.map((line) => ({ ...line, batch_id: batch.id })))
    if (found.next !== null) return { lines, next: lineRequestId(batch.id, Math.max(1, found.next)) }
    if (!found.isIndexed) seen += batch.total
    const next = lineRequestId(batch.id, LINE_NUMBER_MAX)
    if (lines.length === limit || seen >= LINES_PER_SEARCH) return { lines, next }
  }
  const isLast = batches.length < BATCHES_PER_SEARCH
  return { lines, next: isLast ? null : lineRequestId(batches.at(-1)?.id ?? '', LINE_NUMBER_MAX) }
}

/** The lines of a chunk. A chunk that is sealed meanwhile loses its journals: the rest is then in its blobs. */
async function* linesOfChunk(
  ports: ReadPorts,
  batch: BatchRow,
  chunk: ChunkRow,
  content: BlobRow | undefined,
  named: ReadonlySet<number> | undefined,
  order: Order,
): AsyncGenerator<LineSummary, void, undefined> {
  const { status } = order
  // Only failed lines have an error.
  const wanted = order.code !== undefined || order.message !== undefined ? 'failed' : status
  let after = order.after
  try {
    for await (const line of chunkSummaries(ports, batch, chunk, content, { after, status: wanted, named })) {
      after = line.line
      yield line
    }
  } catch (error) {
    const now = isDamaged(error)
      ? await readRow(ports.db, 'chunks', { batch_id: batch.id, idx: chunk.idx })
      : undefined
    if (now?.state !== 'sealed' || chunk.state === 'sealed') throw error
    yield* chunkSummaries(ports, batch, now, content, { after, status: wanted, named })
  }
}

function mayMatch(chunk: ChunkRow, { status, code, message, model }: Order): boolean {
  // After a parking, the chunk's model is that of its unfinished lines only.
  if (model !== undefined && chunk.model !== null && chunk.model !== model && chunk.epoch <= 1) return false
  if (code !== undefined || message !== undefined || status === 'failed') return chunk.failed > 0
  if (status === 'completed') return chunk.completed > 0
  return status !== 'pending' || chunk.state !== 'sealed'
}

type LineFilter = Omit<LinesQuery, 'after' | 'limit'>

export function matchesLine(line: LineSummary, filter: LineFilter): boolean {
  const { status, code, message, model, entity, conversation, custom_id, search } = filter
  return (
    (status === undefined || line.status === status) &&
    (code === undefined || line.error?.code === code) &&
    (message === undefined || (line.error !== null && errorPattern(line.error.message) === message)) &&
    (model === undefined || line.model === model) &&
    (entity === undefined || line.entity === entity) &&
    (conversation === undefined || line.conversation === conversation) &&
    (custom_id === undefined || line.custom_id === custom_id) &&
    (search === undefined || line.custom_id.includes(search))
  )
}

// The lines of one chunk as lists show them: finished lines by their audit records, the others by the input. Only the
// necessary parts are read: the chunk's index shows whether a line failed.

/** The number of lines that are read at a time, so that other calls do not wait long. */
const WINDOW_LINES = 50

interface Wanted {
  /** The line number after which lines are listed. */
  after: number
  status: LineStatus | undefined
  /** The numbers of the listed lines; absent: all. */
  named?: ReadonlySet<number> | undefined
}

/** Summaries in line order. `content` is the batch's input; without it pending lines are omitted. */
export async function* chunkSummaries(
  ports: ReadPorts,
  batch: BatchRow,
  chunk: ChunkRow,
  content: BlobRow | undefined,
  { after, status, named }: Wanted,
): AsyncGenerator<LineSummary, void, undefined> {
  const isWanted = (line: number): boolean => line > after && (named === undefined || named.has(line))
  const finished = await finishedLines(ports, chunk)
  const part = status === 'completed' ? 'output' : 'error'
  const places: (FinishedLine | InputLine)[] =
    status === 'pending'
      ? []
      : finished.filter((one) => isWanted(one.line) && (status === undefined || one.part === part))
  if (chunk.state !== 'sealed' && (status === undefined || status === 'pending')) {
    const done = new Set(finished.map(({ line }) => line))
    for (const pending of await inputLines(ports, content, chunk))
      if (isWanted(pending.line) && !done.has(pending.line)) places.push(pending)
  }
  places.sort((a, b) => a.line - b.line)
  for (let at = 0; at < places.length; at += WINDOW_LINES)
    yield* await summariesOf(ports.sealed, batch, places.slice(at, at + WINDOW_LINES))
}

/** Characters that JSON may write as two characters, even where it need not. */
const SHORT_ESCAPES = /["\\/\p{Cc}]/u

/**
 * The lines of a chunk whose custom_id contains the text, by their input; undefined if it does not show that. Most
 * chunks lack the text, as their bytes show without being read as JSON.
 */
async function linesNamed(
  ports: ReadPorts,
  chunk: ChunkRow,
  content: BlobRow | undefined,
  text: string | undefined,
): Promise<Set<number> | undefined> {
  if (!text) return undefined
  const bytes = await inputOfChunk(ports, content, chunk).catch((error: unknown) => {
    // The records of finished lines replace a damaged input.
    if (isDamaged(error)) return undefined
    throw error
  })
  if (!bytes) return undefined
  const named = new Set<number>()
  if (!SHORT_ESCAPES.test(text) && !bytes.includes(text) && !bytes.includes('\\u')) return named
  for (const { line, start, end } of placesInChunk(bytes, chunk)) {
    const scanned = scanner.scan(bytes, start, end)
    if (!scanned.ok || scanned.custom_id.includes(text)) named.add(line)
  }
  return named
}

async function summariesOf(
  sealed: SealedBlobs,
  batch: BatchRow,
  places: readonly (FinishedLine | InputLine)[],
): Promise<LineSummary[]> {
  const spans = places.flatMap((place) => ('audit' in place ? [place.audit] : []))
  const records = await readRecords(sealed, spans)
  let next = 0
  return places.map((place) =>
    'audit' in place ? summaryOfRecord(JSON.parse(records[next++] ?? '')) : pendingSummary(batch, place),
  )
}

/** The summary of a finished line; `record` is a line of an audit blob (results/line-record.ts). */
export function summaryOfRecord(record: Record<string, unknown>): LineSummary {
  const text = (value: unknown): string | null => (typeof value === 'string' ? value : null)
  const attempts: unknown[] = Array.isArray(record.attempts) ? record.attempts : []
  const last = Object(attempts.at(-1))
  const { code, message } = Object(record.error)
  const { prompt_tokens, completion_tokens, total_tokens } = Object(record.usage)
  const failed = record.error !== null
  return {
    id: String(record.id),
    object: 'batch_line',
    line: Number(record.line),
    custom_id: String(record.custom_id),
    status: failed ? 'failed' : 'completed',
    model: text(record.model),
    entity: text(record.entity),
    conversation: text(record.conversation),
    error: failed ? { code: String(code), message: String(message) } : null,
    attempts: attempts.length + Number(record.attempts_omitted ?? 0),
    duration_ms: typeof last.duration_ms === 'number' ? last.duration_ms : null,
    usage: record.usage === null ? null : { prompt_tokens, completion_tokens, total_tokens },
    cost_usd: Number(record.cost_usd),
    finished_at: Number(record.created),
  }
}

const scanner = new LineScanner({ validated: true })

/** The summary of an unfinished line, by its bytes in the input. */
export function pendingSummary(batch: BatchRow, { line, bytes }: InputLine): LineSummary {
  const scanned = scanner.scan(bytes, 0, bytes.length)
  const metadata: Record<string, string> = batch.metadata === null ? {} : JSON.parse(batch.metadata)
  return {
    id: lineRequestId(batch.id, line),
    object: 'batch_line',
    line,
    custom_id: scanned.ok ? scanned.custom_id : '',
    status: 'pending',
    model: scanned.ok ? scanned.body.model : null,
    entity: scanned.ok ? entityOf(scanned.metadata, metadata, batch.header_entity) : null,
    conversation: (scanned.ok && scanned.metadata?.conversation) || (metadata.conversation ?? null),
    error: null,
    attempts: 0,
    duration_ms: null,
    usage: null,
    cost_usd: 0,
    finished_at: null,
  }
}
