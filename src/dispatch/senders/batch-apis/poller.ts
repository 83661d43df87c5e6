// Polls remote batches, for each batch API separately, and young batches more often. An ended batch makes its chunk
// ready. Whether a batch is to be cancelled, or its deadline has passed, is decided before it is looked at, and apart from
// what its batch API answers (deadline.ts); an abandoned batch is cancelled as soon as its batch API answers again; the files
// of a recorded batch are deleted at the batch API. Polling needs no lease: each change is stored on condition that the
// row is unchanged. Commits are asynchronous: changes lost in a power failure are polled again.
import { type BatchApi, BatchApiError, type SeenBatch } from '../../../backends/batch-api/batch-api.ts'
import { type FailureReason, reasonForCaller, reasonForLog } from '../../../backends/failure-reason.ts'
import { stopReason } from '../../../domain/batch.ts'
import { Alarm } from '../../../domain/clock.ts'
import { type BatchStatusRow, readBatchStatuses } from '../../../store/batches.ts'
import {
  changeRemoteBatch,
  creationAge,
  dueUpstreams,
  endRemoteBatch,
  hastenNextBatch,
  type OpenAtBatchApi,
  openAtBatchApis,
  overdueBatches,
  settleRemoteBatch,
  takeDueBatches,
} from '../../../store/remote-batches.ts'
import { readRow } from '../../../store/rows.ts'
import type { RemoteBatchRow } from '../../../store/schema.ts'
import type { Ports } from '../../../store/store.ts'
import { listLiveWorkers } from '../../../store/workers.ts'
import type { Turn } from '../../turn.ts'
import { wantedBatch } from './creation.ts'
import { cancelMs, deadlineOf, isOnTime, lastCallAt, nextMark, recallAt } from './deadline.ts'
import type { RemoteRows } from './rows.ts'

/** The interval in ms at which the worker looks for batches to poll. */
const LOOK_MS = 100
/** The interval in ms in a worker without a batch API. */
const IDLE_LOOK_MS = 1_000
/** The limit of concurrent polls. */
const AT_ONCE = 16
/** The time in ms after which an overdue poll is skipped, as when calls about other batches hang. */
const OVERDUE_MS = 1_000
/** The share of time between polls: for the oldest batch, of its time as the oldest; for others, of their age. */
const FIRST_SHARE = 0.05
const FIRST_POLL_MS_MIN = 100
const WAITING_SHARE = 0.2
const POLL_MS_MIN = 200
const POLL_MS_MAX = 60_000
/** The time in ms without polls of a batch after its batch API has throttled a poll. */
const THROTTLED_MS = 15_000
/** The value of THROTTLED_MS for a batch that is being cancelled, as a share of its remaining time. */
const THROTTLED_SHARE = 0.25
/** The time in ms for attempts to cancel a batch that was given up, or to delete files. */
const TIDY_MS = 24 * 3_600_000
const UNTIDIED_MS_MIN = 300
const UNTIDIED_MS_MAX = 15 * 60_000
/** The share of the time since the first failure between attempts to cancel an abandoned batch. */
const ABANDONED_SHARE = 0.1
/** The time in ms for which other workers do not poll a batch that is not open. */
const OTHERS_MS = 30_000
/** The time in ms from the end of a batch to its own next poll. */
const ENDED_LOOK_MS = 30_000

const DONE = { state: 'done', poll_at: null } as const

interface PollerOptions extends Pick<Ports, 'store' | 'clock' | 'log'> {
  rows: Pick<RemoteRows, 'upstreamOf' | 'mayGiveUp' | 'mayReplace' | 'sawOpen' | 'hasBatchApi'>
  onlyBatches?: ReadonlySet<string> | undefined
  turn: Pick<Turn, 'push'>
}

export class Poller {
  readonly #options: PollerOptions
  readonly #abort = new AbortController()
  /** Polls under way by upstream and duty: a silent batch API delays neither polls of others nor cancellations. */
  readonly #polling = new Map<string, Promise<void>>()
  /** The oldest batch by model and upstream, and the time since which this worker knows it as the oldest (Unix ms). */
  readonly #firsts = new Map<string, { id: string; since: number }>()
  #lookAt = 0

  constructor(options: PollerOptions) {
    this.#options = options
  }

