// The journal: finished lines of open chunks, written together so that a crash loses none. An entry is three rows of
// text: `LINE PART`, the result line, the audit line. After the last entry comes an index (line-index.ts).

import { isDamaged } from '../blobs/blobs.ts'
import type { SealedBlob, SealedBlobs } from '../blobs/sealed.ts'
import { readBlobRow } from '../store/blobs.ts'
import { listJournalParts } from '../store/chunks.ts'
import type { ChunkRow, JournalPartRow } from '../store/schema.ts'
import { type ByteWriter, digitsOf } from './byte-writer.ts'
import { type FinishedLine, readLineIndex, type Span } from './line-index.ts'
import type { Ports } from './read-content.ts'

export interface Journalled extends FinishedLine {
  result: Span
}

/** The owner of journals, instead of a project: a journal has lines of several projects. */
export const JOURNAL_OWNER = 'offpeak'

interface Part {
  part: Pick<JournalPartRow, 'byte_start' | 'byte_end'>
  blob: SealedBlob
}

/** Finds the entries of a journal part by the journal's index. */
export async function findJournalled(sealed: SealedBlobs, { part, blob: row }: Part): Promise<Journalled[]> {
  const { key, wrapped_key, bytes } = row
  const blob = { key, wrapped_key, bytes }
  let at = 0
  const next = (bytes: number): Span => {
    const start = at
    at += bytes
    return { project_id: JOURNAL_OWNER, blob, range: { start, end: at } }
  }
  const all = (await readLineIndex(sealed, JOURNAL_OWNER, blob)).map((sizes) => {
    const { line, part, resultBytes, auditBytes } = sizes
    at += entryHeadBytes(line, part)
    return { line, part, result: next(resultBytes), audit: next(auditBytes) }
  })
  return all.filter(
    ({ result, audit }) => result.range.start > part.byte_start && audit.range.end <= part.byte_end,
  )
}

/** Writes the first row of an entry. */
export function writeEntryHead(out: ByteWriter, line: number, part: FinishedLine['part']): void {
  out.count(line)
  out.ascii(part === 'output' ? ' output\n' : ' error\n')
}

export function entryHeadBytes(line: number, part: FinishedLine['part']): number {
  return digitsOf(line) + ' '.length + part.length + '\n'.length
}

// The journals of one chunk: the places of its finished lines, and the parts that cannot be used.

interface ChunkJournal {
  /** The finished lines that earlier commits wrote to journals. */
  written: Journalled[]
  /**
   * Damaged or missing parts, whose lines are lost; and parts that repeat a line of an earlier one, of which the first
   * counts. Both are reversed (commit.ts).
   */
  unusable: UnusablePart[]
}

interface UnusablePart {
  part: JournalPartRow
  /** The error of reading the part; null if the part is missing or repeats an earlier one. */
  error: unknown
}

/** Reads a chunk's journals. `isWhole`: to the end of every part, which detects all damage; else only the indexes. */
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
    // A second read follows, since one failure is no proof of damage.
    if (!Array.isArray(lines)) lines = await read(part)
    if (Array.isArray(lines)) {
      journal.written.push(...lines)
      for (const { line } of lines) seen.add(line)
    } else journal.unusable.push(lines)
  }
  return journal
}
