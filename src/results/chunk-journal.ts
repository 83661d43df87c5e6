// Where the finished lines of one chunk are in the journals, and which journals cannot be read. Every part is read to
// its end, and nothing of it is kept in memory.
import { isDamaged } from '../blobs/blobs.ts'
import type { SealedBlobs } from '../blobs/sealed.ts'
import { readBlobRow } from '../store/blob-rows.ts'
import { listJournalParts } from '../store/journal-parts.ts'
import type { JournalPartRow } from '../store/schema.ts'
import type { Reader } from '../store/store.ts'
import { type Journalled, JournalMalformed, scanJournal } from './journal.ts'

export interface ChunkJournal {
  /** The finished lines that earlier commits wrote to journals. */
  written: Journalled[]
  /**
   * Parts that are damaged or gone, and what was in them lost; and parts that have a line of an earlier one, which
   * older versions could commit twice: the first commit counts. Both are taken back (take-back.ts).
   */
  damaged: JournalPartRow[]
}

export async function readChunkJournal(
  db: Reader,
  sealed: SealedBlobs,
  batch_id: string,
  idx: number,
): Promise<ChunkJournal> {
  const found: ChunkJournal = { written: [], damaged: [] }
  const seen = new Set<number>()
  for (const part of await listJournalParts(db, batch_id, idx)) {
    // Read twice: one bad read is no proof.
    const written = (await readPart(db, sealed, part)) ?? (await readPart(db, sealed, part))
    if (written && !written.some(({ line }) => seen.has(line))) {
      found.written.push(...written)
      for (const { line } of written) seen.add(line)
    } else found.damaged.push(part)
  }
  return found
}

/** Null when it is damaged or gone. */
async function readPart(db: Reader, sealed: SealedBlobs, part: JournalPartRow): Promise<Journalled[] | null> {
  const blob = await readBlobRow(db, part.journal_blob)
  if (!blob) return null
  try {
    return await scanJournal(sealed, { part, blob })
  } catch (error) {
    if (isDamaged(error) || error instanceof JournalMalformed) return null
    throw error
  }
}
