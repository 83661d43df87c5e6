// Reads the journals of one chunk: the places of its finished lines, and the parts that cannot be used.
import { isDamaged } from '../blobs/blobs.ts'
import type { SealedBlobs } from '../blobs/sealed.ts'
import { readBlobRow } from '../store/blobs.ts'
import { listJournalParts } from '../store/chunks.ts'
import type { ChunkRow, JournalPartRow } from '../store/schema.ts'
import type { Reader } from '../store/store.ts'
import { type Journalled, scanJournal } from './journal.ts'

export interface Ports {
  db: Reader
  sealed: SealedBlobs
}

interface ChunkJournal {
  /** The finished lines that earlier commits wrote to journals. */
  written: Journalled[]
  /**
   * Parts that are damaged or missing, whose lines are lost; and parts that repeat a line of an earlier one, of which the
   * first counts. Both are reversed (reverse-journal.ts).
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