  /** Polls due batches; to be called several times a second. */
  async pollDue(): Promise<void> {
    const { store, clock, rows, log, onlyBatches } = this.#options
    const now = clock.now()
    if (onlyBatches?.size === 0) return
    if (this.#abort.signal.aborted || clock.steady() < this.#lookAt) return
    this.#lookAt = clock.steady() + (rows.hasBatchApi() ? LOOK_MS : IDLE_LOOK_MS)
    for (const due of await dueUpstreams(store.read, now, onlyBatches && [...onlyBatches])) {
      const { upstream, duty } = due
      const key = `${duty} ${upstream}`
      const exceptBatches = await this.#leftToCommands(upstream)
      if (exceptBatches === null) continue
      const of = { ...due, onlyBatches: onlyBatches && [...onlyBatches], exceptBatches }
      if (this.#polling.has(key)) {
        await this.#decideOverdue(of, now)
        continue
      }
      const polling = this.#lookAtUpstream(of)
        .catch((error: unknown) => {
          if (!this.#abort.signal.aborted)
            log.error({ err: error, upstream }, 'looking at remote batches failed; it is tried again')
        })
        .finally(() => this.#polling.delete(key))
      this.#polling.set(key, polling)
    }
  }

  /** The batches of commands that know a batch API unknown to this worker; null: other workers know it too. */
  async #leftToCommands(upstream: string): Promise<string[] | null> {
    const { store, rows } = this.#options
    if (rows.hasBatchApi(upstream)) return []
    const ofCommands: string[] = []
    for (const { report } of await listLiveWorkers(store.read)) {
      if (!report?.upstreams.some((one) => one.upstream === upstream)) continue
      if (report.only_batches === undefined) return null
      ofCommands.push(...report.only_batches)
    }
    return ofCommands
  }

  async close(): Promise<void> {
    this.#abort.abort()
    await Promise.all(this.#polling.values())
  }

  /** Decides about due batches that wait for calls about other batches, which may hang. */
  async #decideOverdue(of: Parameters<typeof overdueBatches>[1], now: number): Promise<void> {
    const { store } = this.#options
    const order = { now, since: now - OVERDUE_MS, limit: 10 * AT_ONCE }
    const overdue = await overdueBatches(store.read, of, order)
    const statuses = await this.#statusesOf(overdue)
    for (const row of overdue) await this.#decide(row, statuses.get(row.batch_id), true)
  }

  async #statusesOf(rows: readonly RemoteBatchRow[]): Promise<Map<string, BatchStatusRow>> {
    const ids = [...new Set(rows.map(({ batch_id }) => batch_id))]
    const statuses = await readBatchStatuses(this.#options.store.read, ids)
    return new Map(statuses.map((one) => [one.id, one]))
  }

  async #lookAtUpstream(of: Parameters<typeof takeDueBatches>[1]): Promise<void> {
    const { store, rows } = this.#options
    while (!this.#abort.signal.aborted) {
      if (of.duty === 'look') {
        const open = await openAtBatchApis(store.read)
        rows.sawOpen(open)
        this.#sawFirsts(open)
      }
      const due = await store.writeAsyncCommit((tx) =>
        takeDueBatches(tx, of, (row) => this.#nextIn(row), AT_ONCE),
      )
      if (due.length === 0) return
      const statuses = await this.#statusesOf(due)
      await Promise.all(due.map((row) => this.#lookAtOne(row, statuses.get(row.batch_id))))
    }
  }

  #sawFirsts(open: readonly OpenAtBatchApi[]): void {
    const now = this.#options.clock.now()
    const firsts = new Map<string, string>()
    for (const { model, upstream, first } of open) {
      const key = `${model} ${upstream}`
      const known = firsts.get(key)
      if (known === undefined || first < known) firsts.set(key, first)
    }
    for (const key of this.#firsts.keys()) if (!firsts.has(key)) this.#firsts.delete(key)
    for (const [key, id] of firsts)
      if (this.#firsts.get(key)?.id !== id) this.#firsts.set(key, { id, since: now })
  }

  /** The wait in ms before the next poll of an unchanged batch. */
  #nextIn(row: RemoteBatchRow): number {
    if (row.state !== 'open') return OTHERS_MS
    return Math.max(this.#pollMs(row), this.#options.rows.upstreamOf(row)?.api.pollMsMin ?? 0)
  }

  #pollMs({
    id,
    model,
    upstream,
    failing_since,
    cancelled_at,
    creating_at,
    created,
  }: RemoteBatchRow): number {
    const now = this.#options.clock.now()
    if ((failing_since ?? cancelled_at) !== null)
      return pollMs(now - Math.max(failing_since ?? 0, cancelled_at ?? 0), FIRST_SHARE, POLL_MS_MIN)
    const first = this.#firsts.get(`${model} ${upstream}`)
    if (first?.id === id) return pollMs(now - first.since, FIRST_SHARE, FIRST_POLL_MS_MIN)
    return pollMs(now - (creating_at ?? created), WAITING_SHARE, POLL_MS_MIN)
  }

  async #lookAtOne(row: RemoteBatchRow, batch: BatchStatusRow | undefined): Promise<void> {
    const { rows, log } = this.#options
    const api = rows.upstreamOf(row)?.api ?? null
    try {
      if (row.state === 'open') {
        if (batch !== undefined && !(await this.#decide(row, batch, false))) await this.#poll(row, batch, api)
        else if (batch === undefined) await this.#end(row, { status: 'abandoned' })
      } else if (row.state === 'ended') await this.#checkSealed(row)
      else if (row.state === 'recorded' || row.state === 'abandoned') await this.#tidy(row, api)
    } catch (error) {
      if (!(error instanceof BatchApiError) && !this.#abort.signal.aborted)
        log.error({ err: error, remote_batch: row.id }, 'looking at a remote batch failed; it is tried again')
      await this.#again(row, this.#abort.signal.aborted ? 0 : POLL_MS_MAX / 4)
    }
  }

  /** Decides without an answer; returns whether polls end. `isUnseen`: no progress is known. */
  async #decide(row: RemoteBatchRow, batch: BatchStatusRow | undefined, isUnseen: boolean): Promise<boolean> {
    if (batch === undefined) return false
    const now = this.#options.clock.now()
    if (now >= deadlineOf(row, batch)) {
      const detail = row.detail ?? 'the batch API has not ended it in time'
      await this.#end(row, { status: 'abandoned', detail })
      return true
    }
    if (row.cancelled_at === null) {
      const isStopped = stopReason(batch, now) !== null
      if (isStopped || (isUnseen && this.#isLate(row, batch, null))) {
        await this.#recall(row, isStopped)
        return true
      }
    }
    await this.#lookBy(row, batch)
    return false
  }

  /** Sets the next poll of a batch: the time of the next decision about it. */
  async #lookBy(row: RemoteBatchRow, batch: BatchStatusRow, waitMs?: number): Promise<void> {
    const now = this.#options.clock.now()
    const wanted = waitMs === undefined ? (row.poll_at ?? now) : now + waitMs
    const poll_at = Math.min(wanted, nextMark(row, batch, now) ?? wanted)
    if (poll_at !== row.poll_at) await this.#change(row, { poll_at })
  }

  /** Cancels and polls a batch, independently: either call may fail, or hang until the deadline. */
  async #poll(row: RemoteBatchRow, batch: BatchStatusRow, api: BatchApi | null): Promise<void> {
    const { clock } = this.#options
    if (api === null || row.remote_id === null)
      return await this.#failing(row, batch, false, { reason: 'its upstream is not configured any more' })
    const ended = new AbortController()
    const signal = AbortSignal.any([this.#abort.signal, ended.signal])
    const alarm = new Alarm(clock, () => ended.abort())
    alarm.set(deadlineOf(row, batch))
    const cancelled = this.#cancel(row, row.remote_id, api, signal)
    // The promise is awaited below, or not where the look fails for a reason of its own.
    cancelled.catch(() => {})
    let seen: SeenBatch | BatchApiError | null
    try {
      seen = await api.read(row.remote_id, signal).catch(failureOf)
      if (seen === null || seen instanceof BatchApiError || seen.ended === null) await cancelled
    } finally {
      alarm.set(Number.POSITIVE_INFINITY)
      ended.abort()
    }
    const notCancelled = await cancelled
    if (this.#abort.signal.aborted) return await this.#again(row, 0)
    if (seen !== null && !(seen instanceof BatchApiError) && seen.ended !== null) {
      const { output_file_id, error_file_id, detail, report: remote_report } = seen
      const status = seen.isThrottled ? 'throttled' : seen.ended
      return await this.#end(row, { status, output_file_id, error_file_id, detail, remote_report })
    }
    if (await this.#decide(row, batch, seen === null || seen instanceof BatchApiError)) return
    const failed = seen instanceof BatchApiError ? seen : notCancelled
    if (failed?.result.kind === 'throttled') {
      const { retry_after_ms = 0 } = failed.result
      const leastMs = row.cancelled_at === null ? THROTTLED_MS : cancelMs(batch) * THROTTLED_SHARE
      await this.#lookBy(row, batch, Math.max(retry_after_ms, Math.min(leastMs, THROTTLED_MS)))
    }
    if (seen === null)
      return await this.#failing(row, batch, true, {
        reason: 'the batch API does not know the batch (404)',
      })
    if (!(seen instanceof BatchApiError)) return await this.#seen(row, batch, seen, notCancelled)
    if (seen.result.kind !== 'throttled') await this.#failing(row, batch, false, seen.result)
  }

  /** Stores the progress of a batch that goes on. */
  async #seen(
    row: RemoteBatchRow,
    batch: BatchStatusRow,
    seen: SeenBatch,
    notCancelled: BatchApiError | null,
  ): Promise<void> {
    const { log } = this.#options
    if (row.cancelled_at === null && this.#isLate(row, batch, seen)) return await this.#recall(row, false)
    const { status, isKnown } = seen
    const fields = { remote_batch: row.remote_id, upstream: row.upstream, status }
    if (!isKnown && row.status !== status)
      log.warn(fields, 'a remote batch has a status that is not known; it is looked at until that changes')
    if (row.failing_since !== null) log.info(fields, 'a remote batch can be looked at again')
    const detail = notCancelled === null ? null : reasonForCaller(notCancelled.result)
    if (notCancelled !== null && row.detail !== detail)
      log.warn(
        { ...fields, reason: reasonForLog(notCancelled.result) },
        'a remote batch could not be cancelled; it is tried again',
      )
    if (row.failing_since === null && row.status === status && row.detail === detail) return
    await this.#change(row, { status, detail, failing_since: null })
  }

  /** Whether the batch must be cancelled, so that lines are answered elsewhere, or results read in time. */
  #isLate(row: RemoteBatchRow, batch: BatchStatusRow, seen: SeenBatch | null): boolean {
    const { clock, rows } = this.#options
    const now = clock.now()
    if (now < recallAt(batch)) return false
    if (seen !== null && isOnTime(seen, row.creating_at ?? row.created, batch, now)) return false
    return now >= lastCallAt(batch) || rows.mayReplace(row)
  }

  /** Cancels the batch there. From then on its deadline is that of a cancellation, whether that is possible or not. */
  async #recall(row: RemoteBatchRow, isStopped: boolean): Promise<void> {
    const { clock, log } = this.#options
    const now = clock.now()
    const { remote_id: remote_batch, upstream, batch_id: batch } = row
    log.info(
      { remote_batch, upstream, batch },
      isStopped
        ? 'a remote batch is cancelled, since its batch is ending'
        : 'a remote batch that may be late is cancelled; what it leaves is answered by other servers, if there are any',
    )
    await this.#change(row, { cancelled_at: now, poll_at: now })
  }

  /** Cancels the batch if it is to be; returns the reason of a failure, never throws for the batch API's. */
  async #cancel(
    { cancelled_at, status }: RemoteBatchRow,
    remote_id: string,
    api: BatchApi,
    signal: AbortSignal,
  ): Promise<BatchApiError | null> {
    if (cancelled_at === null || status?.startsWith('cancel')) return null
    return await api.cancel(remote_id, signal).then(() => null, failureOf)
  }

  async #end(row: RemoteBatchRow, end: Parameters<typeof endRemoteBatch>[2]): Promise<void> {
    const { store, clock, turn } = this.#options
    await store.writeAsyncCommit((tx) => endRemoteBatch(tx, row, end, clock.now() + ENDED_LOOK_MS))
    turn.push({ kind: 'ready' })
    await store.writeAsyncCommit((tx) => hastenNextBatch(tx, row, clock.now()))
  }

  /** Stores that the batch API does not answer, or does not know the batch; gives the batch up when that has lasted. */
  async #failing(
    row: RemoteBatchRow,
    batch: BatchStatusRow,
    mayGoAnyway: boolean,
    why: FailureReason,
  ): Promise<void> {
    const { clock, rows, log } = this.#options
    const now = clock.now()
    const failing_since = row.failing_since ?? now
    const fields = { remote_batch: row.remote_id, upstream: row.upstream, reason: reasonForLog(why) }
    const detail = reasonForCaller(why)
    if (rows.mayGiveUp(row, batch, failing_since, mayGoAnyway)) {
      log.warn(fields, 'a remote batch is given up; its lines are sent again')
      return await this.#end(row, { status: 'abandoned', detail })
    }
    if (row.failing_since !== null && row.detail === detail) return
    log.warn(fields, 'a remote batch cannot be looked at; it is tried again')
    await this.#change(row, { failing_since, detail })
  }

