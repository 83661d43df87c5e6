// The journal parts of open chunks: spans of journal blobs. A journal that no open chunk needs is marked for deletion in
// the transaction that seals the last chunk.
import { lockBlobs, markForDeletion } from './blob-rows.ts'
import type { JournalPartRow } from './schema.ts'
import type { Reader, Writer } from './store.ts'

export async function insertJournalParts(tx: Writer, parts: readonly JournalPartRow[]): Promise<void> {
  if (parts.length > 0) await tx.insertInto('journal_parts').values(parts).execute()
}

/** In the order in which they were written. */
export async function listJournalParts(db: Reader, batch_id: string, idx: number): Promise<JournalPartRow[]> {
  return await db
    .selectFrom('journal_parts')
    .selectAll()
    .where('batch_id', '=', batch_id)
    .where('idx', '=', idx)
    .orderBy('journal_blob')
    .execute()
}

/** Drops the journal parts of a chunk, or only those in the blobs `only`, and marks blobs without parts for deletion. */
export async function dropJournal(
  tx: Writer,
  batch_id: string,
  idx: number,
  now: number,
  only?: readonly string[],
): Promise<void> {
  const dropped = await tx
    .deleteFrom('journal_parts')
    .where('batch_id', '=', batch_id)
    .where('idx', '=', idx)
    .$if(only !== undefined, (parts) => parts.where('journal_blob', 'in', only ?? []))
    .returning('journal_blob')
    .execute()
  let unneeded = dropped.map((row) => row.journal_blob)
  const shared = await stillNeeded(tx, unneeded)
  if (shared.size > 0) {
    // Another chunk of the same journal may be sealed at the same time: the transaction that gets the lock second sees
    // that the parts of the first are gone, and deletes the journal.
    await lockBlobs(tx, [...shared])
    for (const key of await stillNeeded(tx, [...shared])) unneeded = unneeded.filter((one) => one !== key)
  }
  await markForDeletion(tx, unneeded, now)
}

async function stillNeeded(tx: Writer, keys: readonly string[]): Promise<Set<string>> {
  if (keys.length === 0) return new Set()
  const needed = await tx
    .selectFrom('journal_parts')
    .select('journal_blob')
    .distinct()
    .where('journal_blob', 'in', keys)
    .execute()
  return new Set(needed.map((row) => row.journal_blob))
}
