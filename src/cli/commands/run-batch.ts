// Uploads a file, waits for its validation, creates a batch, waits for it and downloads its results. An interrupted
// run is resumed with the same upload and the same batch, which the state of the run names.
import { hash, randomBytes } from 'node:crypto'
import { createReadStream, rmSync } from 'node:fs'
import { readFile, rm } from 'node:fs/promises'
import { isDeepStrictEqual } from 'node:util'
import Type, { type Static } from 'typebox'
import { Value } from 'typebox/value'
import { OPEN_STATUSES } from '../../domain/batch.ts'
import { sentence } from '../../domain/text.ts'
import { jsonLines } from '../../jsonl/byte-lines.ts'
import { formatOf, withoutEnding } from '../../tables/table.ts'
import { BatchObject } from '../../wire/batch.ts'
import { checkOrder } from '../client/check-order.ts'
import { AnyObject, type ApiClient, ApiError, adviceFor, ResultLine } from '../client/client.ts'
import type { Connection } from '../client/connect.ts'
import { downloadResults } from '../client/download.ts'
import { asksOfFile, hashFile, uploadInput } from '../client/upload.ts'
import { FileInvalid, progressOf, type Watch, watchBatch, watchFile } from '../client/watch-batch.ts'
import { writeWhole } from '../output-file.ts'
import { EXIT_NOT_SENT, Failure, hasCode } from '../terminal/failure.ts'
import { type BatchTerms, ownTerms } from '../terminal/option-values.ts'
import { batchLine, waitLine } from '../terminal/progress-view.ts'
import { counted, humanBytes, humanTime } from '../terminal/terminal.ts'
import { TableTerms } from './table-question.ts'

export interface RunOrder extends RunTerms {
  input: string
  output: string
  errors: string
  /** The path of the file with the run's state. */
  state: string
  /** The model server that the command names; undefined: those of the configuration. */
  server?: string | undefined
  /** The model for every request, if an option sets it. */
  model?: string
}

export interface RunReport {
  batch: BatchObject
  /** The milliseconds since this process started or resumed the run. */
  durationMs: number
  /** The error codes of failed lines, most frequent first. */
  failures: CodeCount[]
}

type RunService = Pick<Connection, 'client' | 'watch' | 'embedded' | 'answer' | 'options'>

/**
 * Runs or resumes a batch. Throws FileInvalid, ApiError or Interrupted; the run can be resumed after the last two.
 * `finish` is called when the results are on disk; until it has returned, the run can be resumed. `repeat` throws if
 * the run has been paid for already.
 */
export async function runBatch(
  service: RunService,
  order: RunOrder,
  finish: () => Promise<void> = async () => {},
  repeat: (finished: RunState) => Promise<void> = async () => {},
): Promise<RunReport> {
  const { client, watch } = service
  const started = watch.clock.now()
  // Detects a wrong address or key before the file is uploaded.
  await client.get(AnyObject, '/v1/models', { limit: 1 })
  let state = await earlierRun(order, watch, repeat)
  if (state === undefined) await checkOrder(client, order, watch)
  if (service.embedded) await nameOthers(service, state?.batch_id ?? null)
  let batch: BatchObject | undefined
  while (batch === undefined) {
    try {
      batch = await untilDone(service, order, state)
    } catch (error) {
      if (error instanceof FileInvalid) await removeRunState(order.state)
      // The upload or the batch of the earlier run no longer exists: start a new run.
      if (state === undefined || !(error instanceof ApiError) || error.status !== 404) throw error
      watch.view.message('The upload or batch of the interrupted run no longer exists. Starting a new run.')
      await removeRunState(order.state)
      state = undefined
    }
  }
  await fetchResults(client, batch, order, watch)
  await finish()
  const done = await readRunState(order.state)
  const finished = {
    at: watch.clock.now(),
    server: order.server ?? null,
    ...(batch.request_counts.completed === 0 && { is_free: true }),
  }
  if (done) await writeRunState(order.state, { ...done, finished })
  const failures = await countByCode(createReadStream(order.errors))
  return { batch, durationMs: watch.clock.now() - started, failures }
}

