// Runs the task that stores the content of an input file after the call that created the file was answered; then the
// file is validated like any other. Lines of a retry or of a table are made in one step, which starts again after a
// crash. A file in a bucket is fetched in several: each run reads the object's head, fetches one part, or joins the
// parts, and queues the next run in the same transaction. So a fetch continues after a crash with the missing part, and
// large files of several projects take turns. All parts are of the content that the first step found, by its ETag.
import { contentDamaged, isDamaged } from '../blobs/blobs.ts'
import { ObjectFailed, type OpenBucket, untilAborted } from '../blobs/objects.ts'
import type { SealedBlob } from '../blobs/sealed.ts'
import { stopReason } from '../domain/batch.ts'
import { urlField } from '../domain/bucket-url.ts'
import { every } from '../domain/clock.ts'
import { ApiError } from '../domain/errors.ts'
import { newId } from '../domain/ids.ts'
import type { Plan } from '../domain/plan.ts'
import { openBatchesOfInput } from '../store/batches.ts'
import { insertBlobs, markForDeletion, readBlobRow } from '../store/blobs.ts'
import {
  type FileSource,
  fileSource,
  lockFileRow,
  type MadeOf,
  markInvalid,
  updateFetched,
} from '../store/files.ts'
import { insertRow, readRow } from '../store/rows.ts'
import type { FileRow, TaskRow } from '../store/schema.ts'
import type { Ports, Reader, Writer } from '../store/store.ts'
import { finishTask, insertTask, sizeClass } from '../store/tasks.ts'
import { checkQuotas } from './check-quota.ts'
import { failedLines } from './retry-lines.ts'
import { tableLines } from './table-lines.ts'
import { bounded, safeFilename, uncompressed } from './upload.ts'

/** The size of a fetched part. A file of one part is not copied again; a row can name all parts of the largest file. */
const PART_BYTES = 16 * 1024 * 1024
const PARTS_MAX = 200

/** Inserts the file of `url` without content, in the transaction that inserts its batch. Resolves to the file's ID. */
export async function insertFetchedFile(
  tx: Writer,
  { project_id, url, retention_ms }: { project_id: string; url: string; retention_ms: number },
  now: number,
): Promise<string> {
  const file = { project_id, filename: safeFilename(url), retention_ms }
  return await insertPending(tx, file, { url, etag: null, parts: [] }, { kind: 'fetch' }, now)
}

/** Inserts a file without content, whose lines a task makes from `source`. Resolves to the file's ID. */
export async function insertMadeFile(
  tx: Writer,
  file: { project_id: string; filename: string; retention_ms: number },
  made: MadeOf,
  now: number,
): Promise<string> {
  const task = { kind: 'make' as const, large: 'table' in made ? (1 as const) : (0 as const) }
  return await insertPending(tx, file, { url: '', etag: null, parts: [], made }, task, now)
}

async function insertPending(
  tx: Writer,
  { retention_ms, ...file }: { project_id: string; filename: string; retention_ms: number },
  source: FileSource,
  task: Pick<TaskRow, 'kind'> & Partial<Pick<TaskRow, 'large'>>,
  now: number,
): Promise<string> {
  const id = newId('file', now)
  await insertRow(tx, 'files', {
    ...file,
    id,
    purpose: 'batch',
    bytes: 0,
    line_count: 0,
    status: 'pending',
    created: now,
    expires_at: now + retention_ms,
    source: JSON.stringify(source),
  })
  await insertTask(tx, { ...task, subject: id, project_id: file.project_id }, now)
  return id
}

export interface FetchDeps extends Pick<Ports, 'store' | 'sealed' | 'clock'> {
  plans: ReadonlyMap<string, Plan>
  openBucket: OpenBucket
  file_bytes_max: number
  part_bytes?: number
}

/** A file whose content is being fetched or made. */
interface Fetch {
  file: FileRow
  source: FileSource
}

/**
 * The limit of attempts at a bucket that this worker's configuration does not allow, some two minutes: the API process
 * that allowed it may have a newer configuration.
 */
const NOT_ALLOWED_MAX = 8

interface Step {
  bytes: number
  source: FileSource
  content_blob?: string
  /** The stored content, and the blobs that are no longer needed. */
  stored?: SealedBlob
  dropped?: readonly string[]
  check?: (tx: Writer) => Promise<void>
}

