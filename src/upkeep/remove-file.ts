// What becomes of a file's content when the file goes. The file is gone for its users at once. Its content
// is destroyed in the same commit, unless unfinished batches still read it: then their unsent lines are ended,
// and the last of those batches to finish destroys it.
import { markInputDeleted, openBatchesOfInput } from '../store/batches.ts'
import { doomBlobs, doomResults } from '../store/blob-rows.ts'
import { wakeBatches } from '../store/chunks.ts'
import { markDeleted, readFileRow } from '../store/files.ts'
import type { FileRow } from '../store/schema.ts'
import type { Writer } from '../store/store.ts'

/** Removes a file, deleted by its owner or past its retention. False when it was removed before. */
export async function removeFile(tx: Writer, file: FileRow, now: number): Promise<boolean> {
  if (!(await markDeleted(tx, file.id, now))) return false
  if (file.batch_id !== null && file.part !== null) {
    await doomResults(tx, file.batch_id, file.part, now)
    return true
  }
  const readers = (await openBatchesOfInput(tx, file.id)).map((batch) => batch.id)
  await markInputDeleted(tx, readers, now)
  await wakeBatches(tx, readers)
  await releaseInput(tx, file.id, now)
  return true
}

/** Destroys the content of a deleted input that no unfinished batch reads any more. */
export async function releaseInput(tx: Writer, file_id: string, now: number): Promise<void> {
  const file = await readFileRow(tx, file_id)
  if (!file || file.deleted_at === null) return
  if ((await openBatchesOfInput(tx, file_id)).length > 0) return
  await doomBlobs(tx, [file.content_blob, file.index_blob].filter((key) => key !== null), now)
}
