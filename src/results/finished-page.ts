// Reads the result lines of a running batch in input order: of sealed chunks from their blobs, of open ones from their
// journals. Lines do not finish in that order, so a page also names the line up to which none is missing; a caller
// that continues there misses none. A page has the places of its lines; their bytes are read while they are sent.
import { firstUnsealed, listBegun, readChunk, readChunkOfLine } from '../store/chunks.ts'
import type { ChunkRow } from '../store/schema.ts'
import { findLine, finishedLines, type ReadPorts } from './finished-lines.ts'
import { bytesIn, readSpans } from './read-spans.ts'
import type { Span } from './stream-span.ts'

/** A page ends after the line that exceeds this size. */
const PAGE_BYTES_MAX = 8 * 1024 * 1024
/** Bytes read at a time; small, because there may be many slow callers. */
const WINDOW_BYTES = 256 * 1024
/** Chunk rows read at a time. */
const ROWS_PER_READ = 100

type ResultPart = 'output' | 'error' | 'all'

interface PageOrder {
  /** Lines with higher numbers (in the input file, from 1). */
  after: number
  limit: number
  part: ResultPart
  /** Ends before the first unfinished line, so that consecutive pages do not overlap. */
  contiguous: boolean
}

interface FinishedPage {
  /** The lines, each with its line break. */
  text: AsyncIterable<Buffer>
  /** There are more lines after `nextAfter`. */
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

/** A page of the finished lines of a batch. Lines whose result file was deleted or has expired are left out. */
export async function readFinished(
  ports: ReadPorts,
  batch_id: string,
  order: PageOrder,
): Promise<FinishedPage> {
  // Read first, so that lines that finish meanwhile are found below and not missed.
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

/** If a chunk is sealed while the page is read, its journals are deleted; its lines are then read from its blobs. */
function textOf(ports: ReadPorts, lines: readonly Found[]): AsyncIterable<Buffer> {
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
async function completeThrough(ports: ReadPorts, batch_id: string): Promise<number> {
  const chunk = await firstUnsealed(ports.db, batch_id)
  if (!chunk) return Number.POSITIVE_INFINITY
  let through = chunk.first_line - 1
  // Blank lines are numbered too but have no entry: the result may be too low, never too high.
  for (const { line } of await finishedLines(ports, chunk)) {
    if (line !== through + 1) break
    through = line
  }
  return through
}

async function* finishedAfter(
  ports: ReadPorts,
  batch_id: string,
  { after, part }: PageOrder,
  last: number,
): AsyncGenerator<Found> {
  let fromIdx = (await readChunkOfLine(ports.db, batch_id, after + 1))?.idx ?? 0
  for (;;) {
    const chunks = await listBegun(ports.db, batch_id, fromIdx, ROWS_PER_READ)
    for (const chunk of chunks) {
      if (chunk.first_line > last) return
      for (const { line, part: own, result: span } of await finishedLines(ports, chunk))
        if (span && line > after && line <= last && (part === 'all' || part === own))
          yield { chunk, line, span }
    }
    const end = chunks.at(-1)
    if (chunks.length < ROWS_PER_READ || !end) return
    fromIdx = end.idx + 1
  }
}
