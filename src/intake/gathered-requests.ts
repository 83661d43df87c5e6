// Gathers single requests into batches. Requests of one project, key, endpoint and window that arrive together are committed
// together: their lines are one blob and one chunk of an open batch, and their projected cost is reserved. A worker
// sends a chunk as soon as it is stored; the batch accepts further requests for a while. Then its lines become a file
// like any other (closeGathered), which the task `plan` of the batch does, so that no crash leaves a batch open.
import { BlobMissing, isDamaged } from '../blobs/blobs.ts'
import { discardBlobs, type SealedBlob } from '../blobs/sealed.ts'
import { CHUNK_BYTES_MAX, CHUNK_LINES_MAX, stopReason } from '../domain/batch.ts'
import { BoundedMap } from '../domain/bounded-map.ts'
import { sleep } from '../domain/clock.ts'
import type { EndpointPath } from '../domain/endpoint.ts'
import { ApiError, isErrorCode } from '../domain/errors.ts'
import { newId } from '../domain/ids.ts'
import type { Model } from '../domain/model.ts'
import type { CompletionWindow, Quotas } from '../domain/plan.ts'
import { LINE_BREAK } from '../jsonl/byte-lines.ts'
import { checkLine } from '../jsonl/check-line.ts'
import { placesInChunk } from '../jsonl/chunk-lines.ts'
import { LineScanner } from '../jsonl/line-scan.ts'
import type { FileIndex } from '../jsonl/projection.ts'
import { projectBatch, recordProjectedSpend } from '../ledger/check-limits.ts'
import type { Language } from '../ledger/limit-error.ts'
import { type FinishRules, finishIfDone } from '../lifecycle/batch.ts'
import { extendBatch, insertBatch, moveBatch, setBatch } from '../store/batches.ts'
import { insertBlobs, markForDeletion } from '../store/blobs.ts'
import { chunksOf, insertChunks } from '../store/chunks.ts'
import { markInvalid } from '../store/files.ts'
import { insertRow, readRow, selectRows, slices, updateRows } from '../store/rows.ts'
import type { BatchRow, ChunkRow, TaskRow } from '../store/schema.ts'
import type { Ports, Writer } from '../store/store.ts'
import { finishTask, insertTask, runAtOnce, sizeClass } from '../store/tasks.ts'
import { admitLines, modelsText } from './create-batch.ts'
import { withStatistics } from './file-index.ts'
import { commitOrDiscard } from './upload.ts'
import { FileIndexer } from './validation.ts'

const FILENAME = 'requests.jsonl'

/**
 * The number of requests in a commit from which the next commit waits for more, as each costs the database the same:
 * until as many requests came as callers at the last commit, or for so long.
 */
const MANY = 16
const MANY_WAIT_MS = 110

/** The time for which read prompt statistics are used again. */
const STATISTICS_MS = 1_000

/** The share of its window that the last request of a batch may lose, since all requests expire with the first. */
const WINDOW_SHARE = 1 / 20

/** The share of their window by which chunks of conversations that have begun are due earlier, so that they go ahead of new requests. */
const BEGUN_SHARE = 1 / 4
/** The conversations that a process remembers. */
const CONVERSATIONS_MAX = 100_000

/** The duration for which an open batch accepts requests, and the limit of them. */
export interface GatherRules {
  ms: number
  lines: number
}

/** The caller of a single request. */
export interface RequestOwner {
  project_id: string
  key_id: string
  language: Language
  window: CompletionWindow
  quotas: Quotas
  retention_ms: number
  /** Retention as JSON; null: content is kept as that of other batches. */
  retention?: string | null
  /** The W3C trace context of the call; a batch has that of the call that opens it. */
  traceparent: string | null
}

export interface SingleRequest {
  owner: RequestOwner
  endpoint: EndpointPath
  custom_id: string
  /** The JSON of the line in the input file, without a line break. */
  line: Buffer
  model: string
  entity: string | null
  conversation: string | null
  /** Whether a webhook is sent its end. */
  hasWebhook: boolean
}

/** The parts of a line beside its body. */
interface LineParts {
  endpoint: string
  custom_id: string
  metadata: object | null
  /** The prefix of the body's fields in the `param` of errors. */
  prefix: string
}

