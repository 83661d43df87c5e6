// Records the results of batches that have ended at a batch API, as if each line had been sent alone. Lines without an
// answer are tried again, together, when all results are read.
import type { BackendResult } from '../../../backends/backend.ts'
import {
  type BatchApi,
  BatchApiError,
  type BlamedLine,
  type SeenBatch,
} from '../../../backends/batch-api/batch-api.ts'
import { readResultLine, unfinished } from '../../../backends/batch-api/result-line.ts'
import { reasonForCaller, reasonForLog } from '../../../backends/failure-reason.ts'
import type { ResponseMemory } from '../../../backends/response-memory.ts'
import type { EndpointPath } from '../../../domain/endpoint.ts'
import type { Blame, EndedAttempt, MissedResult, Observer } from '../../../servers/upstream.ts'
import { changeRemoteBatch, hasOthersThere, linesOf } from '../../../store/remote-batches.ts'
import type { RemoteBatchRow } from '../../../store/schema.ts'
import type { Ports } from '../../../store/store.ts'
import { REMOTE } from '../../line-state.ts'
import type { Lines } from '../../lines.ts'
import type { Run } from '../../run.ts'
import type { BatchApiUpstream } from './batch-api-upstream.ts'
import { endpointOf, remoteId, remoteIdOf } from './creation.ts'
import { nextMark, recallAt } from './deadline.ts'
import type { RemoteRows } from './rows.ts'

/** The wait in ms for an ended batch whose results cannot be read. */
const UNREADABLE_MS_MIN = 1_000
const UNREADABLE_MS_MAX = 60_000
/** The time in ms after which counts of an ended batch that leave lines out are believed: they may come late as well. */
const COUNTS_MS = 30_000
/** The longest wait for room at a batch API that names no time. */
const FULL_MS_MAX = 15 * 60_000

export interface CollectorOptions extends Pick<Ports, 'store' | 'clock' | 'log'> {
  random: () => number
  rows: RemoteRows
  lines: Pick<Lines, 'answered' | 'refused' | 'missed'>
  answers: Pick<ResponseMemory, 'untilRoom'>
  observe?: Pick<Observer, 'attempted'> | undefined
}

/** The work that is left for lines that a batch API had. */
export type Collected =
  /** The results cannot be read now: try again at `at` (Unix ms). */
  | { kind: 'again'; at: number }
  /** The batch API takes none of these lines, because of some of them; null: for another reason. */
  | {
      kind: 'blamed'
      blamed: readonly BlamedLine[] | null
      left: readonly number[]
      result: MissedResult
      attempt: EndedAttempt
    }

export class Collector {
  readonly #options: CollectorOptions

  constructor(options: CollectorOptions) {
    this.#options = options
  }

