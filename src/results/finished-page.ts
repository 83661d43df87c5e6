// Reads a batch's result lines while it runs: sealed chunks from their blobs, open ones from their journals,
// in the order of the input. Lines do not end in that order, so a page also says through which line nothing
// is missing: whoever goes on from there misses none. A page is where its lines lie; their bytes are read as they
// are sent.
import { readBlobRow } from '../store/blob-rows.ts'
import { firstUnsealed, listBegun, readChunk, readChunkOfLine } from '../store/chunks.ts'
import type { ChunkRow } from '../store/schema.ts'
import { findLine, openPlaces, type Ports, scanResults, sealedPlaces } from './finished-lines.ts'
import { JOURNAL_OWNER } from './journal.ts'
import { bytesIn, readSpans } from './read-spans.ts'
import type { Span } from './stream-span.ts'

/** A page ends behind the line that takes it past this. */
const PAGE_BYTES_MAX = 8 * 1024 * 1024
/** Read at a time: callers may be many, and slow. */
const WINDOW_BYTES = 256 * 1024
/** Chunk rows read at a time. */
const ROWS_PER_READ = 100

export type ResultPart = 'output' | 'error' | 'all'

export interface PageOrder {
  /** Lines with higher numbers (in the input file, from 1). */
  after: number
  limit: number
  part: ResultPart
  /** Ends before the first line that is unfinished, so that pages read one after another overlap nowhere. */
  contiguous: boolean
}

export interface FinishedPage {
  /** The lines, each with its line break. */
  text: AsyncIterable<Buffer>
  /** There is more to read now, behind `nextAfter`. */
  hasMore: boolean
  /**
   * Where the next page begins: behind the last line of this one, or, once all that is finished has been read,
   * behind the last line before which nothing is missing.
   */
  nextAfter: number
}

interface Found {
  chunk: ChunkRow
  line: number
  part: 'output' | 'error'
  span: Span
}

/** What is finished of a batch. Lines whose files have been deleted are left out. */
export async function readFinished(ports: Ports, batch_id: string, order: PageOrder): Promise<FinishedPage> {
  // Looked up first: what is finished meanwhile is then found below, and never the other way round.
  const through = await completeThrough(ports, batch_id)
  const last = order.contiguous ? through : Number.POSITIVE_INFINITY
  const lines: Found[] = []
  let bytes = 0
  let at = order.after
  for await (const found of finishedAfter(ports, batch_id, order, last)) {
    if (lines.length === order.limit || (lines.length > 0 && bytes >= PAGE_BYTES_MAX))
      return { text: textOf(ports, lines), hasMore: true, nextAfter: at }
    lines.push(found)
    bytes += bytesIn(found.span)
    at = found.line
  }
  const nextAfter = order.contiguous ? at : Math.min(at, through)
  return { text: textOf(ports, lines), hasMore: false, nextAfter }
}

/** A chunk that is sealed while the page is read takes its journals with it: its lines are then in its blobs. */
function textOf(ports: Ports, lines: readonly Found[]): AsyncIterable<Buffer> {
  return readSpans(
    ports.sealed,
    lines.map(({ span }) => span),
    {
      windowBytes: WINDOW_BYTES,
      async moved(number) {
        const found = lines[number]
        const chunk = found && (await readChunk(ports.db, found.chunk.batch_id, found.chunk.idx))
        return chunk && ((await findLine(ports, chunk, found.line))?.result ?? undefined)
      },
    },
  )
}

/** The last line before which every line is finished; infinite when all are. */
async function completeThrough(ports: Ports, batch_id: string): Promise<number> {
  const chunk = await firstUnsealed(ports.db, batch_id)
  if (!chunk) return Number.POSITIVE_INFINITY
  let through = chunk.first_line - 1
  // Blank lines are numbered too and end in no journal: the count is then too low, never too high.
  for (const { line } of await finishedOf(ports, chunk)) {
    if (line !== through + 1) break
    through = line
  }
  return through
}

async function* finishedAfter(
  ports: Ports,
  batch_id: string,
  { after, part }: PageOrder,
  last: number,
): AsyncGenerator<Found> {
  let fromIdx = (await readChunkOfLine(ports.db, batch_id, after + 1))?.idx ?? 0
  for (;;) {
    const chunks = await listBegun(ports.db, batch_id, fromIdx, ROWS_PER_READ)
    for (const chunk of chunks) {
      if (chunk.first_line > last) return
      for (const found of await finishedOf(ports, chunk))
        if (found.line > after && found.line <= last && (part === 'all' || part === found.part)) yield found
    }
    const end = chunks.at(-1)
    if (chunks.length < ROWS_PER_READ || !end) return
    fromIdx = end.idx + 1
  }
}

/** The finished lines of a chunk, in order. */
async function finishedOf(ports: Ports, chunk: ChunkRow): Promise<Found[]> {
  if (chunk.state === 'sealed') return await inBlobs(ports, chunk)
  const places = await openPlaces(ports, chunk)
  if (places.length < chunk.completed + chunk.failed) {
    // Its journals go when it is sealed.
    const now = await readChunk(ports.db, chunk.batch_id, chunk.idx)
    if (now?.state === 'sealed') return await inBlobs(ports, now)
  }
  return places
    .map(({ line, part, journal, result }) => {
      return { chunk, line, part, span: { project_id: JOURNAL_OWNER, blob: journal, range: result } }
    })
    .sort((a, b) => a.line - b.line)
}

async function inBlobs(ports: Ports, chunk: ChunkRow): Promise<Found[]> {
  const places = await sealedPlaces(ports, chunk)
  const found: Found[] = []
  for (const part of ['output', 'error'] as const) {
    const key = part === 'output' ? chunk.output_blob : chunk.error_blob
    const blob = key === null ? undefined : await readBlobRow(ports.db, key)
    if (!blob) continue
    const { project_id } = blob
    if (places) {
      for (const { line, part: of, result: range } of places)
        if (of === part) found.push({ chunk, line, part, span: { project_id, blob, range } })
    } else {
      for await (const { line, start, end } of scanResults(ports.sealed, blob))
        found.push({ chunk, line, part, span: { project_id, blob, range: { start, end } } })
    }
  }
  return found.sort((a, b) => a.line - b.line)
}