  /** Notes that the batch's results are recorded, if the worker that did so crashed before that. */
  async #checkSealed(row: RemoteBatchRow): Promise<void> {
    const { store, clock } = this.#options
    const chunk = await readRow(store.read, 'chunks', { batch_id: row.batch_id, idx: row.idx })
    if (chunk?.state !== 'sealed') return await this.#again(row, ENDED_LOOK_MS)
    const { answered, cost_nanos } = row
    const change = { state: 'recorded' as const, answered, cost_nanos, poll_at: clock.now() }
    await store.write((tx) => settleRemoteBatch(tx, row, chunk.epoch, change))
  }

  /** Cancels an abandoned batch, and deletes the files of an ended batch; tries again for a while. */
  async #tidy(row: RemoteBatchRow, api: BatchApi | null): Promise<void> {
    if (api === null) return await this.#change(row, DONE)
    try {
      const left = await (row.state === 'recorded'
        ? this.#deleteFiles(row, api)
        : this.#cancelAbandoned(row, api))
      if (left !== null) await this.#untidied(row, left)
    } catch (error) {
      if (!(error instanceof BatchApiError)) throw error
      await this.#untidied(row, reasonForLog(error.result))
    }
  }

  /** Deletes files; returns the reason for which they cannot be deleted yet. */
  async #deleteFiles(row: RemoteBatchRow, api: BatchApi): Promise<string | null> {
    const { signal } = this.#abort
    const ids = new Set([row.file_id ?? (await api.findFile(row.id, signal))])
    for (const id of [row.output_file_id, row.error_file_id]) ids.add(id)
    if (row.status === 'abandoned' && row.remote_id !== null) {
      const seen = await api.read(row.remote_id, signal)
      if (seen && seen.ended === null) return 'a batch that was given up goes on there'
      // What it has done there whose results are not recorded here.
      if (seen) await this.#change(row, { remote_report: seen.report })
      for (const id of [seen?.output_file_id, seen?.error_file_id]) ids.add(id ?? null)
    }
    for (const id of ids) if (id !== null) await api.remove(id, signal)
    await this.#change(row, DONE)
    return null
  }

  async #untidied(row: RemoteBatchRow, reason: string): Promise<void> {
    const { clock, log } = this.#options
    const now = clock.now()
    const failing_since = row.failing_since ?? now
    if (now - failing_since < TIDY_MS) {
      const waitMs = (now - failing_since) * (row.state === 'abandoned' ? ABANDONED_SHARE : 1)
      const poll_at = now + Math.max(UNTIDIED_MS_MIN, Math.min(UNTIDIED_MS_MAX, waitMs))
      return await this.#change(row, { failing_since, poll_at })
    }
    const { file_id, output_file_id, error_file_id, remote_id, upstream } = row
    log.warn(
      { upstream, remote_batch: remote_id, files: [file_id, output_file_id, error_file_id], reason },
      'what a remote batch has left at a batch API could not be deleted there',
    )
    await this.#change(row, DONE)
  }

  async #cancelAbandoned(row: RemoteBatchRow, api: BatchApi): Promise<null> {
    const { store, clock, log } = this.#options
    const { signal } = this.#abort
    let remote_id = row.remote_id
    if (remote_id === null) {
      // Before it is looked for: what is on its way then may still take effect.
      const ageMs = row.creating_at === null ? api.settleMs : await creationAge(store.read, row.id)
      const found = await api.find(wantedBatch(store, row), signal)
      for (const { id } of found?.slice(1) ?? []) await api.cancel(id, signal)
      remote_id = found?.[0]?.id ?? null
      if (remote_id === null && ageMs < api.settleMs) {
        await this.#again(row, api.settleMs - ageMs)
        return null
      }
    }
    if (remote_id !== null) await api.cancel(remote_id, signal)
    const { upstream } = row
    log.info({ remote_batch: remote_id, upstream }, 'cancelled a remote batch that was given up')
    // Its files are deleted once it has ended there.
    const poll_at = clock.now() + POLL_MS_MIN
    const ended = { state: 'recorded', status: 'abandoned' } as const
    await this.#change(row, { ...ended, remote_id, poll_at, failing_since: null })
    return null
  }

  async #again(row: RemoteBatchRow, waitMs: number): Promise<void> {
    await this.#change(row, { poll_at: this.#options.clock.now() + waitMs }).catch(() => {})
  }

  /** Changes a row, on condition that it is still in the state in which it was read. */
  async #change(
    { id, state }: RemoteBatchRow,
    change: Parameters<typeof changeRemoteBatch>[3],
  ): Promise<void> {
    await this.#options.store.writeAsyncCommit((tx) => changeRemoteBatch(tx, id, state, change))
  }
}

/** The failure of a call; errors of this program are thrown on. */
function failureOf(error: unknown): BatchApiError {
  if (!(error instanceof BatchApiError)) throw error
  return error
}

function pollMs(ageMs: number, share: number, least: number): number {
  return Math.round(Math.min(POLL_MS_MAX, Math.max(least, ageMs * share)))
}
