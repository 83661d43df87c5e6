// The journal: finished lines of open chunks, written together so that a crash loses none. An entry is three rows of
// text: `LINE PART`, the result line, the audit line. After the last entry comes an index (line-index.ts).

import { type ByteRange, isDamaged } from '../blobs/blobs.ts'
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

interface Part {
  part: Pick<JournalPartRow, 'byte_start' | 'byte_end'>
  blob: SealedBlob
}

/** Finds the entries of a part by the journal's index. */
export async function findJournalled(sealed: SealedBlobs, { part, blob }: Part): Promise<Journalled[]> {
  const places = placesInJournal(await readLineIndex(sealed, JOURNAL_OWNER, blob))
  const isInPart = ({ result, audit }: LinePlace): boolean =>
    result.start > part.byte_start && audit.end <= part.byte_end
  return journalled(blob, places.filter(isInPart))
}

function journalled({ key, wrapped_key, bytes }: SealedBlob, places: readonly LinePlace[]): Journalled[] {
  const blob = { key, wrapped_key, bytes }
  const spanOf = (range: ByteRange): Span => ({ project_id: JOURNAL_OWNER, blob, range })
  return places.map((place) => ({ ...place, result: spanOf(place.result), audit: spanOf(place.audit) }))
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

/** `isWhole`: every part is read to its end, which detects all damage; otherwise only the indexes are read. */
export async function readChunkJournal(
  { db, sealed }: Ports,
  { batch_id, idx }: Pick<ChunkRow, 'batch_id' | 'idx'>,
  isWhole = true,
): Promise<ChunkJournal> {
  const journal: ChunkJournal = { written: [], unusable: [] }
  const seen = new Set<number>()
  const read = async (part: JournalPartRow): Promise<Journalled[] | UnusablePart> => {
    const blob = await readBlobRow(db, part.journal_blob)
    if (!blob) return { part, error: null }
    try {
      const lines = await findJournalled(sealed, { part, blob })
      const range = { start: part.byte_start, end: part.byte_end }
      if (isWhole) for await (const _ of sealed.read(JOURNAL_OWNER, blob, range));
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