export async function fetchInput(deps: FetchDeps, task: TaskRow, signal: AbortSignal): Promise<void> {
  const { store, clock } = deps
  const file = await readRow(store.read, 'files', { id: task.subject })
  const source = file && fileSource(file)
  if (!source || file.status !== 'pending' || file.content_blob !== null || file.deleted_at !== null) {
    await store.write((tx) => finishTask(tx, task))
    return
  }
  const fetch = { file, source }
  try {
    if (!(await isNeeded(store.read, fetch, clock.now())))
      return await fail(deps, task, fetch, failed(source, 'its batch has ended before.'), true)
    await takeStep(deps, task, fetch, await nextStep(deps, task, fetch, signal))
  } catch (error) {
    const final =
      error instanceof ObjectFailed && error.isFinal
        ? failed(source, WHY[error.status ?? 0] ?? `${error.message}.`)
        : error
    if (!(final instanceof ApiError)) throw final
    if (final.code === 'bucket_not_allowed' && task.attempts < NOT_ALLOWED_MAX) throw final
    await fail(deps, task, fetch, final)
  }
}

async function nextStep(deps: FetchDeps, task: TaskRow, fetch: Fetch, signal: AbortSignal): Promise<Step> {
  const { store, openBucket, plans } = deps
  const { file, source } = fetch
  const { etag, parts, url, made } = source
  const project = await readRow(store.read, 'projects', { id: file.project_id })
  const quotas = plans.get(project?.plan ?? '')?.quotas
  if (!project || !quotas) throw new Error(`the plan of the project of file ${file.id} is missing`)
  const quota = (stored_bytes: number) => (tx: Writer) =>
    checkQuotas(tx, { project_id: project.id, quotas }, { stored_bytes })
  if (made) {
    const stored = await make(deps, task, fetch, made, signal)
    return { bytes: stored.bytes, source, content_blob: stored.key, stored, check: quota(stored.bytes) }
  }
  const { objects, key } = await openBucket(project, 'read', url)
  if (etag === null) {
    const found = await objects.stat(key, signal)
    if (found.bytes > deps.file_bytes_max)
      throw new ApiError(
        'payload_too_large',
        `${url} has ${found.bytes} bytes; a file has at most ${deps.file_bytes_max}.`,
      )
    return { bytes: found.bytes, source: { ...source, etag: found.etag }, check: quota(found.bytes) }
  }
  const fetched = parts.reduce((sum, { bytes }) => sum + bytes, 0)
  if (fetched === file.bytes) return await joinParts(deps, task, fetch, signal)
  const partBytes = Math.max(deps.part_bytes ?? PART_BYTES, Math.ceil(file.bytes / PARTS_MAX))
  const range = { start: fetched, end: Math.min(file.bytes, fetched + partBytes) }
  const content = untilAborted(objects.read(key, etag, range, signal), signal)
  const stored = await put(
    deps,
    task,
    file,
    `part${parts.length + 1}`,
    fetched === 0 ? uncompressed(content) : content,
  )
  if (stored.bytes !== range.end - range.start)
    throw new Error(`the bucket sent ${stored.bytes} bytes of ${url}`)
  const isWhole = stored.bytes === file.bytes
  return {
    bytes: file.bytes,
    source: { ...source, parts: isWhole ? [] : [...parts, { blob: stored.key, bytes: stored.bytes }] },
    ...(isWhole && { content_blob: stored.key }),
    stored,
  }
}

/** The interval at which a task checks whether the lines that it makes are still needed. */
const LOOK_MS = 1_000

async function make(
  deps: FetchDeps,
  task: TaskRow,
  fetch: Fetch,
  made: MadeOf,
  ended: AbortSignal,
): Promise<SealedBlob> {
  const { store, sealed, clock, file_bytes_max } = deps
  const { project_id } = fetch.file
  const unneeded = new AbortController()
  const signal = AbortSignal.any([ended, unneeded.signal])
  const endLooks = every(clock, LOOK_MS, async () => {
    // Storing the lines reports a failure of the database.
    if (!(await isNeeded(store.read, fetch, clock.now()).catch(() => true)))
      unneeded.abort(failed(fetch.source, 'its batch has ended before.'))
    return !unneeded.signal.aborted
  })
  const ports = { db: store.read, sealed, now: clock.now() }
  async function* lines(): AsyncGenerator<Buffer> {
    if ('table' in made) return yield* tableLines(ports, { ...made, project_id }, made.table, signal)
    const batch = await readRow(store.read, 'batches', { id: made.batch_id })
    if (batch) yield* failedLines(ports, batch, made.which)
  }
  try {
    const pieces = bounded(untilAborted(lines(), signal), file_bytes_max, 'file', () => {})
    return await put(deps, task, fetch.file, 'made', pieces)
  } catch (error) {
    if (!isDamaged(error)) throw error
    throw contentDamaged(error)
  } finally {
    void endLooks()
    unneeded.abort()
  }
}

