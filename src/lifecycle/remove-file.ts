// Removes a file for users, and deletes its content. An unfinished batch keeps its input past the file's `expires_at`.
// A caller may delete the input all the same: lines in flight may finish, the others fail, and the last of those
// batches to end deletes the content (releaseInput).
import { isTerminal } from '../domain/batch.ts'
import { ApiError } from '../domain/errors.ts'
import { isInputShared, markInputDeleted, openBatchesOfInput } from '../store/batches.ts'
import { markForDeletion, markResultsForDeletion } from '../store/blobs.ts'
import { fileSource, lockFileRow, markDeleted } from '../store/files.ts'
import { stopRemoteBatches } from '../store/remote-batches.ts'
import { readRow } from '../store/rows.ts'
import type { BatchRow, FileRow } from '../store/schema.ts'
import type { Writer } from '../store/store.ts'

/** Removes a file, once or repeatedly. Throws file_not_deletable for results that are still being written. */
export async function removeFile(tx: Writer, file: FileRow, now: number): Promise<void> {
  if (file.batch_id !== null && file.part !== null) {
    const batch = await readRow(tx, 'batches', { id: file.batch_id })
    if (batch && !isTerminal(batch.status))
      throw new ApiError(
        'file_not_deletable',
        'The batch that writes this file has not ended yet; cancel it first.',
      )
    if (await markDeleted(tx, file.id, now)) await markResultsForDeletion(tx, file.batch_id, file.part, now)
    return
  }
  if (!(await markDeleted(tx, file.id, now))) return
  const open = (await openBatchesOfInput(tx, file.id)).map((batch) => batch.id)
  if (open.length === 0) return await deleteContent(tx, file, now)
  await markInputDeleted(tx, open, now)
  await stopRemoteBatches(tx, open, now)
}

/** Removes a file that has ended, unless a batch has been created from it since. */
export async function removeExpiredFile(tx: Writer, id: string, now: number): Promise<void> {
  // The lock comes first, so that a batch created from the file at the same time is found.
  const file = await lockFileRow(tx, id)
  if (file && (await openBatchesOfInput(tx, id)).length === 0) await removeFile(tx, file, now)
}

/** Removes the input of a batch, unless another batch reads it. */
export async function removeUnsharedInput(tx: Writer, batch: BatchRow, now: number): Promise<void> {
  // The lock comes first, so that a batch created at the same time is found here, or does not find the file.
  const file = await lockFileRow(tx, batch.input_file_id)
  if (file && !(await isInputShared(tx, batch))) await removeFile(tx, file, now)
}

/** Deletes the content of an input that was deleted before its batch ended; called in the transaction that ends it. */
export async function releaseInput(tx: Writer, file_id: string, now: number): Promise<void> {
  // The second of two batches that end at once sees that the first has ended.
  const file = await lockFileRow(tx, file_id)
  if (!file || file.deleted_at === null) return
  const open = await openBatchesOfInput(tx, file_id)
  if (open.length === 0) await deleteContent(tx, file, now)
}

async function deleteContent(tx: Writer, file: FileRow, now: number): Promise<void> {
  const fetched = fileSource(file)?.parts.map(({ blob }) => blob) ?? []
  const keys = [file.content_blob, file.index_blob, file.ids_blob, ...fetched].filter((key) => key !== null)
  await markForDeletion(tx, keys, now)
}
