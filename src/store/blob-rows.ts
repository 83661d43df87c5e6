// What SQL knows of the sealed blobs: a row makes a blob part of the system. A blob without a row is an
// orphan of a crash; a blob pending deletion cannot be opened, for its key is destroyed, and its bytes are deleted next.
import type { SealedBlob } from '../blobs/sealed.ts'
import type { BlobRow } from './schema.ts'
import type { Reader, Writer } from './store.ts'

export async function insertBlobs(
  tx: Writer,
  project_id: string,
  blobs: readonly SealedBlob[],
  now: number,
): Promise<void> {
  await insertOwnedBlobs(
    tx,
    blobs.map((blob) => ({ project_id, blob })),
    now,
  )
}

/** The same for blobs of several projects. */
export async function insertOwnedBlobs(
  tx: Writer,
  owned: readonly { project_id: string; blob: SealedBlob }[],
  now: number,
): Promise<void> {
  if (owned.length === 0) return
  await tx
    .insertInto('blobs')
    .values(
      owned.map(({ project_id, blob }) => ({
        key: blob.key,
        project_id,
        wrapped_key: blob.wrapped_key,
        bytes: blob.bytes,
        created: now,
        deletion_pending_since: null,
      })),
    )
    .execute()
}

/** The blob, if it may still be opened. */
export async function readBlobRow(db: Reader, key: string): Promise<BlobRow | undefined> {
  return await db
    .selectFrom('blobs')
    .selectAll()
    .where('key', '=', key)
    .where('deletion_pending_since', 'is', null)
    .executeTakeFirst()
}

/** Locks these blobs until the end of the transaction. */
export async function lockBlobs(tx: Writer, keys: readonly string[]): Promise<void> {
  if (keys.length === 0) return
  // In a fixed order, which prevents deadlocks.
  await tx.selectFrom('blobs').select('key').where('key', 'in', keys).orderBy('key').forUpdate().execute()
}

/** Which of `keys` have a row, pending deletion or not. */
export async function knownBlobs(db: Reader, keys: readonly string[]): Promise<Set<string>> {
  if (keys.length === 0) return new Set()
  const rows = await db.selectFrom('blobs').select('key').where('key', 'in', keys).execute()
  return new Set(rows.map((row) => row.key))
}

/** Marks blobs for deletion and destroys their keys: from this commit on they cannot be decrypted. */
export async function markForDeletion(tx: Writer, keys: readonly string[], now: number): Promise<void> {
  if (keys.length === 0) return
  await tx
    .updateTable('blobs')
    .set({ deletion_pending_since: now, wrapped_key: '' })
    .where('key', 'in', keys)
    .where('deletion_pending_since', 'is', null)
    .execute()
}

/** The same for one part of a batch's results: all its chunks' blobs. */
export async function markResultsForDeletion(
  tx: Writer,
  batch_id: string,
  part: 'output' | 'error',
  now: number,
): Promise<void> {
  const column = part === 'output' ? 'output_blob' : 'error_blob'
  await tx
    .updateTable('blobs')
    .set({ deletion_pending_since: now, wrapped_key: '' })
    .where('key', 'in', (qb) =>
      qb
        .selectFrom('chunks')
        .select(column)
        .where('batch_id', '=', batch_id)
        .where(column, 'is not', null)
        .$castTo<{ key: string }>(),
    )
    .where('deletion_pending_since', 'is', null)
    .execute()
}

export async function listPendingDeletion(db: Reader, limit: number): Promise<string[]> {
  const rows = await db
    .selectFrom('blobs')
    .select('key')
    .where('deletion_pending_since', 'is not', null)
    .orderBy('deletion_pending_since')
    .limit(limit)
    .execute()
  return rows.map((row) => row.key)
}

export async function forgetBlobs(tx: Writer, keys: readonly string[]): Promise<void> {
  if (keys.length === 0) return
  await tx
    .deleteFrom('blobs')
    .where('key', 'in', keys)
    .where('deletion_pending_since', 'is not', null)
    .execute()
}
