// Runs the task that fetches an input file from a bucket. Each run takes one step and queues the next run in the same
// transaction: it reads the object's head, fetches one part, or joins the parts. So a fetch continues after a crash
// with the missing part, and large files of several projects take turns. All parts are of the content that the first
// step found, by its ETag. Then the file is validated like any other.
import { isDamaged } from '../blobs/blobs.ts'
import { ObjectFailed, type OpenBucket, untilAborted } from '../blobs/objects.ts'
import type { SealedBlob } from '../blobs/sealed.ts'
import { stopReason } from '../domain/batch.ts'
import { urlField } from '../domain/bucket-url.ts'
import { ApiError } from '../domain/errors.ts'
import { newId } from '../domain/ids.ts'
import type { Plan } from '../domain/plan.ts'
import { openBatchesOfInput } from '../store/batches.ts'
import { insertBlobs, markForDeletion, readBlobRow } from '../store/blobs.ts'
import { type FileSource, fileSource, lockFileRow, markInvalid, updateFetched } from '../store/files.ts'
import { insertRow, readRow } from '../store/rows.ts'
import type { FileRow, TaskRow } from '../store/schema.ts'
import type { Ports, Reader, Writer } from '../store/store.ts'
import { finishTask, insertTask, sizeClass } from '../store/tasks.ts'
import { checkQuotas } from './check-quota.ts'
import { plain, safeFilename } from './upload.ts'

/** A file of one part is not copied again; one of more has at most as many as its row can name. */
const PART_BYTES = 16 * 1024 * 1024
const PARTS_MAX = 200

/** Makes the file of `url`, without content yet; its batch is to be made in the same transaction. Resolves to its ID. */
export async function insertFetchedFile(
  tx: Writer,
  { project_id, url, retention_ms }: { project_id: string; url: string; retention_ms: number },
  now: number,
): Promise<string> {
  const id = newId('file', now)
  const source: FileSource = { url, etag: null, parts: [] }
  await insertRow(tx, 'files', {
    id,
    project_id,
    purpose: 'batch',
    filename: safeFilename(url),
    bytes: 0,
    line_count: 0,
    status: 'pending',
    created: now,
    expires_at: now + retention_ms,
    source: JSON.stringify(source),
  })
  await insertTask(tx, { kind: 'fetch', subject: id, project_id }, now)
  return id
}

export interface FetchDeps extends Pick<Ports, 'store' | 'sealed' | 'clock'> {
  plans: ReadonlyMap<string, Plan>
  openBucket: OpenBucket
  file_bytes_max: number
  part_bytes?: number
}

/** A file that is being fetched. */
interface Fetch {
  file: FileRow
  source: FileSource
}

/**
 * Another worker may know the bucket while a configuration is rolled out: for about two minutes it is tried again, since
 * the API has allowed it.
 */
const NOT_ALLOWED_MAX = 8

interface Step {
  bytes: number
  source: FileSource
  content_blob?: string
  /** What was stored, and what is not needed any more. */
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
    if (!(await isNeeded(store.read, file, clock.now())))
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
  const { etag, parts, url } = source
  const project = await readRow(store.read, 'projects', { id: file.project_id })
  const quotas = plans.get(project?.plan ?? '')?.quotas
  if (!project || !quotas) throw new Error(`the plan of the project of file ${file.id} is missing`)
  const { objects, key } = await openBucket(project, 'read', url)
  if (etag === null) {
    const found = await objects.stat(key, signal)
    if (found.bytes > deps.file_bytes_max)
      throw new ApiError(
        'payload_too_large',
        `${url} has ${found.bytes} bytes; a file has at most ${deps.file_bytes_max}.`,
      )
    const check = (tx: Writer) =>
      checkQuotas(tx, { project_id: project.id, quotas }, { stored_bytes: found.bytes })
    return { bytes: found.bytes, source: { ...source, etag: found.etag }, check }
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
    fetched === 0 ? plain(content) : content,
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

/** The content is there twice until the parts are deleted. A part that is damaged is fetched again, with all others. */
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

/** By a batch that has not ended. */
async function isNeeded(db: Reader, { id }: FileRow, now: number): Promise<boolean> {
  return (await openBatchesOfInput(db, id)).some((batch) => stopReason(batch, now) === null)
}

/** Its batch fails with the same error (plan.ts). `looksAgain`: throws where a batch needs the file. */
async function fail(
  { store, clock }: FetchDeps,
  task: TaskRow,
  { file, source }: Fetch,
  { code, message }: ApiError,
  looksAgain = false,
): Promise<void> {
  const { id } = file
  await store.write(async (tx) => {
    // The lock comes first: a batch that is being created from the file is then seen, or finds that it is invalid.
    if (looksAgain && (await lockFileRow(tx, id)) && (await isNeeded(tx, file, clock.now())))
      throw new Error(`a batch of file ${id} was created as its fetch was given up`)
    if (!(await finishTask(tx, task))) return
    await updateFetched(tx, id, { bytes: 0, source: { ...source, parts: [] } })
    const problem = { line: 0, code, message, param: urlField('read') }
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

function failed({ url }: FileSource, why: string): ApiError {
  return new ApiError('input_url_failed', `${url} was not fetched: ${why}`)
}
