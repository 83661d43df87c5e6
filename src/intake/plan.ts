// Runs the task that creates the chunks of a batch: validating → queued. It reads lines only until it finds one that
// can run; a batch without such a line fails, with an error line for each of its lines.
import { isDamaged } from '../blobs/blobs.ts'
import type { SealedBlob } from '../blobs/sealed.ts'
import type { AuditLog } from '../domain/audit-log.ts'
import { CHUNK_LINES_MAX, type ChunkSpan, type StopReason, stopReason } from '../domain/batch.ts'
import { ApiError, ERRORS, messageOf } from '../domain/errors.ts'
import { lineRequestIdPrefix } from '../domain/ids.ts'
import type { Model } from '../domain/model.ts'
import type { Plan } from '../domain/plan.ts'
import { type ChunkLine, readChunkLines } from '../jsonl/chunk-lines.ts'
import { encodeFirstLines, FirstLines, requestHash } from '../jsonl/first-lines.ts'
import type { Sharing } from '../jsonl/shared-beginnings.ts'
import { recordProjectedSpend } from '../ledger/check-limits.ts'
import { negotiateLanguage } from '../ledger/limit-error.ts'
import { endBatch, type FinishRules, finishIfDone } from '../lifecycle/batch.ts'
import { ChunkResults } from '../results/chunk-results.ts'
import { type ChunkCommit, commitChunks } from '../results/commit.ts'
import { recordFailure } from '../results/record-line.ts'
import { sealChunk } from '../results/seal.ts'
import { moveBatch, setBatch } from '../store/batches.ts'
import { insertBlobs, readBlobRow } from '../store/blobs.ts'
import { insertChunks } from '../store/chunks.ts'
import { fileProblems, lockInputFile } from '../store/files.ts'
import { parkIfPaused } from '../store/pauses.ts'
import { readRow } from '../store/rows.ts'
import type { BatchRow, BlobRow, FileRow, TaskRow } from '../store/schema.ts'
import type { Ports, Writer } from '../store/store.ts'
import { finishTask, insertTask, postponeTask, sizeClass } from '../store/tasks.ts'
import { modelsOfWorkers } from '../store/workers.ts'
import type { BatchProblem } from '../wire/batch.ts'
import { admitLines, modelsIn, modelsText } from './create-batch.ts'
import { cutAlongBeginnings, groupByBeginnings, type ReadLines } from './cut-chunks.ts'
import { readIndex, readProjection } from './file-index.ts'
import { closeGathered } from './gathered-requests.ts'

const NO_BYTES = Buffer.alloc(0)
/** The number of chunks after which the status of the batch is checked again. */
const CHECK_EVERY = 10
/** Lines of a kilobyte or two that the memory of a worker holds by default. */
const LINES_AHEAD_SCATTERED = 32_000
/** The number of waiting lines of a group of chunks at which the next group is claimed. */
const LINES_AHEAD_CUT = 8_000

interface PlanDeps extends Pick<Ports, 'store' | 'sealed' | 'clock'> {
  models: ReadonlyMap<string, Model>
  plans: ReadonlyMap<string, Plan>
  rules: FinishRules
  /** The lines of a group of chunks that are cut along beginnings, at least; set by tests. */
  groupLinesMin?: number
  /** Called with a batch that failed because no line of it could run. */
  onEnded?: (batch: BatchRow) => void
  auditLog?: AuditLog | undefined
}

