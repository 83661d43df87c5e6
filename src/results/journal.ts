// The journal: finished lines of open chunks, written together so that a crash loses none. An entry is three rows of
// text: `LINE PART`, the result line, the audit line. After the last entry comes an index (line-index.ts).

import { type ByteRange, isDamaged } from '../blobs/blobs.ts'
import type { SealedBlob, SealedBlobs } from '../blobs/sealed.ts'
import { readBlobRow } from '../store/blobs.ts'
import { listJournalParts } from '../store/chunks.ts'
import type { ChunkRow, JournalPartRow } from '../store/schema.ts'
import { type LinePlace, placesInJournal, readLineIndex } from './line-index.ts'
import type { Ports, Span } from './read-content.ts'

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