/** The batch and line of an accepted request. */
export interface Gathered {
  batch: BatchRow
  line: number
}

/** Stores `record` of each accepted request in the transaction that accepts them all. */
type Recorder<T> = (
  tx: Writer,
  accepted: readonly { entry: Entry<T>; at: Gathered }[],
  now: number,
) => Promise<void>

interface Entry<T> {
  request: SingleRequest
  /** The record of the call; null where none is needed. */
  record: T
  done: (at: Gathered) => void
  failed: (error: unknown) => void
}

interface OpenBatch {
  batch: BatchRow
  chunks: number
  lines: number
  bytes: number
  models: Set<string>
  custom_ids: Set<string>
}

/** The requests of one project, key, endpoint, window and language. */
interface Group<T> {
  queue: Entry<T>[]
  /** Whether the requests continue conversations. */
  isBegun: boolean
  open: OpenBatch | null
  isRunning: boolean
  /** The number of requests that are committed without waiting for more. */
  enough?: { count: number; reached: AbortController }
}

/**
 * Makes the line of a single request and checks it like a file's line in validation and planning. The `param` of an
 * error names a field of the request.
 */
export class RequestLines {
  readonly #scanner = new LineScanner()

  /** The line of a request whose body is the received JSON `content`. Throws the errors of invalid lines. */
  lineOf(
    { endpoint, custom_id, metadata, prefix }: LineParts,
    content: Buffer,
    models: ReadonlyMap<string, Model>,
    bytesMax: number,
  ): Pick<SingleRequest, 'line' | 'endpoint' | 'model' | 'entity'> {
    const head = JSON.stringify({ custom_id, method: 'POST', url: endpoint, ...(metadata && { metadata }) })
    const line = Buffer.concat([Buffer.from(`${head.slice(0, -1)},"body":`), content, Buffer.from('}')])
    if (line.length > bytesMax) throw new ApiError('payload_too_large', undefined, { param: 'body' })
    const scanned = this.#scanner.scan(line, 0, line.length)
    const fault = scanned.ok ? checkLine(scanned, models, scanned.url) : scanned
    if (scanned.ok && fault === null) {
      const { url, body, entity } = scanned
      return { line, endpoint: url, model: body.model ?? '', entity }
    }
    const { code, message, param = null }: { code: string; message: string; param?: string | null } = fault!
    const isOfLine = param === null || /^(custom_id|metadata|body)\b/.test(param)
    const ofBody = isOfLine ? param?.replace(/^body\./, prefix) : `${prefix}${param}`
    const shown = param === 'url' ? 'endpoint' : (ofBody ?? null)
    throw new ApiError(
      isErrorCode(code) ? code : 'invalid_request',
      param === 'url' ? message.replace('`url`', '`endpoint`') : message,
      shown === null ? {} : { param: shown },
    )
  }
}

interface GatherOptions extends Pick<Ports, 'store' | 'sealed' | 'clock'> {
  models: ReadonlyMap<string, Model>
  rules: GatherRules
  /** Called when new chunks can be claimed. */
  wake: (news: 'chunks') => void
}

export class GatheredRequests<T> {
  readonly #options: GatherOptions
  readonly #record: Recorder<T>
  readonly #groups = new Map<string, Group<T>>()
  readonly #conversations = new BoundedMap<string, true>(CONVERSATIONS_MAX)
  #known = { at: Number.NEGATIVE_INFINITY, models: new Map<string, Model>() as ReadonlyMap<string, Model> }

  constructor(options: GatherOptions, record: Recorder<T>) {
    this.#options = options
    this.#record = record
  }

  /** Resolves when the request is durable. Throws usage_limit_exceeded, quota_exceeded, and the errors of `record`. */
  add(request: SingleRequest, record: T): Promise<Gathered> {
    const { project_id, key_id, window, language } = request.owner
    const conversation = request.conversation && `${project_id} ${request.entity} ${request.conversation}`
    const isBegun = conversation !== null && this.#conversations.has(conversation)
    if (conversation !== null) this.#conversations.set(conversation, true)
    const name = JSON.stringify([project_id, key_id, request.endpoint, window.text, language, isBegun])
    const group = this.#groups.get(name) ?? { queue: [], isBegun, open: null, isRunning: false }
    this.#groups.set(name, group)
    return new Promise((done, failed) => {
      group.queue.push({ request, record, done, failed })
      if (group.enough && group.queue.length >= group.enough.count) group.enough.reached.abort()
      if (!group.isRunning) void this.#run(group)
    })
  }