export async function planBatch(deps: PlanDeps, task: TaskRow, signal: AbortSignal): Promise<void> {
  const { store, clock } = deps
  const batch = await readRow(store.read, 'batches', { id: task.subject })
  if (batch && batch.gathers_until !== null) return await closeGathered(deps, task, batch)
  if (!batch || batch.chunk_count > 0) {
    await store.write((tx) => finishTask(tx, task))
    return
  }
  if (batch.total === 0) {
    const ended = await awaitFile(deps, task, batch)
    if (ended) deps.onEnded?.(ended)
    return
  }
  const { content, sharing, ...asWritten } = await inputOf(deps, batch, signal)
  const read = linesReader(deps, batch, content, signal)
  // A batch that is ending closes the chunks itself.
  const failed =
    content !== null && stopReason(batch, clock.now()) === null
      ? await failedThroughout(deps, task, batch, asWritten.spans, read)
      : null
  if (failed === 'elsewhere') {
    await store.write((tx) => postponeTask(tx, task, clock.now() + LOOK_INTERVAL_MS, null))
    return
  }
  const canRun = content !== null && failed === null
  // Lines that wait for identical ones stay where they are.
  const cut =
    sharing && canRun && batch.dedupe === null
      ? await cutAlongBeginnings({
          spans: asWritten.spans,
          sharing,
          read,
          write: inputWriter(deps, task, batch),
          ...(deps.groupLinesMin && { groupLinesMin: deps.groupLinesMin }),
        })
      : null
  const { spans, ...order } = cut
    ? { ...asWritten, spans: cut.spans, lines_ahead: LINES_AHEAD_CUT }
    : asWritten
  const { firstLines, unshared_lines } =
    batch.dedupe === null || !canRun
      ? { firstLines: [], unshared_lines: 0 }
      : await findFirstLines(batch, spans, read)
  const ended = await store.write(async (tx) => {
    if (!(await finishTask(tx, task))) return null
    await setBatch(tx, batch.id, { chunk_count: spans.length, unshared_lines, ...order })
    if (failed) return await failWhole(tx, deps, batch, spans, failed)
    await insertBlobs(tx, batch.project_id, cut?.blobs ?? [], clock.now())
    await insertChunks(tx, batch, spans, firstLines)
    await parkIfPaused(tx, batch.id, clock.now())
    await moveBatch(tx, batch.id, 'queued', clock.now())
    return null
  })
  if (ended) deps.onEnded?.(ended)
}

type LineOrder = Pick<BatchRow, 'prefix_bytes' | 'lines_ahead'>

interface Input extends Partial<LineOrder> {
  content: BlobRow | null
  spans: readonly ChunkSpan[]
  /** Absent where lines are sent in the order of the file. */
  sharing?: Sharing
}

/**
 * The chunks of the input, in the order in which they are claimed. If the input cannot be read, this throws until the
 * completion window ends, so that an operator can restore the input. After that `content` is null and the chunks are
 * made from the line count alone, so that each line ends with an error (worker/claim/chunk-reader.ts).
 */
async function inputOf(deps: PlanDeps, batch: BatchRow, signal: AbortSignal): Promise<Input> {
  const { store, clock } = deps
  const file = await readRow(store.read, 'files', { id: batch.input_file_id })
  const content = file?.content_blob ? await readBlobRow(store.read, file.content_blob) : undefined
  try {
    const index = await readIndex(deps, file, signal)
    if (!content || !index) throw new Error('it was deleted')
    const { chunks, sharing } = index
    if (batch.line_order === 'file' || !sharing) return { content, spans: chunks }
    const order = sharing.chunks ?? chunks.keys()
    const ordered = Array.from(order, (chunk, index) => ({ ...chunks[chunk]!, index }))
    const spans = sharing.chunks ? groupByBeginnings(ordered, deps.groupLinesMin) : ordered
    const lines_ahead = sharing.isScattered ? LINES_AHEAD_SCATTERED : 0
    return { content, spans, sharing, prefix_bytes: sharing.depth, lines_ahead }
  } catch (error) {
    const isOver = stopReason(batch, clock.now()) !== null
    if (isOver && (isDamaged(error) || !content)) return { content: null, spans: spansByNumber(batch.total) }
    const reason = messageOf(error)
    throw new Error(
      `the input of batch ${batch.id} cannot be read: ${reason}; "offpeak doctor" says what to restore`,
      { cause: error },
    )
  }
}

/** Stores inputs of single chunks, under keys of this attempt. */
function inputWriter({ sealed, clock }: PlanDeps, task: TaskRow, batch: BatchRow) {
  const attempt = `${task.epoch}-${clock.now().toString(36)}`
  return (lines: Buffer, chunk: number): Promise<SealedBlob> =>
    sealed.put(batch.project_id, `batches/${batch.id}/input-${attempt}-${chunk}`, [lines])
}

function spansByNumber(line_count: number): ChunkSpan[] {
  return Array.from({ length: Math.ceil(line_count / CHUNK_LINES_MAX) }, (_, index) => {
    const before = index * CHUNK_LINES_MAX
    return {
      index,
      first_line: before + 1,
      line_count: Math.min(CHUNK_LINES_MAX, line_count - before),
      byte_start: 0,
      byte_end: 0,
      model: null,
    }
  })
}

/** Whether the batch is cancelled or expired. */
async function isEnding({ store, clock }: PlanDeps, { id }: BatchRow): Promise<boolean> {
  const batch = await readRow(store.read, 'batches', { id })
  return !batch || stopReason(batch, clock.now()) !== null
}

/** The chunks of a batch in which no line can run. */
interface FailedChunks {
  /** The sealed errors of all lines. */
  commits: ChunkCommit[]
  /** The errors of the first lines. */
  problems: BatchProblem[]
}

