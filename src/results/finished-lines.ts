// Reads a batch's result lines while it runs: sealed chunks from their blobs, open ones from their journals,
// in the order of the input. Lines do not end in that order, so a page also says through which line nothing
// is missing: whoever goes on from there misses none.
import type { SealedBlobs } from '../blobs/sealed.ts'
import { base32, parseLineRequestId } from '../domain/ids.ts'
import { readBlobRow } from '../store/blob-rows.ts'
import { firstUnsealed, listBegun, readChunk, readChunkOfLine } from '../store/chunks.ts'
import { listJournalParts } from '../store/journal-parts.ts'
import type { ChunkRow } from '../store/schema.ts'
import type { Reader } from '../store/store.ts'
import { JOURNAL_OWNER } from './commit.ts'
import { readJournal } from './journal.ts'

/** A page ends behind the line that takes it past this. */
const PAGE_BYTES_MAX = 8 * 1024 * 1024
/** Chunk rows read at a time. */
const ROWS_PER_READ = 100
const NEWLINE = 0x0a
const HEAD = Buffer.from('{"id":"')
const REQUEST_ID_LENGTH = 'req_'.length + 26 + base32(1).length

interface Ports {
  db: Reader
  sealed: SealedBlobs
}

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
  /** Each with its line break. */
  lines: Buffer[]
  /** There is more to read now, behind `next_after`. */
  has_more: boolean
  /**
   * Where the next page begins: behind the last line of this one, or, once all that is finished has been read,
   * behind the last line before which nothing is missing.
   */
  next_after: number
}

interface Found {
  line: number
  part: 'output' | 'error'
  bytes: Buffer
}

/** What is finished of a batch. Lines whose files have been deleted are left out. */
export async function readFinished(ports: Ports, batch_id: string, order: PageOrder): Promise<FinishedPage> {
  // Looked up first: what is finished meanwhile is then found below, and never the other way round.
  const complete_through = await completeThrough(ports, batch_id)
  const last = order.contiguous ? complete_through : Number.POSITIVE_INFINITY
  const lines: Buffer[] = []
  let bytes = 0
  let at = order.after
  for await (const found of finishedAfter(ports, batch_id, order, last)) {
    if (lines.length === order.limit || (lines.length > 0 && bytes >= PAGE_BYTES_MAX))
      return { lines, has_more: true, next_after: at }
    lines.push(found.bytes)
    bytes += found.bytes.length
    at = found.line
  }
  return { lines, has_more: false, next_after: order.contiguous ? at : Math.min(at, complete_through) }
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
  let from_idx = (await readChunkOfLine(ports.db, batch_id, after + 1))?.idx ?? 0
  for (;;) {
    const chunks = await listBegun(ports.db, batch_id, from_idx, ROWS_PER_READ)
    for (const chunk of chunks) {
      if (chunk.first_line > last) return
      for (const found of await finishedOf(ports, chunk))
        if (found.line > after && found.line <= last && (part === 'all' || part === found.part)) yield found
    }
    const end = chunks.at(-1)
    if (chunks.length < ROWS_PER_READ || !end) return
    from_idx = end.idx + 1
  }
}

/** The finished lines of a chunk, in order. */
async function finishedOf(ports: Ports, chunk: ChunkRow): Promise<Found[]> {
  if (chunk.state === 'sealed') return await fromBlobs(ports, chunk)
  const found = await fromJournal(ports, chunk)
  if (found) return found
  const now = await readChunk(ports.db, chunk.batch_id, chunk.idx)
  return now?.state === 'sealed' ? await fromBlobs(ports, now) : []
}

/** Null when the journal has gone, which is when the chunk has just been sealed. */
async function fromJournal({ db, sealed }: Ports, chunk: ChunkRow): Promise<Found[] | null> {
  const parts = []
  for (const part of await listJournalParts(db, chunk.batch_id, chunk.idx)) {
    const blob = await readBlobRow(db, part.journal_blob)
    if (!blob) return null
    parts.push({ part, blob })
  }
  if (parts.length === 0) return chunk.completed + chunk.failed > 0 ? null : []
  let written: Awaited<ReturnType<typeof readJournal>>
  try {
    written = await readJournal(sealed, JOURNAL_OWNER, parts)
  } catch (error) {
    // It may have gone between two reads; one that is there and cannot be read is a fault.
    const still = await listJournalParts(db, chunk.batch_id, chunk.idx)
    if (still.length === 0) return null
    throw error
  }
  return written
    .map(({ line, part, result }) => ({ line, part, bytes: result }))
    .sort((a, b) => a.line - b.line)
}

async function fromBlobs(ports: Ports, chunk: ChunkRow): Promise<Found[]> {
  const [output, error] = await Promise.all([
    linesOf(ports, chunk.output_blob, 'output'),
    linesOf(ports, chunk.error_blob, 'error'),
  ])
  return [...output, ...error].sort((a, b) => a.line - b.line)
}

async function linesOf({ db, sealed }: Ports, key: string | null, part: Found['part']): Promise<Found[]> {
  const blob = key === null ? undefined : await readBlobRow(db, key)
  if (!blob) return []
  const bytes = await sealed.readAll(blob.project_id, blob)
  const found: Found[] = []
  for (let at = 0; at < bytes.length; ) {
    const end = bytes.indexOf(NEWLINE, at) + 1
    found.push({ line: lineNumber(bytes, at), part, bytes: bytes.subarray(at, end) })
    at = end
  }
  return found
}

/** A result line begins with its request ID, and that names the line. */
function lineNumber(bytes: Buffer, at: number): number {
  const start = at + HEAD.length
  const address = parseLineRequestId(bytes.toString('latin1', start, start + REQUEST_ID_LENGTH))
  if (!address) throw new Error('a result line does not begin with its request ID')
  return address.line
}