  /** Records the answers of a batch; null: the work is complete. */
  async collect(
    run: Run,
    row: RemoteBatchRow,
    upstream: BatchApiUpstream,
    stop: AbortSignal,
  ): Promise<Collected | null> {
    const { rows, random } = this.#options
    if (row.status === 'abandoned') {
      const positions = rows.positionsOf(run, row)
      if (!(await rows.settle(run, row, 'abandoned'))) return null
      // A batch API that took the batch is there: it would take others, and answer none of them either.
      const blame = row.cancelled_at === null ? 'line' : 'server'
      const gone = { ...unfinished('the remote batch was given up', row.detail), unreachable: true }
      // Lines that wait equally long are sent together.
      const attempt = { ...this.#attempt(row, upstream), draw: random() }
      for (const position of positions) this.end(run, position, gone, blame, attempt)
      return null
    }
    const until = rows.watch(run, row, stop)
    try {
      if (row.failing_since !== null) await this.#readAgain(row, upstream, until.signal)
      return await this.#collect(run, row, upstream, until.signal)
    } catch (error) {
      if (!(error instanceof BatchApiError)) throw error
      if (run.isClosed || run.stopped === 'lost' || (stop.aborted && !until.isOver())) return null
      return { kind: 'again', at: await this.#unreadable(run, row, error, until.isOver()) }
    } finally {
      until.close()
    }
  }

  async #collect(
    run: Run,
    row: RemoteBatchRow,
    upstream: BatchApiUpstream,
    signal: AbortSignal,
  ): Promise<Collected | null> {
    const { rows, answers, clock, random } = this.#options
    const draw = random()
    const positions = rows.positionsOf(run, row)
    const byId = new Map(positions.map((position) => [remoteIdOf(run, position), position]))
    const onAnswer = async (custom_id: string, result: BackendResult): Promise<void> => {
      const position = byId.get(custom_id)!
      byId.delete(custom_id)
      if (run.isClosed || run.stateOf(position) !== REMOTE) return
      row.cost_nanos += this.end(run, position, result, 'line', this.#attempt(row, upstream))
      await answers.untilRoom(clock, signal)
    }
    let missed = new Map<string, BackendResult>()
    let failure: SeenBatch | null = null
    if (positions.length > 0) {
      const ids = {
        wanted: new Set(byId.keys()),
        known: new Set(Array.from(linesOf(row), (line) => remoteId(run, line))),
      }
      const endpoint = endpointOf(run, positions)
      const read = await readRemoteResults(upstream.api, row, endpoint, ids, onAnswer, signal)
      missed = read.missed
      const missing = byId.size - missed.size
      if (missing > 0 && !this.#mayGoWithout(run, row, row.line_count - missing)) throw LATE
      this.#report(row, read.faults, missing)
      if (row.status === 'failed' && row.remote_id !== null && byId.size === positions.length)
        failure = await upstream.api.read(row.remote_id, signal)
    }
    if (run.isClosed) return null
    const left = [...byId.values()]
    if (!(await rows.settle(run, row, 'recorded'))) return { kind: 'again', at: clock.now() }
    const isFull = row.status === 'throttled' && left.length > 0
    const room = isFull ? await this.offerLess(run, row, left) : null
    if (room === 'again') return null
    const missing = this.#missing(row, upstream, run, left, room === 'filled')
    const attempt = { ...this.#attempt(row, upstream), draw }
    if (failure !== null && (failure.blamed !== null || failure.refusesService) && left.length > 0)
      return { kind: 'blamed', blamed: failure.blamed, left, result: missing, attempt }
    // Before any of them has waited longer: lines that wait equally long are sent together.
    const ends = Array.from(byId, ([id, position]) => {
      const found = missed.get(id) ?? missing
      return {
        position,
        result: found.kind === 'throttled' ? throttledAgain(found, run, left, clock.now()) : found,
      }
    })
    for (const { position, result } of ends) {
      const isOwn = row.cancelled_at === null && result.kind !== 'throttled'
      this.end(run, position, result, isOwn ? 'line' : 'server', attempt)
    }
    return null
  }

  /** Ends a line of a batch API, or retries it. Returns the cost of the line (nano-dollars). */
  end(run: Run, position: number, result: BackendResult, blame: Blame, attempt: EndedAttempt): number {
    const { lines, observe } = this.#options
    observe?.attempted(attempt.upstream, result.kind, attempt.now - attempt.at)
    if (result.kind === 'answered') return lines.answered(run, position, result, attempt)
    if (result.kind === 'refused') lines.refused(run, position, result, attempt)
    else lines.missed(run, position, result, blame, attempt)
    return 0
  }

  /** Offers a batch that was refused for its size in two parts, where nothing else of this service fills the batch API. */
  async offerLess(
    run: Run,
    row: RemoteBatchRow,
    positions: readonly number[],
  ): Promise<'again' | 'filled' | 'alone'> {
    const { store, clock, rows } = this.#options
    if (await hasOthersThere(store.read, row)) return 'filled'
    if (positions.length < 2) return 'alone'
    const tokens = positions.reduce((sum, position) => sum + run.lines[position]!.projected.tokens, 0)
    rows.upstreamOf(row)?.refusedSize(tokens, clock.now())
    rows.place(run, positions, 'the batch API may take fewer lines')
    return 'again'
  }

  #attempt(row: RemoteBatchRow, upstream: BatchApiUpstream): EndedAttempt {
    const { clock } = this.#options
    return { upstream, at: row.created, now: clock.now(), remote_batch: row.remote_id ?? row.id }
  }

  /** The result of lines that the files of an ended batch leave out. */
  #missing(
    row: RemoteBatchRow,
    upstream: BatchApiUpstream,
    run: Run,
    left: readonly number[],
    isFilled: boolean,
  ): MissedResult {
    const { clock, log } = this.#options
    const { status, detail, cancelled_at } = row
    if (status === 'throttled') {
      const reason = 'the batch API has no room for the batch'
      const words = detail ?? undefined
      const result = throttledAgain(
        { kind: 'throttled', status: 429, reason, words, isFilled },
        run,
        left,
        clock.now(),
      )
      const { retry_after_ms } = result
      log.warn(
        { remote_batch: row.remote_id, upstream: row.upstream, lines: left.length, reason, retry_after_ms },
        'a batch API has no room for a batch; its lines are sent again later',
      )
      // Others wait as well.
      const now = clock.now()
      const call = upstream.callFor(row.batch_id, row, now)
      upstream.begin(call)
      upstream.end(call, result, now)
      return result
    }
    if (cancelled_at !== null)
      return unfinished(
        'the remote batch was cancelled, since its lines were to be answered elsewhere or not at all',
      )
    if (status !== 'completed' && left.length > 0)
      log.warn(
        { remote_batch: row.remote_id, upstream: row.upstream, status, lines: left.length },
        'a remote batch ended before all of its lines were answered; the others are sent again',
      )
    return status === 'completed'
      ? unfinished('the remote batch has no result of it')
      : unfinished(`the remote batch ended as ${status} before it was answered`, detail)
  }

  /** Reads an ended batch again whose results could not be read: it may name its files, or others, some time after its end. */
  async #readAgain(row: RemoteBatchRow, upstream: BatchApiUpstream, signal: AbortSignal): Promise<void> {
    const { store, rows } = this.#options
    const seen = row.remote_id === null ? null : await upstream.api.read(row.remote_id, signal)
    if (!seen?.ended) return
    const change = {
      output_file_id: seen.output_file_id ?? row.output_file_id,
      error_file_id: seen.error_file_id ?? row.error_file_id,
      remote_report: seen.report,
    }
    Object.assign(row, change)
    await rows.stored(() => store.write((tx) => changeRemoteBatch(tx, row.id, 'ended', change)))
  }

  /** Whether no further results of an ended batch are waited for, after the `found` ones. */
  #mayGoWithout(run: Run, row: RemoteBatchRow, found: number): boolean {
    const { clock, rows } = this.#options
    const now = clock.now()
    const since = row.failing_since ?? now
    const counted = countedResults(row)
    // Without counts, a batch that completed has a result of each line.
    const isComplete = row.status !== 'completed' || (counted > 0 && now - since >= COUNTS_MS)
    return (isComplete && counted <= found) || rows.mayGiveUp(row, run.batch, since, true)
  }

