// Records the results of batches that have ended at a batch API, as if each line had been sent alone. Lines without an
// answer are sent again, together, when all results are read.
import type { BackendResult } from '../../backends/backend.ts'
import { BatchApiError } from '../../backends/batch-api/batch-api.ts'
import { unfinished } from '../../backends/batch-api/result-line.ts'
import { reasonForCaller, reasonForLog } from '../../backends/failure-reason.ts'
import type { ResponseMemory } from '../../backends/response-memory.ts'
import { type Clock, sleep } from '../../domain/clock.ts'
import { base32 } from '../../domain/ids.ts'
import type { Log } from '../../domain/log.ts'
import type { OpenChunk } from '../../results/open-chunk.ts'
import { linesOf } from '../../store/line-ranges.ts'
import { changeRemoteBatch } from '../../store/remote-batches.ts'
import type { RemoteBatchRow } from '../../store/schema.ts'
import type { Store } from '../../store/store.ts'
import type { Job } from '../send/lane.ts'
import type { Blame } from '../send/retry-policy.ts'
import type { Sender } from '../send/sender.ts'
import type { Upstream } from '../send/upstream.ts'
import { endpointOf } from './remote-file.ts'
import { type ResultFaults, readRemoteResults } from './remote-results.ts'
import { apiOf, type RemoteRows } from './remote-rows.ts'

/** How long a batch that has ended waits when its results cannot be read. */
const UNREADABLE_MS_MIN = 1_000
const UNREADABLE_MS_MAX = 60_000
const ROOM_MS = 20
/** The longest wait for room at a batch API that names no time. */
const FULL_MS_MAX = 15 * 60_000

export interface RemoteCollectorOptions {
  store: Store
  clock: Clock
  log: Log
  random: () => number
  rows: RemoteRows
  sender: () => Sender
  answers: Pick<ResponseMemory, 'hasRoom'>
}

export class RemoteCollector {
  readonly #options: RemoteCollectorOptions

  constructor(options: RemoteCollectorOptions) {
    this.#options = options
  }

  /** Records what a batch has answered. Returns when to try again (Unix ms), if its results cannot be read now. */
  async collect(chunk: OpenChunk, row: RemoteBatchRow, signal: AbortSignal): Promise<number | null> {
    const { rows, sender, answers, clock, random } = this.#options
    const upstream = rows.upstreamOf(row)
    const jobs = rows.jobsOf(chunk, row)
    const remote_batch = row.remote_id ?? row.id
    const draw = random()
    const conclude = (job: Job, result: BackendResult, blame: Blame = 'line'): void =>
      sender().concludeRemote(job, {
        ...{ upstream: upstream!, result, at: row.created, remote_batch, blame, draw },
        stays: false,
      })
    if (!upstream || row.status === 'abandoned') {
      if (!(await rows.giveBack(chunk, row, jobs, 'batch')) || !upstream) return null
      for (const job of jobs) conclude(job, goneResult(row), 'server')
      return null
    }
    const idOf = (line: number): string => chunk.requestIdPrefix + base32(line)
    const byId = new Map(jobs.map((job) => [idOf(chunk.lines[job.position]!.line), job]))
    const onAnswer = async (custom_id: string, result: BackendResult): Promise<void> => {
      const job = byId.get(custom_id)!
      if (chunk.stopped === 'lost') return
      byId.delete(custom_id)
      conclude(job, result)
      chunk.remote.delete(job.position)
      while (!answers.hasRoom && !signal.aborted) await sleep(clock, ROOM_MS, signal)
    }
    let missed = new Map<string, BackendResult>()
    try {
      if (jobs.length > 0) {
        const ids = {
          wanted: new Set(byId.keys()),
          known: new Set([...linesOf(row)].map(idOf)),
        }
        const endpoint = endpointOf(chunk, jobs)
        const read = await readRemoteResults(apiOf(upstream), row, endpoint, ids, onAnswer, signal)
        missed = read.missed
        this.#report(row, read.faults, byId.size - missed.size)
      }
    } catch (error) {
      if (!(error instanceof BatchApiError)) throw error
      return signal.aborted ? null : await this.#unreadable(chunk, row, error)
    }
    if (chunk.stopped === 'lost') return null
    const left = [...byId.values()]
    const missing = this.#missing(row, upstream, left)
    if (!(await rows.settle(chunk, row, left))) return clock.now()
    for (const [id, job] of byId) {
      const result = missed.get(id) ?? missing
      conclude(job, result, row.cancelled_at !== null || result.kind === 'throttled' ? 'server' : 'line')
    }
    return null
  }

  /** What came of the lines that the files of an ended batch leave out. */
  #missing(row: RemoteBatchRow, upstream: Upstream, left: readonly Job[]): BackendResult {
    const { clock, log } = this.#options
    const { status, detail, cancelled_at } = row
    if (status === 'throttled') {
      const reason = 'the batch API has no room for the batch'
      const words = detail ?? undefined
      const result = throttledAgain({ kind: 'throttled', status: 429, reason, words }, left)
      const { retry_after_ms } = result
      log.warn(
        { remote_batch: row.remote_id, upstream: row.upstream, lines: left.length, reason, retry_after_ms },
        'a batch API has no room for a batch; its lines are sent again later',
      )
      // Others wait as well.
      const now = clock.now()
      const probe = { batch_id: row.batch_id, missedBefore: false, line: row }
      upstream.end(upstream.begin(probe, now), result, now)
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

  /** The batch has ended and its results cannot be read now. */
  async #unreadable(chunk: OpenChunk, row: RemoteBatchRow, error: BatchApiError): Promise<number> {
    const { store, clock, log, rows } = this.#options
    const now = clock.now()
    const failing_since = row.failing_since ?? now
    const detail = reasonForCaller(error.result)
    log.warn(
      { remote_batch: row.remote_id, upstream: row.upstream, reason: reasonForLog(error.result) },
      'the results of a remote batch cannot be read; it is tried again',
    )
    const isOver = rows.mayGiveUp(row, failing_since, chunk.stopped !== null || error.isGone)
    const change = isOver ? { status: 'abandoned', detail } : { failing_since, detail }
    await rows.stored(() => store.write((tx) => changeRemoteBatch(tx, row.id, 'ended', change)))
    const waitMs = Math.min(UNREADABLE_MS_MAX, Math.max(UNREADABLE_MS_MIN, (now - failing_since) / 4))
    return isOver ? now : now + waitMs
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

/** Of lines of a batch that was given up. */
function goneResult({ detail }: RemoteBatchRow): BackendResult {
  return { ...unfinished('the remote batch was given up', detail), unreachable: true }
}

/** A batch API without room is asked again after half of the time that the lines have waited for it. */
export function throttledAgain(
  result: Extract<BackendResult, { kind: 'throttled' }>,
  jobs: readonly Job[],
): Extract<BackendResult, { kind: 'throttled' }> {
  const waitedMs = jobs.reduce((most, { tries }) => Math.max(most, tries.throttledMs), 0)
  const waitMs = Math.min(FULL_MS_MAX, Math.round(waitedMs / 2))
  return { ...result, retry_after_ms: Math.max(result.retry_after_ms ?? 0, waitMs) }
}
