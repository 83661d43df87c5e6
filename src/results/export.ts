// The task that writes the results of an ended batch to the bucket of its `output_url`: the files ID/output.jsonl and
// ID/errors.jsonl, byte for byte as they are downloaded. An object is written whole or not at all, and its key contains
// the batch's ID, so an attempt after a crash writes it again. A failure is retried like the delivery of an event.
// Callers may request another export, also to another URL; the outcome of an attempt counts for the URL that it wrote
// to.
import { isDamaged } from '../blobs/blobs.ts'
import { ObjectFailed, type OpenBucket, untilAborted } from '../blobs/objects.ts'
import { isTerminal } from '../domain/batch.ts'
import { ApiError } from '../domain/errors.ts'
import { EVERYTHING, endFetched, NOTHING } from '../lifecycle/fetched-results.ts'
import { nextAttemptAt } from '../notify/deliver.ts'
import { outputEnded, recordEvent } from '../notify/record-event.ts'
import { setBatch } from '../store/batches.ts'
import { readFile } from '../store/files.ts'
import { lockRow, readRow } from '../store/rows.ts'
import type { BatchRow, TaskRow } from '../store/schema.ts'
import type { Ports, Writer } from '../store/store.ts'
import { finishTask, postponeTask, requeueTask } from '../store/tasks.ts'
import { readContent } from './read-content.ts'

export interface ExportDeps extends Pick<Ports, 'store' | 'sealed' | 'clock'> {
  random: () => number
  openBucket: OpenBucket
  schedule?: typeof nextAttemptAt
}

/**
 * Requests an export of the batch's results to `output_url`: at once, or when it has ended. Resolves to the batch
 * afterwards. Throws file_not_found if the batch has ended and its results are deleted.
 */
export async function requestExport(
  tx: Writer,
  id: string,
  output_url: string,
  now: number,
): Promise<BatchRow> {
  const batch = await lockRow(tx, 'batches', { id })
  if (!batch) throw new Error(`batch ${id} has no row`)
  const { project_id, output_file_id, error_file_id } = batch
  const fresh = { output_url, output_url_status: 'pending', output_url_error: null } as const
  if (isTerminal(batch.status)) {
    for (const file_id of [output_file_id, error_file_id])
      if (file_id !== null && !(await readFile(tx, project_id, file_id, now)))
        throw new ApiError('file_not_found', 'The results of this batch were deleted, or have expired.')
    await requeueTask(tx, { kind: 'export', subject: id, project_id }, now)
  }
  await setBatch(tx, id, fresh)
  return { ...batch, ...fresh }
}

export async function exportResults(deps: ExportDeps, task: TaskRow, signal: AbortSignal): Promise<void> {
  const { store, clock, random, schedule = nextAttemptAt } = deps
  const batch = await readRow(store.read, 'batches', { id: task.subject })
  if (!batch || batch.output_url === null || batch.output_url_status !== 'pending') {
    await store.write((tx) => finishTask(tx, task))
    return
  }
  let failure: unknown = null
  try {
    await writeFiles(deps, task, batch, batch.output_url, signal)
  } catch (error) {
    signal.throwIfAborted()
    failure = error
  }
  const now = clock.now()
  const error = failure === null ? null : reasonOf(failure)
  const isGone =
    failure instanceof ApiError && (failure.code === 'file_not_found' || failure.code === 'content_not_kept')
  const next =
    failure === null || isGone
      ? null
      : schedule({ started: task.created, attempts: task.attempts }, now, random())
  await store.write(async (tx) => {
    const current = await lockRow(tx, 'batches', { id: batch.id })
    if (!current || current.output_url !== batch.output_url) {
      if (await finishTask(tx, task)) await requeueTask(tx, task, now)
      return
    }
    if (next !== null) {
      if (await postponeTask(tx, task, next, error))
        await setBatch(tx, batch.id, { output_url_status: 'pending', output_url_error: error })
      return
    }
    if (!(await finishTask(tx, task))) return
    const status = failure === null ? 'delivered' : 'failed'
    await setBatch(tx, batch.id, { output_url_status: status, output_url_error: error })
    // A caller may have fetched results before the export.
    const fetched = failure === null ? EVERYTHING : NOTHING
    await endFetched(tx, { ...current, output_url_status: status }, fetched, now)
    await recordEvent(tx, outputEnded(batch, status, error), now)
  })
}

async function writeFiles(
  { store, sealed, clock, openBucket }: ExportDeps,
  task: TaskRow,
  { id, project_id, output_file_id, error_file_id }: BatchRow,
  output_url: string,
  signal: AbortSignal,
): Promise<void> {
  const project = await readRow(store.read, 'projects', { id: project_id })
  if (!project) throw new Error(`batch ${id} belongs to no project`)
  const { objects, key } = await openBucket(project, 'write', output_url)
  const files = { 'output.jsonl': output_file_id, 'errors.jsonl': error_file_id }
  for (const [name, file_id] of Object.entries(files)) {
    if (file_id === null) continue
    const file = await readFile(store.read, project_id, file_id, clock.now())
    if (!file) throw new ApiError('file_not_found', 'the result file was deleted before it was written')
    const place = `${key}${id}/${name}`
    // Credentials may not allow this; then the bucket's lifecycle rules have to.
    if (task.attempts > 1) await objects.abortUploads(place, signal).catch(() => {})
    const content = readContent({ db: store.read, sealed }, file, { start: 0, end: file.bytes })
    const bytes = await objects.put(place, untilAborted(content, signal), signal)
    if (bytes !== file.bytes) throw new Error(`${bytes} bytes of ${file_id} were written, not ${file.bytes}`)
  }
}

/** The error for the owner of the batch; errors of other parts of the service are for the log. */
function reasonOf(failure: unknown): string {
  if (isDamaged(failure)) return `the stored content ${failure.key} is damaged or missing`
  return failure instanceof ObjectFailed || failure instanceof ApiError
    ? failure.message
    : 'the service failed to read the results'
}