/**
 * The sealed errors of all lines; null if a line can run, or if the batch is ending; `elsewhere` if another worker
 * knows the model of a line while a configuration is rolled out.
 */
async function failedThroughout(
  deps: PlanDeps,
  task: TaskRow,
  batch: BatchRow,
  spans: readonly ChunkSpan[],
  read: ReadLines,
): Promise<FailedChunks | 'elsewhere' | null> {
  const { store, sealed, clock } = deps
  const failed: FailedChunks = { commits: [], problems: [] }
  let known: Awaited<ReturnType<typeof modelsOfWorkers>> | null = null
  for (const span of spans) {
    const found = await read(span)
    if (found === null || found === 'ending' || found.lines.some(({ fault }) => fault === null)) return null
    const { lines } = found
    const unknown = lines.flatMap(({ fault, model }) =>
      fault?.code === 'model_not_found' ? [model ?? ''] : [],
    )
    if (unknown.length > 0) known ??= await modelsOfWorkers(store.read, { batch, now: clock.now() })
    if (known?.some((models) => unknown.some((model) => models.has(model)))) return 'elsewhere'
    const now = clock.now()
    const results = failedResults(batch, lines, now, deps.auditLog)
    const attempt = `plan${task.epoch}-${clock.now().toString(36)}`
    const chunk = { project_id: batch.project_id, batch_id: batch.id, idx: span.index }
    if (failed.commits.length === 0) failed.problems = lines.slice(0, PROBLEMS_MAX).map(problemOf)
    const record = { sealed: await sealChunk(sealed, chunk, attempt, results), journalled: false }
    // Only sums are kept, since a batch has any number of lines.
    const { tallies, errors, expired_lines } = results.takeFresh()
    const fresh = { tallies, errors, expired_lines }
    const claim = { ...chunk, key_id: batch.key_id, epoch: 0, commit_seq: 0 }
    failed.commits.push({ claim, begunAt: null, fresh, hasReservations: false, record })
  }
  return failed
}

/** Makes a reader of lines. Damaged content is handled by the worker that claims a chunk. */
function linesReader(
  deps: PlanDeps,
  batch: BatchRow,
  content: BlobRow | null,
  signal: AbortSignal,
): ReadLines {
  return async (span) => {
    signal.throwIfAborted()
    if (span.index % CHECK_EVERY === CHECK_EVERY - 1 && (await isEnding(deps, batch))) return 'ending'
    if (content === null) return null
    try {
      const range = { start: span.byte_start, end: span.byte_end }
      const bytes = await deps.sealed.readAll(content.project_id, content, range)
      return { bytes, lines: readChunkLines(bytes, span, deps.models, batch) }
    } catch (error) {
      if (isDamaged(error)) return null
      throw error
    }
  }
}

/**
 * Finds for each chunk the earlier lines of the batch with the same requests, and counts lines that repeat a request
 * but are not deduplicated. Ends early with the batch.
 */
async function findFirstLines(
  batch: BatchRow,
  spans: readonly ChunkSpan[],
  read: ReadLines,
): Promise<{ firstLines: (string | null)[]; unshared_lines: number }> {
  const first = new FirstLines()
  const firstLines: (string | null)[] = []
  let unshared_lines = 0
  for (const span of spans) {
    const found = await read(span)
    if (found === 'ending') break
    const { bytes, lines } = found ?? { bytes: NO_BYTES, lines: [] }
    const firsts = lines.map((line) => {
      if (line.fault !== null) return 0
      const request = requestHash(batch.dedupe, bytes, line)
      if (request !== null) return first.findOrAdd(request, line.line)
      // Whether a request is repeatable follows from its bytes, so one table serves both kinds.
      if (first.findOrAdd(requestHash('all', bytes, line) ?? '', line.line) !== 0) unshared_lines++
      return 0
    })
    firstLines.push(encodeFirstLines(firsts))
  }
  return { firstLines, unshared_lines }
}

function problemOf({ line, fault }: ChunkLine): BatchProblem {
  const { code = '', message = '', param = null } = fault ?? {}
  // Field paths begin at the line, as in the errors of an invalid file.
  const isOfLine = param === null || /^(custom_id|method|url|body)\b/.test(param)
  return { line, code, message, param: isOfLine ? param : `body.${param}` }
}

/** Results in which each line of a chunk fails with its own error. */
function failedResults(
  batch: BatchRow,
  lines: readonly ChunkLine[],
  now: number,
  auditLog: AuditLog | undefined,
): ChunkResults {
  const results = new ChunkResults(null, lines)
  results.auditLog = auditLog
  const requestIdPrefix = lineRequestIdPrefix(batch.id)
  for (const [position, line] of lines.entries()) {
    if (line.fault === null) throw new Error(`line ${line.line} can run`)
    recordFailure(
      { batch, requestIdPrefix, line, position, results, isReserved: false, reservedOn: null },
      line.fault,
      now,
    )
  }
  return results
}

