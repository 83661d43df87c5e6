// Records the results of batches that have ended at a batch API, as if each line had been sent alone. Lines without an
// answer are sent again, together, when all results are read.
import type { BackendResult } from '../../backends/backend.ts'
import { BatchApiError } from '../../backends/batch-api/batch-api.ts'
import { unfinished } from '../../backends/batch-api/result-line.ts'
import type { ResponseMemory } from '../../backends/response-memory.ts'
import { type Clock, sleep } from '../../domain/clock.ts'
import { base32 } from '../../domain/ids.ts'
import type { Log } from '../../domain/log.ts'
import type { OpenChunk } from '../../results/open-chunk.ts'
import { changeRemoteBatch } from '../../store/remote-batches.ts'
import type { RemoteBatchRow } from '../../store/schema.ts'
import type { Store } from '../../store/store.ts'
import type { Job } from '../send/lane.ts'
import type { Sender } from '../send/sender.ts'
import { endpointOf } from './remote-file.ts'
import { type ResultFaults, readRemoteResults } from './remote-results.ts'
import { apiOf, type RemoteRows } from './remote-rows.ts'

/** How long a batch that has ended waits when its results cannot be read. */
const UNREADABLE_MS_MIN = 1_000
const UNREADABLE_MS_MAX = 60_000
const ROOM_MS = 20

export interface RemoteCollectorOptions {
  store: Store
  clock: Clock
  log: Log
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
    const { rows, sender, answers, clock } = this.#options
    const upstream = rows.upstreamOf(row)
    const jobs = rows.jobsOf(chunk, row)
    if (!upstream || row.status === 'abandoned') {
      if (!(await rows.giveBack(chunk, row, jobs, true)) || !upstream) return null
      for (const job of jobs)
        sender().concludeRemote(job, upstream, GONE, row.created, row.remote_id ?? undefined)
      return null
    }
    const byId = new Map(
      jobs.map((job) => [chunk.requestIdPrefix + base32(chunk.lines[job.position]!.line), job]),
    )
    /** Sent again only when all is read: together. */
    const missed: [Job, BackendResult][] = []
    const conclude = (job: Job, result: BackendResult): void =>
      sender().concludeRemote(job, upstream, result, row.created, row.remote_id ?? undefined)
    const onResult = async (custom_id: string, result: BackendResult): Promise<void> => {
      const job = byId.get(custom_id)!
      if (chunk.stopped === 'lost') return
      byId.delete(custom_id)
      if (result.kind === 'answered' || result.kind === 'refused') {
        conclude(job, result)
        chunk.remote.delete(job.position)
      } else missed.push([job, result])
      while (!answers.hasRoom && !signal.aborted) await sleep(clock, ROOM_MS, signal)
    }
    try {
      if (jobs.length > 0) {
        const wanted = new Set(byId.keys())
        const endpoint = endpointOf(chunk, jobs)
        const faults = await readRemoteResults(apiOf(upstream), row, endpoint, wanted, onResult, signal)
        this.#report(row, faults, byId.size)
      }
    } catch (error) {
      if (!(error instanceof BatchApiError)) throw error
      return signal.aborted ? null : await this.#unreadable(chunk, row, error)
    }
    if (chunk.stopped === 'lost') return null
    const missing = missingResult(row)
    for (const job of byId.values()) missed.push([job, missing])
    const isOurs = await rows.settle(
      chunk,
      row,
      missed.map(([job]) => job),
    )
    if (isOurs) for (const [job, result] of missed) conclude(job, result)
    return isOurs ? null : clock.now()
  }

  /** The batch has ended and its results cannot be read now. */
  async #unreadable(chunk: OpenChunk, row: RemoteBatchRow, error: BatchApiError): Promise<number> {
    const { store, clock, log, rows } = this.#options
    const now = clock.now()
    const failing_since = row.failing_since ?? now
    const { operatorReason, reason } =
      error.result.kind === 'failed' ? error.result : { ...error.result, operatorReason: undefined }
    log.warn(
      { remote_batch: row.remote_id, upstream: row.upstream, reason: operatorReason ?? reason },
      'the results of a remote batch cannot be read; it is tried again',
    )
    const isOver = rows.mayGiveUp(row, failing_since, chunk.stopped !== null)
    const change = isOver ? { status: 'abandoned' } : { failing_since }
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

const GONE: BackendResult = {
  ...unfinished('the batch API did not answer for too long'),
  unreachable: true,
}

/** What came of the lines that the files of an ended batch leave out. */
function missingResult({ status, detail }: RemoteBatchRow): BackendResult {
  const words = detail === null ? '' : `: ${detail}`
  if (status === 'throttled')
    return { kind: 'throttled', status: 429, reason: `the batch API has no room for the batch${words}` }
  return unfinished(
    status === 'completed'
      ? 'the remote batch has no result of it'
      : `the remote batch ended as ${status} before it was answered${words}`,
  )
}