/** The interrupted run to resume, if neither the file nor the options have changed. */
async function earlierRun(
  order: RunOrder,
  watch: Watch,
  repeat: (finished: RunState) => Promise<void>,
): Promise<RunState | undefined> {
  const state = await readRunState(order.state)
  if (state === undefined) return undefined
  const isSame = sameTerms(state, order) && state.input_sha256 === (await hashFile(order.input))
  if (state.finished) {
    const { server, is_free } = state.finished
    // A run without cost may be repeated at any time.
    if (isSame && server === (order.server ?? null) && !is_free) await repeat(state)
    return undefined
  }
  if (isSame) {
    watch.view.message(
      `Resuming the interrupted run${state.batch_id === null ? '' : ` (${state.batch_id})`}.`,
    )
    return state
  }
  watch.view.message('The interrupted run had another input or other options. Starting a new run.')
  if (state.batch_id !== null && state.target === order.target && /^https?:/.test(state.target))
    watch.view.message(
      `${state.batch_id} continues at ${state.target}. To end it: offpeak batches cancel ${state.batch_id}`,
    )
  return undefined
}

/** Lists other batches in the data folder, whose lines this run does not send. */
async function nameOthers(
  { client, options, watch: { view } }: RunService,
  own: string | null,
): Promise<void> {
  const lists = OPEN_STATUSES.map((status) => client.list(BatchObject, '/v1/batches', PAGE, { status }))
  const others = (await Promise.all(lists)).flat().filter(({ id }) => id !== own)
  if (others.length === 0) return
  view.message('Unfinished batches of this data folder, of which this run sends no line:')
  for (const { id, status, request_counts: counts, not_run, expires_at } of others.slice(0, NAMED_MAX)) {
    const done = `${counts.completed + counts.failed - not_run} of ${counted(counts.total, 'line')} done`
    view.message(`  ${id}  ${status}, ${done}, window until ${humanTime(expires_at)}`)
  }
  if (others.length > NAMED_MAX)
    view.message(`  and ${others.length - NAMED_MAX} more: offpeak batches list${options}`)
  view.message(`To finish one, unless a service does: offpeak batches wait ID${options}`)
  view.message(`To end one: offpeak batches cancel ID${options}`)
}

const NAMED_MAX = 5
const PAGE = 100

async function untilDone(
  { client, answer, watch }: RunService,
  order: RunOrder,
  earlier: RunState | undefined,
): Promise<BatchObject> {
  let state = earlier ?? (await upload(client, order, watch))
  if (earlier === undefined) await writeRunState(order.state, state)
  let { batch_id } = state
  if (batch_id === null) {
    answer(state.file_id)
    await watchFile(client, state.file_id, watch)
    const batch = await client.post(
      BatchObject,
      '/v1/batches',
      await batchOf(state.file_id, order.input, state),
      {
        'idempotency-key': idempotencyKey(state),
      },
    )
    batch_id = batch.id
    state = { ...state, batch_id }
    await writeRunState(order.state, state)
  }
  answer(batch_id)
  return await watchBatch(client, batch_id, watch)
}

/** The body of the call that creates the run's batch, or estimates its cost. */
export async function batchOf(
  input_file_id: string,
  input: string,
  { window: completion_window, metadata, ...terms }: RunTerms,
): Promise<object> {
  const { endpoint } = await asksOfFile(input)
  const named = Object.keys(metadata).length === 0 ? undefined : metadata
  return { input_file_id, endpoint, completion_window, metadata: named, ...ownTerms(terms) }
}

/** Shows the progress of the download, then that of the batch again. */
async function fetchResults(
  client: ApiClient,
  batch: BatchObject,
  order: RunOrder,
  watch: Watch,
): Promise<void> {
  const { view } = watch
  const onBytes = (come: number): void =>
    view.show(batch.status, (columns, paint) => waitLine(`downloading ${humanBytes(come)}`, columns, paint))
  await downloadResults(client, batch, order, watch, onBytes)
  view.show(batch.status, (columns, paint) => batchLine(progressOf(batch), columns, paint))
}