  /** Stores that the results of an ended batch cannot be read now; returns when to try again (Unix ms). */
  async #unreadable(
    run: Run,
    row: RemoteBatchRow,
    error: BatchApiError,
    isTooLate: boolean,
  ): Promise<number> {
    const { store, clock, log, rows } = this.#options
    const now = clock.now()
    const failing_since = row.failing_since ?? now
    const detail = reasonForCaller(error.result)
    log.warn(
      { remote_batch: row.remote_id, upstream: row.upstream, reason: reasonForLog(error.result) },
      'the results of a remote batch cannot be read; it is tried again',
    )
    const { cancelled_at, cost_nanos } = row
    const isOver = isTooLate || rows.mayGiveUp(row, run.batch, failing_since, error.isGone)
    const change = isOver
      ? { status: 'abandoned', detail, cost_nanos }
      : { failing_since, detail, cancelled_at, cost_nanos }
    await rows.stored(() => store.write((tx) => changeRemoteBatch(tx, row.id, 'ended', change)))
    const waitMs = Math.min(UNREADABLE_MS_MAX, Math.max(UNREADABLE_MS_MIN, (now - failing_since) / 4))
    const askedMs = Math.max(waitMs, error.result.retry_after_ms ?? 0)
    return isOver ? now : Math.min(now + askedMs, nextMark(row, run.batch, now) ?? Number.POSITIVE_INFINITY)
  }

  #report(row: RemoteBatchRow, faults: ResultFaults, missing: number): void {
    const { doubled, unknown, unreadable } = faults
    if (doubled + unknown + unreadable + (row.status === 'completed' ? missing : 0) === 0) return
    this.#options.log.warn(
      { remote_batch: row.remote_id, upstream: row.upstream, doubled, unknown, unreadable, missing },
      'the results of a remote batch are not those of its lines; missing lines are sent again',
    )
  }
}

