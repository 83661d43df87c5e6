// Rows of sealed blobs, one for every blob of the system. A blob without a row is an orphan of a crash; a blob pending
// deletion cannot be opened, since its key is destroyed, and its bytes are deleted next.
import { type RawBuilder, sql } from 'kysely'
import type { SealedBlob } from '../blobs/sealed.ts'
import { pagesOf } from './page.ts'
import { deleteRows, insertRows, readRow, selectRows, updateRows } from './rows.ts'
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

/** Inserts rows of blobs of several projects. */
export async function insertOwnedBlobs(
  tx: Writer,
  owned: readonly { project_id: string; blob: SealedBlob }[],
  now: number,
): Promise<void> {
  const rows = owned.map(({ project_id, blob: { key, wrapped_key, bytes } }) => {
    return { key, project_id, wrapped_key, bytes, created: now, deletion_pending_since: null }
  })
  await insertRows(tx, 'blobs', rows)
}

/** The row of a blob, unless the blob is pending deletion. */
export async function readBlobRow(db: Reader, key: string): Promise<BlobRow | undefined> {
  return await readRow(db, 'blobs', { key, deletion_pending_since: null })
}

/** Locks these blobs until the end of the transaction. */
export async function lockBlobs(tx: Writer, keys: readonly string[]): Promise<void> {
  if (keys.length === 0) return
  // A fixed order of locks prevents deadlocks.
  await selectRows(tx, 'blobs', { key: keys }).select('key').orderBy('key').forUpdate().execute()
}

/** The `keys` that have a row, pending deletion or not; with `openable`, only those not pending deletion. */
export async function knownBlobs(
  db: Reader,
  keys: readonly string[],
  openable = false,
): Promise<Set<string>> {
  if (keys.length === 0) return new Set()
  const match = { key: keys, ...(openable && { deletion_pending_since: null }) }
  const rows = await selectRows(db, 'blobs', match).select('key').execute()
  return new Set(rows.map((row) => row.key))
}

/** Marks blobs for deletion and destroys their keys: from this commit on they cannot be decrypted. */
export async function markForDeletion(tx: Writer, keys: readonly string[], now: number): Promise<void> {
  if (keys.length === 0) return
  await updateRows(tx, 'blobs', { key: keys, deletion_pending_since: null })
    .set({ deletion_pending_since: now, wrapped_key: '' })
    .execute()
}

/** Marks the blobs of one part of a batch's results, over all its chunks, for deletion. */
export async function markResultsForDeletion(
  tx: Writer,
  batch_id: string,
  part: 'output' | 'error',
  now: number,
): Promise<void> {
  const column = part === 'output' ? 'output_blob' : 'error_blob'
  await updateRows(tx, 'blobs', { deletion_pending_since: null })
    .set({ deletion_pending_since: now, wrapped_key: '' })
    .where('key', 'in', (qb) =>
      qb
        .selectFrom('chunks')
        .select(column)
        .where('batch_id', '=', batch_id)
        .where(column, 'is not', null)
        .$castTo<{ key: string }>(),
    )
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
  await deleteRows(tx, 'blobs', { key: keys }).where('deletion_pending_since', 'is not', null).execute()
}

// The blobs to which rows refer, and their uses, for `doctor`.

/** Any one of the blob keys and webhook secrets wrapped by the master key; null if there are none. */
export async function anyWrappedKey(db: Reader): Promise<string | null> {
  const blob = await selectRows(db, 'blobs', { deletion_pending_since: null })
    .select('wrapped_key')
    .limit(1)
    .executeTakeFirst()
  if (blob) return blob.wrapped_key
  const webhook = await db.selectFrom('webhooks').select('wrapped_secret').limit(1).executeTakeFirst()
  return webhook?.wrapped_secret ?? null
}

/** All blobs that can be opened, from the key `after` on, in pages of `limit`, ordered by key. */
export function blobPages(db: Reader, limit: number, after = ''): AsyncGenerator<BlobRow[]> {
  const openable = selectRows(db, 'blobs', { deletion_pending_since: null }).selectAll()
  const first = openable.orderBy('key').limit(limit)
  return pagesOf<BlobRow>(limit, (last) => first.where('key', '>', last?.key ?? after).execute())
}

/** A file or batch that needs a blob. */
export interface BlobUse {
  blob: string
  /** The ID of the file or batch. */
  owner: string
  part: 'content' | 'index' | 'output' | 'error' | 'audit' | 'journal' | 'upload_part'
}

/** Rows that refer to a blob, with the condition under which they no longer need it, as SQL. */
interface Reference {
  part: BlobUse['part']
  blob: string
  owner: string
  from: string
  isGone?: string
}

const ofFile = (part: 'content' | 'index'): Reference => ({
  part,
  blob: `files.${part}_blob`,
  owner: 'files.id',
  from: 'files',
  isGone: 'files.deleted_at IS NOT NULL',
})

const ofChunk = (part: 'output' | 'error' | 'audit'): Reference => ({
  part,
  blob: `chunks.${part}_blob`,
  owner: 'chunks.batch_id',
  from: 'chunks',
  // Results whose file was deleted are not needed; audit records have no file.
  isGone: `EXISTS (SELECT 1 FROM files WHERE files.batch_id = chunks.batch_id AND files.part = '${part}'
    AND files.deleted_at IS NOT NULL)`,
})

const REFERENCES: readonly Reference[] = [
  ofFile('content'),
  ofFile('index'),
  ofChunk('output'),
  ofChunk('error'),
  ofChunk('audit'),
  {
    part: 'journal',
    blob: 'journal_parts.journal_blob',
    owner: 'journal_parts.batch_id',
    from: 'journal_parts',
  },
  {
    part: 'upload_part',
    blob: 'upload_parts.blob',
    owner: 'upload_parts.upload_id',
    from: 'upload_parts',
  },
]

/** The files and batches that need this blob. */
export async function usesOfBlob(db: Reader, key: string): Promise<BlobUse[]> {
  return await uses(db, ({ from, blob }) => sql`${sql.raw(from)} WHERE ${sql.raw(blob)} = ${key}`)
}

/** Uses of blobs that have no row. Any result is a defect. */
export async function danglingUses(db: Reader, limit: number): Promise<BlobUse[]> {
  const found = await uses(db, ({ from, blob, isGone = '1 = 0' }) => {
    const unknown = `LEFT JOIN blobs ON blobs.key = ${blob} AND blobs.deletion_pending_since IS NULL
      WHERE ${blob} IS NOT NULL AND blobs.key IS NULL AND NOT (${isGone})`
    return sql`${sql.raw(from)} ${sql.raw(unknown)} LIMIT ${limit}`
  })
  return found.slice(0, limit)
}

async function uses(db: Reader, where: (reference: Reference) => RawBuilder<unknown>): Promise<BlobUse[]> {
  const found: BlobUse[] = []
  for (const reference of REFERENCES) {
    const { part, blob, owner } = reference
    const columns = sql.raw(`${blob} AS blob, ${owner} AS owner`)
    const { rows } = await sql<Omit<BlobUse, 'part'>>`SELECT ${columns} FROM ${where(reference)}`.execute(db)
    for (const row of rows) found.push({ ...row, part })
  }
  return found
}