async function upload(client: ApiClient, order: RunOrder, { view }: Watch): Promise<RunState> {
  const { file, sha256 } = await uploadInput(client, order.input, view)
  return newRunState(order, sha256, file.id)
}

// The state that an interrupted run needs to be resumed, stored beside its output. Once the run has finished, it says which
// run has been paid for.
// The nonce separates runs of the same file; the hash shows whether the file has changed.

const RunState = Type.Object({
  version: Type.Literal(1),
  /** The service of the batch: a base URL, or the data folder of an embedded service. */
  target: Type.String(),
  window: Type.String(),
  metadata: Type.Record(Type.String(), Type.String()),
  input_sha256: Type.String(),
  nonce: Type.String(),
  file_id: Type.String(),
  batch_id: Type.Union([Type.String(), Type.Null()]),
  /** The terms of a run over a table. */
  table: Type.Optional(Type.Object({ terms: TableTerms, rows: Type.Number() })),
  /** The end of the run: time (Unix ms), server if the command named one, and whether no line was answered. */
  finished: Type.Optional(
    Type.Object({
      at: Type.Number(),
      server: Type.Union([Type.String(), Type.Null()]),
      is_free: Type.Optional(Type.Boolean()),
    }),
  ),
})
export type RunState = Static<typeof RunState> & BatchTerms

/**
 * The terms that must be equal for an earlier run to be resumed; a table's terms show in its requests. The start is
 * excluded, because `+2h` is another time at each call.
 */
type RunTerms = BatchTerms & Pick<RunState, 'table' | 'target' | 'window' | 'metadata'>

/** The file for the answers of a run. */
export function outputOf(input: string, { output }: { output?: string }, table: boolean): string {
  if (output !== undefined) return output
  return table
    ? `${withoutEnding(input)}.out.${formatOf(input) ?? 'csv'}`
    : `${withoutEnding(input)}.out.jsonl`
}

export function runStatePath(output: string): string {
  return `${output}.offpeak-run.json`
}

export function newRunState(terms: RunTerms, input_sha256: string, file_id: string): RunState {
  const { target, window, metadata, table } = terms
  const nonce = randomBytes(12).toString('hex')
  return {
    ...{ version: 1, target, window, metadata, input_sha256, nonce, file_id, batch_id: null },
    ...ownTerms(terms),
    ...(table && { table }),
  }
}

export function sameTerms(state: RunState, terms: RunTerms): boolean {
  return (
    state.target === terms.target &&
    state.window === terms.window &&
    isDeepStrictEqual({ ...ownTerms(state), start_after: 0 }, { ...ownTerms(terms), start_after: 0 }) &&
    metadataText(state.metadata) === metadataText(terms.metadata)
  )
}

/** The Idempotency-Key of a run's batch: equal for every attempt, different for every other run. */
export function idempotencyKey(state: RunState): string {
  const { input_sha256, window, metadata, file_id, nonce } = state
  const parts = [input_sha256, window, metadataText(metadata), file_id, nonce]
  parts.push(...Object.values(ownTerms(state)).map((term) => JSON.stringify(term)))
  return `run-${hash('sha256', JSON.stringify(parts)).slice(0, 48)}`
}

/** Reads the state of a run; undefined when there is none that this version can read. */
export async function readRunState(path: string): Promise<RunState | undefined> {
  try {
    const parsed: unknown = JSON.parse(await readFile(path, 'utf8'))
    return Value.Check(RunState, parsed) ? parsed : undefined
  } catch (error) {
    if (hasCode(error, 'ENOENT') || error instanceof SyntaxError) return undefined
    throw error
  }
}

export async function writeRunState(path: string, state: RunState): Promise<void> {
  await writeWhole(path, [`${JSON.stringify(state, null, 2)}\n`])
}