/**
 * The result with the time after which a batch API without room is asked again: half of the time that the lines have
 * waited for it. It keeps them from servers that may answer them for no longer than its part of their window.
 */
export function throttledAgain(
  result: Extract<BackendResult, { kind: 'throttled' }>,
  run: Run,
  positions: readonly number[],
  now: number,
): Extract<BackendResult, { kind: 'throttled' }> {
  const waitedMs = positions.reduce(
    (most, position) => Math.max(most, run.triesOf(position)?.count.throttledMs ?? 0),
    0,
  )
  const waitMs = Math.min(FULL_MS_MAX, Math.round(waitedMs / 2))
  const leftMs = Math.max(0, recallAt(run.batch) - now)
  return { ...result, retry_after_ms: Math.min(leftMs, Math.max(result.retry_after_ms ?? 0, waitMs)) }
}

// `readRemoteResults` finds the line that each result belongs to. Mistakes in such files cost nothing: a doubled line
// counts once, an unknown line is ignored, and a missing line is sent again.

/** A batch API may name the files of an ended batch, or complete them, some time after its end. */
const LATE = new BatchApiError(unfinished('its files do not have all of its results yet'), false)

/** The number of results that an ended batch counts; 0 where it shows no counts. */
function countedResults({ status, line_count, remote_report }: RemoteBatchRow): number {
  const { request_counts: { completed = 0, failed = 0 } = {} } = JSON.parse(remote_report ?? '{}')
  // The failed lines of a batch that was rejected as a whole have no results.
  return Math.min(line_count, completed + (status === 'failed' || status === 'throttled' ? 0 : failed))
}

interface ResultFaults {
  doubled: number
  unknown: number
  unreadable: number
}

/** The number of useless lines, for each line of the batch, after which the rest of a file is left unread. */
const USELESS_MAX = 1_000
const USELESS_MIN = 1_000_000

/** Calls `onAnswer` for each answer to a wanted line, and returns the other results. `known`: all lines of the batch. */
async function readRemoteResults(
  api: BatchApi,
  { output_file_id, error_file_id }: Pick<RemoteBatchRow, 'output_file_id' | 'error_file_id'>,
  endpoint: EndpointPath,
  { wanted, known }: { wanted: ReadonlySet<string>; known: ReadonlySet<string> },
  onAnswer: (custom_id: string, result: BackendResult) => void | Promise<void>,
  signal: AbortSignal,
): Promise<{ faults: ResultFaults; missed: Map<string, BackendResult> }> {
  const faults: ResultFaults = { doubled: 0, unknown: 0, unreadable: 0 }
  const missed = new Map<string, BackendResult>()
  const seen = new Set<string>()
  const uselessMax = Math.max(USELESS_MIN, known.size * USELESS_MAX)
  for (const file_id of [output_file_id, error_file_id]) {
    if (file_id === null) continue
    for await (const line of api.lines(file_id, signal)) {
      const found = readResultLine(line, endpoint)
      if (found === null) faults.unreadable++
      else if (!known.has(found.custom_id)) faults.unknown++
      else {
        const { custom_id, result } = found
        if (seen.has(custom_id) || missed.has(custom_id)) faults.doubled++
        if (seen.has(custom_id) || !wanted.has(custom_id)) continue
        if (result.kind === 'answered' || result.kind === 'refused') {
          seen.add(custom_id)
          missed.delete(custom_id)
          await onAnswer(custom_id, result)
        } else if (!missed.has(custom_id)) missed.set(custom_id, result)
      }
      if (faults.doubled + faults.unknown + faults.unreadable > uselessMax) break
    }
  }
  return { faults, missed }
}
