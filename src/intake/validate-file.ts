// Runs the task that validates an uploaded file: pending → processed, or error with the invalid lines. It runs in a
// worker, so the API is not slowed by large files. If streaming validation has stored the index already, nothing is
// read.
import { isDamaged } from '../blobs/blobs.ts'
import { insertBlobs, markForDeletion, readBlobRow } from '../store/blobs.ts'
import { markInvalid, markProcessed } from '../store/files.ts'
import { readRow } from '../store/rows.ts'
import type { TaskRow } from '../store/schema.ts'
import type { Ports, Writer } from '../store/store.ts'
import { finishTask } from '../store/tasks.ts'
import { StoredIds } from './stored-ids.ts'
import { type Validation, type ValidationLimits, validateContent } from './validation.ts'

/** How often unreadable content is retried before it counts as damaged. */
const RETRIES_MAX = 2

const DAMAGED: Validation = {
  ok: false,
  errors: [],
  error_count: 0,
  details: 'The stored content is damaged. Upload the file again.',
}

interface ValidateDeps extends Pick<Ports, 'store' | 'sealed' | 'clock'> {
  limits: ValidationLimits
}

export async function validateFile(deps: ValidateDeps, task: TaskRow, signal: AbortSignal): Promise<void> {
  const { store, sealed, clock, limits } = deps
  const finish = (mark: (tx: Writer) => Promise<unknown>): Promise<void> =>
    store.write(async (tx) => {
      if (await finishTask(tx, task)) await mark(tx)
    })
  const file = await readRow(store.read, 'files', { id: task.subject })
  const content = file?.content_blob ? await readBlobRow(store.read, file.content_blob) : undefined
  if (!file || !content || file.status !== 'pending' || file.deleted_at !== null) {
    return await finish(async () => {})
  }
  // Streaming validation found the file valid.
  if (file.index_blob !== null) {
    const { line_count, index_blob, ids_blob } = file
    return await finish((tx) => markProcessed(tx, file.id, { line_count, index_blob, ids_blob }))
  }
  const key = `files/${file.id}/index-${task.epoch}-${clock.now().toString(36)}`
  const ids = new StoredIds(sealed, file.project_id, `${key}-ids`)
  const verdict = await validateContent(() => sealed.read(content.project_id, content), limits, {
    signal,
    ids,
  })
    .catch((error: unknown) => {
      // An operator need not restore it: the caller can upload the file again.
      if (isDamaged(error) && task.attempts > RETRIES_MAX) return DAMAGED
      throw error
    })
    .finally(() => ids.discard())
  if (!verdict.ok)
    return await finish((tx) =>
      markInvalid(tx, file.id, {
        line_count: verdict.line_count ?? 0,
        status_details: verdict.details,
        errors: JSON.stringify(verdict.errors),
      }),
    )
  const { line_count, custom_ids } = verdict
  const index = await sealed.put(file.project_id, key, [Buffer.from(JSON.stringify(verdict.index))])
  const blobs = custom_ids ? [index, custom_ids] : [index]
  await finish(async (tx) => {
    const now = clock.now()
    await insertBlobs(tx, file.project_id, blobs, now)
    const ids_blob = custom_ids?.key ?? null
    const keys = blobs.map((blob) => blob.key)
    const marked = await markProcessed(tx, file.id, { line_count, index_blob: key, ids_blob })
    if (!marked) await markForDeletion(tx, keys, now)
  })
}