export async function removeRunState(path: string): Promise<void> {
  await rm(path, { force: true })
}

function metadataText(metadata: Record<string, string>): string {
  return JSON.stringify(Object.entries(metadata).sort(([a], [b]) => (a < b ? -1 : 1)))
}

interface CodeCount {
  code: string
  count: number
  /** The error message of the first failed line with this code. */
  message: string
  limit_id?: string | undefined
}

/** Counts error codes, most frequent first. Skips lines that are not result lines with an error. */
async function countByCode(blocks: AsyncIterable<Buffer>): Promise<CodeCount[]> {
  const counts = new Map<string, CodeCount>()
  for await (const { line } of jsonLines(blocks)) {
    const parsed: unknown = JSON.parse(line.toString())
    if (!Value.Check(ResultLine, parsed) || parsed.error === null) continue
    const { code, message, limit_id } = parsed.error
    const seen = counts.get(code)
    if (seen === undefined) counts.set(code, { code, count: 1, message, limit_id })
    else seen.count++
  }
  return [...counts.values()].sort((a, b) => b.count - a.count)
}

/** A text for each code: its count, its meaning, and the advice. */
export function explained(counts: readonly CodeCount[]): string[] {
  return counts.map(({ code, count, message, limit_id }) => {
    const advice = adviceFor({ code, limit_id })
    return `  ${counted(count, 'line')} ${code}: ${sentence(message)}${advice === null ? '' : ` ${advice}`}`
  })
}

// Keeps two runs from writing the same output, and from paying for it twice: a lock of the operating system, which ends
// with its process however that ends. It is SQLite's lock of a file beside the output, whose user_version is the ID of
// the process.

const SQLITE_BUSY = 5
/** The time in ms to wait for a process that is ending, or writing its ID. */
const WAIT_MS = 500

/** Locks the output; null where locks are impossible. Throws a Failure that names the run with the lock. */
export async function lockRun(output: string): Promise<Disposable | null> {
  const { DatabaseSync } = await import('node:sqlite')
  const path = `${output}.offpeak-run.lock`
  const versionOf = (db: InstanceType<typeof DatabaseSync>): unknown =>
    db.prepare('PRAGMA user_version').get()?.user_version
  for (;;) {
    let db: InstanceType<typeof DatabaseSync> | undefined
    try {
      db = new DatabaseSync(path, { timeout: WAIT_MS })
      const own = `PRAGMA synchronous = OFF; BEGIN IMMEDIATE; PRAGMA user_version = ${process.pid}; COMMIT`
      db.exec(`${own}; BEGIN IMMEDIATE`)
      const there = new DatabaseSync(path, { timeout: WAIT_MS })
      const isOurs = versionOf(there) === process.pid
      there.close()
      if (isOurs) return unlocking(db, path)
      // The run with the lock has deleted the file since it was opened.
      db.close()
    } catch (error) {
      const isBusy =
        error instanceof Error && 'errcode' in error && (Number(error.errcode) & 0xff) === SQLITE_BUSY
      const pid = isBusy && db?.isOpen ? versionOf(db) : null
      if (db?.isOpen) db.close()
      // In a read-only folder, writing fails later; on a file system without locks, the run works.
      if (!isBusy) return null
      const batch = (await readRunState(runStatePath(output)))?.batch_id
      throw new Failure(
        `another run with the output ${output} is running: process ${pid}${batch ? `, ${batch}` : ''}. ` +
          'Nothing was sent. Wait for that run, or choose another output with -o',
        EXIT_NOT_SENT,
      )
    }
  }
}

function unlocking(db: { close(): void }, path: string): Disposable {
  return {
    [Symbol.dispose]() {
      try {
        // Before the lock ends: afterwards, the file may belong to the next run.
        rmSync(path, { force: true })
      } catch {
        // Windows deletes no open file; the next run uses it.
      }
      db.close()
    },
  }
}
