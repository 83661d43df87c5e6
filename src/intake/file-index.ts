// The index of an input file. Streaming validation (upload.ts) or the task `validate` makes it; a damaged index is
// rebuilt from the content of the file, since it contains nothing else.
import { isDamaged } from '../blobs/blobs.ts'
import type { Model } from '../domain/model.ts'
import type { FileIndex } from '../jsonl/projection.ts'
import { type BatchProjection, type ProjectionTerms, projectBatch } from '../ledger/check-limits.ts'
import { insertBlobs, markForDeletion, readBlobRow } from '../store/blobs.ts'
import { markInvalid, markProcessed, readFile, replaceIndex } from '../store/files.ts'
import { readRow } from '../store/rows.ts'
import type { FileRow, TaskRow } from '../store/schema.ts'
import type { Ports, Writer } from '../store/store.ts'
import { finishTask } from '../store/tasks.ts'
import { readPromptStatistics } from '../store/usage.ts'
import { StoredIds } from './stored-ids.ts'
import { type Validation, type ValidationLimits, validateContent } from './validation.ts'

type IndexDeps = Pick<Ports, 'store' | 'sealed' | 'clock'>

/** The limits of a file that was validated before: it stays valid when the configured limits are lowered. */
const UNLIMITED = { lines_max: Number.MAX_SAFE_INTEGER, line_bytes_max: Number.MAX_SAFE_INTEGER }

/** Reads a file's index; null for an invalid or deleted file, which has none. Throws if the content is damaged too. */
export async function readIndex(
  deps: IndexDeps,
  file: FileRow | undefined,
  signal?: AbortSignal,
): Promise<FileIndex | null> {
  const blob = file?.index_blob ? await readBlobRow(deps.store.read, file.index_blob) : undefined
  if (!file || !blob || blob.deletion_pending_since !== null) return null
  try {
    return JSON.parse(String(await deps.sealed.readAll(blob.project_id, blob)))
  } catch (error) {
    if (!isDamaged(error)) throw error
    return await rebuildIndex(deps, file, blob.key, signal)
  }
}

async function rebuildIndex(
  { store, sealed, clock }: IndexDeps,
  file: FileRow,
  damaged: string,
  signal: AbortSignal | undefined,
): Promise<FileIndex | null> {
  const content = file.content_blob ? await readBlobRow(store.read, file.content_blob) : undefined
  if (!content) return null
  const found = await validateContent(() => sealed.read(content.project_id, content), UNLIMITED, { signal })
  if (!found.ok)
    throw new Error(`the content of ${file.id} is not the content that was validated: ${found.details}`)
  const key = `files/${file.id}/index-rebuilt-${clock.now().toString(36)}`
  const index = await sealed.put(file.project_id, key, [Buffer.from(JSON.stringify(found.index))])
  await store.write(async (tx) => {
    const now = clock.now()
    await insertBlobs(tx, file.project_id, [index], now)
    const replaced = await replaceIndex(tx, file.id, damaged, key)
    // Another process may have replaced the index, or the file was deleted meanwhile.
    await markForDeletion(tx, [replaced ? damaged : key], now)
  })
  return found.index
}

interface ProjectionDeps extends IndexDeps {
  models: ReadonlyMap<string, Model>
}

/** The models, with the prompt tokens that their servers reported. */
export async function withStatistics({
  store,
  models,
}: Pick<ProjectionDeps, 'store' | 'models'>): Promise<ReadonlyMap<string, Model>> {
  const seen = await readPromptStatistics(store.read)
  return new Map([...models].map(([id, model]) => [id, { ...model, seen: seen.get(id) }]))
}

/**
 * Projects the cost of a batch from the index of its input file. Null when a batch cannot read the file; createBatch
 * throws the reason.
 */
export async function readProjection(
  deps: ProjectionDeps,
  wanted: ProjectionTerms & { project_id: string; input_file_id: string },
): Promise<BatchProjection | null> {
  const models = await withStatistics(deps)
  const index = await readIndex(
    deps,
    await readFile(deps.store.read, wanted.project_id, wanted.input_file_id, deps.clock.now()),
  )
  return index && projectBatch(index, models, wanted)
}

/** The number of retries after which unreadable content counts as damaged. */
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

/**
 * Runs the task that validates an uploaded file: pending → processed, or error with the invalid lines. It runs in a
 * worker, so the API is not slowed by large files. If streaming validation has stored the index already, nothing is
 * read.
 */
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
      // The caller can upload a damaged file again, so an operator need not restore it.
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