async function failWhole(
  tx: Writer,
  { rules, clock }: PlanDeps,
  batch: BatchRow,
  spans: readonly ChunkSpan[],
  { commits, problems }: FailedChunks,
): Promise<BatchRow | null> {
  await insertChunks(tx, batch, spans, [], 'leased')
  await setBatch(tx, batch.id, { errors: JSON.stringify(problems) })
  const { ended } = await commitChunks(tx, commits, rules, clock.now())
  return ended[0] ?? null
}

// The polling interval of a batch without lines, whose file is not validated yet or invalid, as clients of OpenAI's API
// may create it. A processed file's lines then pass the checks of creation; a batch whose lines do not pass them fails
// and names the reason.

const LOOK_INTERVAL_MS = 1000
/** The number of invalid lines that a failed batch names; its error file names each. */
const PROBLEMS_MAX = 20

/** Returns the batch if it has ended. Otherwise the task is postponed, or inserted anew once the batch has lines. */
async function awaitFile(deps: PlanDeps, task: TaskRow, batch: BatchRow): Promise<BatchRow | null> {
  const { store, clock } = deps
  const now = clock.now()
  const stop = stopReason(batch, now)
  const file = await readRow(store.read, 'files', { id: batch.input_file_id })
  if (stop !== null) return await end(deps, task, batch, [problem(stop, ERRORS[stop].message)], stop)
  if (file?.deleted_at === null && file.status === 'pending') {
    await store.write((tx) => postponeTask(tx, task, now + LOOK_INTERVAL_MS, null))
    return null
  }
  if (file?.status !== 'processed') return await end(deps, task, batch, problemsOf(file))
  try {
    await addLines(deps, task, batch)
    return null
  } catch (error) {
    if (!(error instanceof ApiError)) throw error
    return await end(deps, task, batch, [problem(error.code, error.message)])
  }
}

/** Adds the lines of a validated file to its batch. Throws quota_exceeded and usage_limit_exceeded. */
async function addLines(deps: PlanDeps, task: TaskRow, batch: BatchRow): Promise<void> {
  const { store, clock, plans } = deps
  const { id, project_id, input_file_id } = batch
  const projection = await readProjection(deps, batch)
  const quotas = plans.get((await readRow(store.read, 'projects', { id: project_id }))?.plan ?? '')?.quotas
  if (!projection || !quotas)
    throw new Error(`the input of batch ${id} or the plan of its project is missing`)
  await store.write(async (tx) => {
    const now = clock.now()
    const file = await lockInputFile(tx, project_id, input_file_id, now)
    if (!(await finishTask(tx, task))) return
    if (file) {
      const owner = { project_id, quotas, language: negotiateLanguage(batch.language ?? undefined) }
      await admitLines(tx, owner, projection, { queued_lines: file.line_count }, now)
      await setBatch(tx, id, { total: file.line_count, models: modelsText(modelsIn(projection)) })
      await recordProjectedSpend(tx, batch, projection)
    }
    await insertTask(tx, { kind: 'plan', subject: id, project_id, large: sizeClass(file?.bytes ?? 0) }, now)
  })
}

async function end(
  { store, clock, rules }: PlanDeps,
  task: TaskRow,
  { id }: BatchRow,
  errors: readonly BatchProblem[],
  stop: StopReason | null = null,
): Promise<BatchRow | null> {
  return await store.write(async (tx) => {
    if (!(await finishTask(tx, task))) return null
    await setBatch(tx, id, { errors: JSON.stringify(errors) })
    const now = clock.now()
    const batch = await readRow(tx, 'batches', { id })
    if (!batch) return null
    const status = stop === 'batch_expired' ? 'expired' : 'failed'
    // A batch that is being cancelled ends as cancelled, not as failed.
    return (await endBatch(tx, batch, status, rules, now)) ?? (await finishIfDone(tx, batch, rules, now))
  })
}

function problemsOf(file: FileRow | undefined): BatchProblem[] {
  return fileProblems(file?.errors ?? '[]')
    .slice(0, PROBLEMS_MAX)
    .map(({ line, code, message, param = null }) => ({
      code,
      message,
      param,
      line: line === 0 ? null : line,
    }))
}

function problem(code: string, message: string): BatchProblem {
  return { line: null, code, message, param: null }
}
