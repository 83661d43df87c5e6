// The journal: finished lines of open chunks, written together so that a crash loses none. An entry is three rows of
// text: `LINE PART`, the result line, the audit line. After the last entry comes an index (line-index.ts).

import { BlobDamaged, type ByteRange, isDamaged } from '../blobs/blobs.ts'
import type { SealedBlob, SealedBlobs } from '../blobs/sealed.ts'
import { isNotRun } from '../domain/batch.ts'
import { dayOf } from '../domain/days.ts'
import { nanosFromUsd } from '../domain/money.ts'
import { NO_SPEND } from '../domain/spend.ts'
import type { EndedLine } from '../ledger/tally.ts'
import { readBlobRow } from '../store/blobs.ts'
import { listJournalParts } from '../store/chunks.ts'
import type { ChunkRow, JournalPartRow } from '../store/schema.ts'
import type { Reader, Store } from '../store/store.ts'
import { type LinePlace, placesInJournal, readLineIndex } from './line-index.ts'
import { readSpans, type Span } from './read-spans.ts'

/** The place of a finished line that is in a journal and not in memory. */
export interface Journalled {
  line: number
  part: 'output' | 'error'
  result: Span
  audit: Span
}

/** In place of a project: a journal has lines of several projects. */
export const JOURNAL_OWNER = 'offpeak'

/** Longer than the first row of an entry can be. */
const HEAD_BYTES_MAX = 32
const HEAD = /^([1-9]\d*) (output|error)\n$/

interface Part {
  part: Pick<JournalPartRow, 'byte_start' | 'byte_end'>
  blob: SealedBlob
}

/** Finds the entries of a part by reading all of it, which proves that they can be read. Throws BlobDamaged. */
export async function scanJournal(sealed: SealedBlobs, { part, blob }: Part): Promise<Journalled[]> {
  const range = { start: part.byte_start, end: part.byte_end }
  const rows = scanRows(sealed.read(JOURNAL_OWNER, blob, range), HEAD_BYTES_MAX, range.start)
  const found: LinePlace[] = []
  for (;;) {
    const { value: first } = await rows.next()
    if (!first) return journalled(blob, found)
    const head = HEAD.exec(first.head)
    if (!head) throw new BlobDamaged(blob.key, `a journal entry begins with "${first.head}"`)
    const { value: result } = await rows.next()
    const { value: audit } = await rows.next()
    if (!result || !audit) throw new BlobDamaged(blob.key, 'a journal entry is incomplete')
    found.push({
      line: Number(head[1]),
      part: head[2] === 'output' ? 'output' : 'error',
      result: { start: result.start, end: result.end },
      audit: { start: audit.start, end: audit.end },
    })
  }
}

/** Finds the entries of a part by the journal's index. */
export async function findJournalled(sealed: SealedBlobs, { part, blob }: Part): Promise<Journalled[]> {
  const places = placesInJournal(await readLineIndex(sealed, JOURNAL_OWNER, blob), 0)
  const isInPart = ({ result, audit }: LinePlace): boolean =>
    result.start > part.byte_start && audit.end <= part.byte_end
  return journalled(blob, places.filter(isInPart))
}

function journalled({ key, wrapped_key, bytes }: SealedBlob, places: readonly LinePlace[]): Journalled[] {
  const blob = { key, wrapped_key, bytes }
  const spanOf = (range: ByteRange): Span => ({ project_id: JOURNAL_OWNER, blob, range })
  return places.map((place) => ({ ...place, result: spanOf(place.result), audit: spanOf(place.audit) }))
}

/** A row of a blob, which ends with a line break. */
interface Row {
  start: number
  /** Behind its line break. */
  end: number
  /** Its first bytes, as many as requested. */
  head: string
}

const NEWLINE = 0x0a

/** `start` is the offset of the first piece. Bytes after the last line break are no row. */
export async function* scanRows(
  pieces: AsyncIterable<Buffer>,
  headBytes: number,
  start = 0,
): AsyncGenerator<Row, void, undefined> {
  let row = { start, head: '' }
  let at = start
  for await (const piece of pieces) {
    for (let from = 0; from < piece.length; ) {
      const found = piece.indexOf(NEWLINE, from)
      const end = found === -1 ? piece.length : found + 1
      const missing = headBytes - row.head.length
      if (missing > 0) row.head += piece.toString('latin1', from, Math.min(end, from + missing))
      from = end
      if (found === -1) continue
      yield { ...row, end: at + end }
      row = { start: at + end, head: '' }
    }
    at += piece.length
  }
}

