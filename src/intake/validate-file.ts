// Runs the task that validates an uploaded file: pending → processed, or error with the invalid lines. It runs in a
// worker, so the API is not slowed by large files. If streaming validation has stored the index already, nothing is
// read.
import { isDamaged } from '../blobs/blobs.ts'
import type { SealedBlob } from '../blobs/sealed.ts'
import { insertBlobs, markForDeletion, readBlobRow } from '../store/blobs.ts'
import { markInvalid, markProcessed } from '../store/files.ts'
import { readRow } from '../store/rows.ts'
import type { FileRow, TaskRow } from '../store/schema.ts'
import type { Ports } from '../store/store.ts'
import { finishTask } from '../store/tasks.ts'
import { StoredIds } from './stored-ids.ts'
import { type Validation, type ValidationLimits, validateContent } from './validation.ts'

/** How often unreadable content is retried before it counts as damaged. */
const RETRIES_MAX = 2

const DAMAGED = {
  ok: false,
  errors: [],
  error_count: 0,
  details: 'The stored content is damaged. Upload the file again.',
} as const satisfies Validation

interface ValidateDeps extends Pick<Ports, 'store' | 'sealed' | 'clock'> {
  limits: ValidationLimits
}

export async function validateFile(deps: ValidateDeps, task: TaskRow, signal: AbortSignal): Promise<void> {
  const { store, sealed, clock, limits } = deps
  const file = await readRow(store.read, 'files', { id: task.subject })
  const content = file?.content_blob ? await readBlobRow(store.read, file.content_blob) : undefined
  if (!file || !content || file.status !== 'pending' || file.deleted_at !== null) {
    await store.write((tx) => finishTask(tx, task))
    return
  }
  // Streaming validation found the file valid.
  if (file.index_blob !== null) return await acceptIndexed(deps, task, file, file.index_blob)
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
  if (verdict.ok) await accept(deps, task, file, key, verdict)
  else await refuse(deps, task, file, verdict)
}

async function accept(
  { store, sealed, clock }: ValidateDeps,
  task: TaskRow,
  file: FileRow,
  key: string,
  verdict: Extract<Validation, { ok: true }>,
): Promise<void> {
  const json = Buffer.from(JSON.stringify(verdict.index))
  const index: SealedBlob = await sealed.put(file.project_id, key, [json])
  const ids = verdict.custom_ids
  await store.write(async (tx) => {
    if (!(await finishTask(tx, task))) return
    const now = clock.now()
    const blobs = ids ? [index, ids] : [index]
    await insertBlobs(tx, file.project_id, blobs, now)
    const { line_count } = verdict
    const marked = await markProcessed(tx, file.id, {
      line_count,
      index_blob: key,
      ids_blob: ids?.key ?? null,
    })
    if (!marked)
      await markForDeletion(
        tx,
        blobs.map((blob) => blob.key),
        now,
      )
  })
}

async function acceptIndexed(
  { store }: ValidateDeps,
  task: TaskRow,
  { id, line_count, ids_blob }: FileRow,
  index_blob: string,
): Promise<void> {
  await store.write(async (tx) => {
    if (await finishTask(tx, task)) await markProcessed(tx, id, { line_count, index_blob, ids_blob })
  })
}

async function refuse(
  { store }: ValidateDeps,
  task: TaskRow,
  file: FileRow,
  verdict: Extract<Validation, { ok: false }>,
): Promise<void> {
  await store.write(async (tx) => {
    if (!(await finishTask(tx, task))) return
    await markInvalid(tx, file.id, {
      line_count: verdict.line_count ?? 0,
      status_details: verdict.details,
      errors: JSON.stringify(verdict.errors),
    })
  })
}