/** Joins the parts, which are kept until the joined content is stored. A damaged part makes all be fetched again. */
async function joinParts(
  deps: FetchDeps,
  task: TaskRow,
  { file, source }: Fetch,
  signal: AbortSignal,
): Promise<Step> {
  const { store, sealed } = deps
  const dropped = source.parts.map(({ blob }) => blob)
  const none = { ...source, parts: [] }
  async function* content(): AsyncGenerator<Buffer> {
    for (const key of dropped) {
      const blob = await readBlobRow(store.read, key)
      if (!blob) throw new Error(`the part ${key} of file ${file.id} has been deleted`)
      yield* sealed.read(file.project_id, blob)
    }
  }
  try {
    const stored = await put(deps, task, file, 'upload', untilAborted(content(), signal))
    return { bytes: file.bytes, source: none, content_blob: stored.key, stored, dropped }
  } catch (error) {
    if (!isDamaged(error)) throw error
    return { bytes: 0, source: { ...none, etag: null }, dropped }
  }
}

async function put(
  { sealed, clock }: FetchDeps,
  task: TaskRow,
  { id, project_id }: FileRow,
  name: string,
  content: AsyncIterable<Buffer>,
): Promise<SealedBlob> {
  const key = `files/${id}/${name}-${task.epoch}-${clock.now().toString(36)}`
  return await sealed.put(project_id, key, content)
}

async function takeStep(
  { store, clock }: FetchDeps,
  task: TaskRow,
  { file }: Fetch,
  { stored, dropped = [], check, ...fetched }: Step,
): Promise<void> {
  const { id, project_id } = file
  await store.write(async (tx) => {
    if (!(await finishTask(tx, task))) return
    await check?.(tx)
    const now = clock.now()
    if (stored) await insertBlobs(tx, project_id, [stored], now)
    const isWanted = await updateFetched(tx, id, fetched)
    await markForDeletion(tx, isWanted || !stored ? dropped : [...dropped, stored.key], now)
    if (!isWanted) return
    const isFetched = fetched.content_blob !== undefined
    const large = isFetched ? sizeClass(fetched.bytes) : 0
    await insertTask(tx, { kind: isFetched ? 'validate' : 'fetch', subject: id, project_id, large }, now)
  })
}

/** Whether an open batch needs the file. A file whose lines are made exists before its batch. */
async function isNeeded(db: Reader, { file: { id }, source }: Fetch, now: number): Promise<boolean> {
  if ((await openBatchesOfInput(db, id)).some((batch) => stopReason(batch, now) === null)) return true
  if (!source.made || (await readRow(db, 'batches', { input_file_id: id }))) return false
  return (await readRow(db, 'files', { id }))?.deleted_at === null
}

/** Marks the file invalid; its batch fails with the same error (plan.ts). `looksAgain`: throws if a batch needs it. */
async function fail(
  { store, clock }: FetchDeps,
  task: TaskRow,
  { file, source }: Fetch,
  { code, message, details }: ApiError,
  looksAgain = false,
): Promise<void> {
  const { id } = file
  await store.write(async (tx) => {
    // The lock comes first, so that a batch created at the same time is found here, or finds the file invalid.
    if (looksAgain && (await lockFileRow(tx, id)) && (await isNeeded(tx, { file, source }, clock.now())))
      throw new Error(`a batch of file ${id} was created as its fetch was given up`)
    if (!(await finishTask(tx, task))) return
    await updateFetched(tx, id, { bytes: 0, source: { ...source, parts: [] } })
    const problem = { line: 0, code, message, ...details, ...(!source.made && { param: urlField('read') }) }
    await markInvalid(tx, id, { line_count: 0, status_details: message, errors: JSON.stringify([problem]) })
    await markForDeletion(
      tx,
      source.parts.map(({ blob }) => blob),
      clock.now(),
    )
  })
}

const WHY: Readonly<Record<number, string>> = {
  200: 'the server of the bucket sends whole objects alone, and no parts of them (it ignores `Range`). Upload the file with POST /v1/files instead.',
  403: 'the bucket allows the service no access to it, or it does not exist. Check the path, or ask the operator of the service.',
  404: 'there is no such object. Check the path, and create the batch again once it is there.',
  412: 'it was replaced while it was fetched. Create the batch again.',
}

function failed({ url, made }: FileSource, why: string): ApiError {
  if (made) return new ApiError('batch_not_retryable', `Its lines were not made: ${why}`)
  return new ApiError('input_url_failed', `${url} was not fetched: ${why}`)
}