  /** Commits the queued requests until the queue is empty; requests that arrive meanwhile are committed together. */
  async #run(group: Group<T>): Promise<void> {
    group.isRunning = true
    // Calls of one turn of the event loop are committed together.
    await new Promise((resolve) => setImmediate(resolve))
    for (let entries = nextEntries(group); entries.length > 0; entries = nextEntries(group)) {
      await this.#commit(group, entries)
      if (entries.length >= MANY) {
        group.enough = { count: entries.length + group.queue.length, reached: new AbortController() }
        await sleep(this.#options.clock, MANY_WAIT_MS, group.enough.reached.signal)
      }
    }
    group.isRunning = false
    for (const [other, { open, isRunning }] of this.#groups)
      if (!isRunning && (open === null || !this.#takes(open))) this.#groups.delete(other)
  }

  async #knownModels(): Promise<ReadonlyMap<string, Model>> {
    const now = this.#options.clock.now()
    if (Math.abs(now - this.#known.at) >= STATISTICS_MS)
      this.#known = { at: now, models: await withStatistics(this.#options) }
    return this.#known.models
  }

  #takes({ batch, lines }: OpenBatch): boolean {
    const { clock, rules } = this.#options
    return clock.now() < batch.gathers_until! && lines < rules.lines
  }

  /** Commits `entries` and settles their promises. `isPart`: the entries are part of a rejected commit. */
  async #commit(group: Group<T>, entries: readonly Entry<T>[], isPart = false): Promise<void> {
    const { open } = group
    const mayExtend =
      open !== null &&
      this.#takes(open) &&
      // Two requests of one batch have different custom_ids, as the lines of a file do.
      !entries.some(({ request }) => open.custom_ids.has(request.custom_id))
    try {
      const next =
        (mayExtend && (await this.#store(group, open, entries, isPart))) ||
        (await this.#store(group, null, entries, isPart))
      if (!next) throw new Error('a new batch takes no requests')
      for (const { request } of entries) next.custom_ids.add(request.custom_id)
      group.open = next
      this.#options.wake('chunks')
      const first = next.lines - entries.length + 1
      for (const [i, { done }] of entries.entries()) done({ batch: next.batch, line: first + i })
    } catch (error) {
      // A limit or quota may have room for some of the requests.
      if (error instanceof ApiError && entries.length > 1)
        for (const part of partsOf(entries)) await this.#commit(group, part, true)
      else {
        // The commit may have succeeded, so the open batch is unknown.
        if (!(error instanceof ApiError)) group.open = null
        for (const { failed } of entries) failed(error)
      }
    }
  }

  /** Stores the requests in the batch `old` or a new one; null if `old` was closed, cancelled or paused meanwhile. */
  async #store(
    { isBegun }: Group<T>,
    old: OpenBatch | null,
    entries: readonly Entry<T>[],
    isPart: boolean,
  ): Promise<OpenBatch | null> {
    const { store, sealed, clock, rules } = this.#options
    const { owner, endpoint } = entries[0]!.request
    const { project_id, key_id } = owner
    const bytes = Buffer.concat(entries.flatMap(({ request }) => [request.line, LINE_BREAK]))
    const index = indexOf(bytes)
    const projection = projectBatch(index, await this.#knownModels(), { key_id })
    const own = new Set(entries.map(({ request }) => request.model))
    const file_id = old?.batch.input_file_id ?? newId('file', clock.now())
    const input_blob = `files/${file_id}/part-${old?.chunks ?? 0}-${clock.now().toString(36)}`
    const more = {
      queued_lines: entries.length,
      stored_bytes: bytes.length,
      ...(!old && { open_batches: 1 }),
    }
    // A rejection is likely, so the limits are checked before the content is stored.
    if (isPart) await store.write((tx) => admitLines(tx, owner, projection, more, clock.now()))
    const blob = await sealed.put(project_id, input_blob, [bytes])
    const commit = (): Promise<OpenBatch | null> =>
      store.write(async (tx) => {
        const now = clock.now()
        // First, since the quotas count the lines and batches that are stored.
        await admitLines(tx, owner, projection, more, now)
        const open = old ?? (await this.#openBatch(tx, owner, { endpoint, file_id }, now))
        const { batch } = open
        const next = {
          ...open,
          chunks: open.chunks + 1,
          lines: open.lines + entries.length,
          bytes: open.bytes + bytes.length,
          models: new Set([...open.models, ...own]),
        }
        const size = { total: next.lines, chunk_count: next.chunks, models: modelsText(next.models) }
        const hasLineEvents = entries.some(({ request }) => request.hasWebhook)
        if (!(await extendBatch(tx, batch.id, size, hasLineEvents))) return null
        const filled = { bytes: next.bytes, line_count: next.lines }
        await updateRows(tx, 'files', { id: file_id }).set(filled).execute()
        await insertBlobs(tx, project_id, [blob], now)
        const model = index.chunks[0]?.model ?? null
        const place = { first_line: open.lines + 1, byte_start: open.bytes, byte_end: next.bytes, input_blob }
        const due = batch.expires_at - Math.floor(isBegun ? owner.window.ms * BEGUN_SHARE : 0)
        const chunk = { index: open.chunks, model, line_count: entries.length, ...place }
        await insertChunks(tx, { ...batch, expires_at: due }, [chunk])
        await recordProjectedSpend(tx, batch, projection)
        if (next.lines >= rules.lines) await runAtOnce(tx, { kind: 'plan', subject: batch.id }, now)
        const accepted = entries.map((entry, i) => ({ entry, at: { batch, line: place.first_line + i } }))
        await this.#record(tx, accepted, now)
        return next
      })
    const discard = (): Promise<void> => discardBlobs(sealed, [blob])
    const stored = await commitOrDiscard(commit, discard)
    if (!stored) await discard()
    return stored
  }

  async #openBatch(
    tx: Writer,
    owner: RequestOwner,
    { endpoint, file_id }: { endpoint: EndpointPath; file_id: string },
    now: number,
  ): Promise<OpenBatch> {
    const { project_id, key_id, language, window, retention_ms, retention, traceparent } = owner
    const { rules } = this.#options
    await insertRow(tx, 'files', {
      ...{ id: file_id, project_id, purpose: 'batch', filename: FILENAME, bytes: 0, line_count: 0 },
      ...{ status: 'pending', created: now, expires_at: now + retention_ms },
    })
    const gathers_until = now + Math.floor(Math.min(rules.ms, window.ms * WINDOW_SHARE))
    const { id } = await insertBatch(tx, {
      ...{ id: newId('batch', now), project_id, key_id, language, endpoint, input_file_id: file_id },
      ...{ retention, traceparent },
      ...{ completion_window: window.text, total: 0, created: now, is_gathered: 1, gathers_until },
      expires_at: Math.floor(now / 1000) * 1000 + window.ms,
    })
    const batch = await moveBatch(tx, id, 'queued', now)
    await insertTask(tx, { kind: 'plan', subject: id, project_id, run_at: gathers_until }, now)
    return { batch: batch!, chunks: 0, lines: 0, bytes: 0, models: new Set(), custom_ids: new Set() }
  }
}

/** Parts of rejected requests that are tried apart: by their entities, whose caps differ, or else in two. */
function partsOf<T>(entries: readonly Entry<T>[]): (readonly Entry<T>[])[] {
  const parts = [...Map.groupBy(entries, ({ request }) => request.entity).values()]
  const half = Math.ceil(entries.length / 2)
  return parts.length > 1 ? parts : [entries.slice(0, half), entries.slice(half)]
}

/** The requests of the next commit: no more than a chunk holds, and with different custom_ids. */
function nextEntries<T>({ queue }: Group<T>): Entry<T>[] {
  const custom_ids = new Set<string>()
  let bytes = 0
  let count = 0
  for (const { request } of queue) {
    bytes += request.line.length + 1
    if (
      count > 0 &&
      (bytes > CHUNK_BYTES_MAX || count === CHUNK_LINES_MAX || custom_ids.has(request.custom_id))
    )
      break
    custom_ids.add(request.custom_id)
    count++
  }
  return queue.splice(0, count)
}

function indexOf(bytes: Buffer): FileIndex {
  const scanner = new LineScanner({ validated: true })
  const indexer = new FileIndexer()
  for (const { line, start, end } of placesInChunk(bytes, { first_line: 1 })) {
    const scanned = scanner.scan(bytes, start, end)
    if (!scanned.ok)
      throw new Error(`a request that was checked no longer reads as it did: ${scanned.message}`)
    indexer.add(scanned, line, start, end + 1)
  }
  return indexer.finish()
}

interface CloseDeps extends Pick<Ports, 'store' | 'sealed' | 'clock'> {
  rules: FinishRules
  onEnded?: (batch: BatchRow) => void
}

/** Runs the task that closes an open batch: its lines become its input file, which is validated as others are. */
export async function closeGathered(deps: CloseDeps, task: TaskRow, batch: BatchRow): Promise<void> {
  const { store, clock, rules, onEnded } = deps
  const { id, project_id, input_file_id } = batch
  // Another worker may have closed it.
  await store.write((tx) =>
    updateRows(tx, 'batches', { id }).where('gathers_until', '>', 0).set({ gathers_until: 0 }).execute(),
  )
  const chunks = await Array.fromAsync(chunksOf(store.read, id))
  const content = await joinContent(deps, task, batch, chunks)
  const ended = await store.write(async (tx) => {
    const now = clock.now()
    if (!(await finishTask(tx, task))) return null
    if (content) {
      await insertBlobs(tx, project_id, [content], now)
      // Its batch needs the content of a deleted file, too.
      await updateRows(tx, 'files', { id: input_file_id }).set({ content_blob: content.key }).execute()
      const large = sizeClass(content.bytes)
      await insertTask(tx, { kind: 'validate', subject: input_file_id, project_id, large }, now)
    } else await markInvalid(tx, input_file_id, LOST_LINES)
    await updateRows(tx, 'chunks', { batch_id: id }).set({ input_blob: null }).execute()
    const parts = chunks.flatMap(({ input_blob }) => input_blob ?? [])
    await markForDeletion(tx, parts, now)
    await setBatch(tx, id, { gathers_until: null })
    const row = await readRow(tx, 'batches', { id })
    return row ? await finishIfDone(tx, row, rules, now) : null
  })
  if (ended) onEnded?.(ended)
}

const LOST_LINES = { line_count: 0, status_details: 'The stored requests are damaged.', errors: '[]' }

/** The joined content of the file; null if a chunk is unreadable and the batch has expired or was cancelled. */
async function joinContent(
  deps: CloseDeps,
  task: TaskRow,
  batch: BatchRow,
  chunks: readonly ChunkRow[],
): Promise<SealedBlob | null> {
  const { sealed, clock } = deps
  const key = `files/${batch.input_file_id}/content-${task.epoch}-${clock.now().toString(36)}`
  try {
    return await sealed.put(batch.project_id, key, inputsOf(deps, chunks))
  } catch (error) {
    if (!isDamaged(error) || stopReason(batch, clock.now()) === null) throw error
    return null
  }
}

async function* inputsOf({ store, sealed }: CloseDeps, chunks: readonly ChunkRow[]): AsyncGenerator<Buffer> {
  for (const some of slices(chunks)) {
    const keys = some.map(({ input_blob }) => input_blob ?? '')
    const rows = await selectRows(store.read, 'blobs', { key: keys, deletion_pending_since: null })
      .selectAll()
      .execute()
    const blobs = new Map(rows.map((row) => [row.key, row]))
    for (const { input_blob, project_id } of some) {
      const blob = blobs.get(input_blob ?? '')
      if (!blob) throw new BlobMissing(`of requests in ${input_blob}`)
      yield* sealed.read(project_id, blob)
    }
  }
}