// The journals of one chunk: the places of its finished lines, and the parts that cannot be used.

export interface Ports {
  db: Reader
  sealed: SealedBlobs
}

interface ChunkJournal {
  /** The finished lines that earlier commits wrote to journals. */
  written: Journalled[]
  /**
   * Parts that are damaged or missing, whose lines are lost; and parts that repeat a line of an earlier one, of which the
   * first counts. Both are reversed (commit.ts).
   */
  unusable: UnusablePart[]
}

interface UnusablePart {
  part: JournalPartRow
  /** The error of reading it; null if it is missing or repeats an earlier one. */
  error: unknown
}

/** By default every part is read to its end; `findJournalled` reads only indexes, which does not detect all damage. */
export async function readChunkJournal(
  { db, sealed }: Ports,
  { batch_id, idx }: Pick<ChunkRow, 'batch_id' | 'idx'>,
  findLines = scanJournal,
): Promise<ChunkJournal> {
  const journal: ChunkJournal = { written: [], unusable: [] }
  const seen = new Set<number>()
  const read = async (part: JournalPartRow): Promise<Journalled[] | UnusablePart> => {
    const blob = await readBlobRow(db, part.journal_blob)
    if (!blob) return { part, error: null }
    try {
      const lines = await findLines(sealed, { part, blob })
      return lines.some(({ line }) => seen.has(line)) ? { part, error: null } : lines
    } catch (error) {
      if (isDamaged(error)) return { part, error }
      throw error
    }
  }
  for (const part of await listJournalParts(db, batch_id, idx)) {
    let lines = await read(part)
    // Read twice, because one failed read is no proof of damage.
    if (!Array.isArray(lines)) lines = await read(part)
    if (Array.isArray(lines)) {
      journal.written.push(...lines)
      for (const { line } of lines) seen.add(line)
    } else journal.unusable.push(lines)
  }
  return journal
}

/** The journalled lines of an open chunk as the ledger counts them, by their audit records. Throws if a journal is damaged or repeats another one. */
export async function linesOfOpenChunk(
  { store, sealed }: { store: Store; sealed: SealedBlobs },
  chunk: Pick<ChunkRow, 'batch_id' | 'idx'>,
): Promise<EndedLine[]> {
  const { written, unusable } = await readChunkJournal({ db: store.read, sealed }, chunk)
  const [first] = unusable
  if (first)
    throw new Error(`${first.part.journal_blob} is damaged, missing or repeats lines of another journal`)
  const pieces: Buffer[] = []
  const spans = written.map(({ audit }) => audit)
  for await (const piece of readSpans(sealed, spans)) pieces.push(piece)
  const records = Buffer.concat(pieces).toString('utf8').split('\n').filter(Boolean)
  return records.map((record, i) => endedLine(JSON.parse(record), written[i]!.part))
}

function endedLine(record: Record<string, unknown>, part: EndedLine['part']): EndedLine {
  const usage = Object(record.usage)
  const text = (value: unknown): string | null => (typeof value === 'string' ? value : null)
  return {
    part,
    day: dayOf(Number(record.created) * 1000),
    model: text(record.model),
    entity: text(record.entity),
    usage:
      record.usage === null
        ? null
        : {
            prompt_tokens: Number(usage.prompt_tokens),
            completion_tokens: Number(usage.completion_tokens),
            total_tokens: Number(usage.total_tokens),
            cached_tokens: Number(usage.cached_tokens ?? 0),
            reasoning_tokens: Number(usage.reasoning_tokens ?? 0),
          },
    cost_nanos: nanosFromUsd(Number(record.cost_usd)),
    projected: NO_SPEND,
    isReserved: false,
    saved_nanos: null,
    isNotRun: isNotRun(
      Object(record.error).code,
      Object(record.attempts).length + Number(record.attempts_omitted ?? 0),
    ),
  }
}
