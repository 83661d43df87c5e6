// Looks at the batches that batch APIs have, seldom enough to be no burden and more often while they are young: one that
// has ended makes its chunk ready, one whose own batch is ending is cancelled, one that was given up is cancelled as soon
// as its batch API answers again, and the files of one that is recorded are deleted there. Looking needs no lease:
// whatever is seen is stored on condition that nothing else was stored meanwhile. Commits do not wait for the disk: what
// a power failure takes back is seen again.
import { type BatchApi, BatchApiError } from '../../backends/batch-api/batch-api.ts'
import { stopReason } from '../../domain/batch.ts'
import type { Clock } from '../../domain/clock.ts'
import type { Log } from '../../domain/log.ts'
import { readBatchStatuses } from '../../store/batches.ts'
import { readChunk } from '../../store/chunks.ts'
import { hastenNextBatch, nextDueBatch, takeDueBatches } from '../../store/due-remote-batches.ts'
import { changeRemoteBatch, endRemoteBatch, settleRemoteBatch } from '../../store/remote-batches.ts'
import type { RemoteBatchRow } from '../../store/schema.ts'
import type { Store } from '../../store/store.ts'
import type { RemoteRows } from './remote-rows.ts'

/** How often it is asked whether any is due. */
const LOOK_MS = 100
/** The same, in a worker without a batch API. */
const IDLE_LOOK_MS = 30_000
/** Batches that are looked at concurrently. */
const AT_ONCE = 16
/** A batch is looked at again after this share of its age: the oldest of its model there; those that wait behind it. */
const AGE_SHARE = 0.05
const WAITING_SHARE = 0.2
const POLL_MS_MIN = 200
const POLL_MS_MAX = 60_000
/** How long a batch may take to be cancelled there. */
const CANCEL_MS = 15 * 60_000
/** How long it is tried to cancel a batch that was given up, or to delete files. */
const TIDY_MS = 24 * 3_600_000
/** How long other workers leave a batch alone that is not open. */
const OTHERS_MS = 30_000
/** When a batch that has ended is looked at for its own sake. */
const ENDED_LOOK_MS = 30_000

export interface RemotePollerOptions {
  store: Store
  clock: Clock
  log: Log
  rows: Pick<RemoteRows, 'upstreamOf' | 'mayGiveUp'>
  /** Whether any upstream is a batch API. */
  hasBatchApi: () => boolean
  /** Chunks were made ready. */
  onReady: () => void
}

export class RemotePoller {
  readonly #options: RemotePollerOptions
  readonly #abort = new AbortController()
  #looking: Promise<void> | null = null
  #lookAt = 0

  constructor(options: RemotePollerOptions) {
    this.#options = options
  }

  /** To be called several times a second. */
  async look(): Promise<void> {
    const { clock, hasBatchApi } = this.#options
    if (this.#looking || this.#abort.signal.aborted || clock.now() < this.#lookAt) return
    this.#lookAt = clock.now() + (hasBatchApi() ? LOOK_MS : IDLE_LOOK_MS)
    this.#looking = this.#lookAtAll().finally(() => {
      this.#looking = null
    })
    await this.#looking
  }

  async close(): Promise<void> {
    this.#abort.abort()
    await this.#looking?.catch(() => {})
  }

  async #lookAtAll(): Promise<void> {
    const { store, clock } = this.#options
    for (;;) {
      const nextIn = (row: RemoteBatchRow, isFirst: boolean): number => this.#nextIn(row, isFirst)
      const due = await nextDueBatch(store.read)
      if (due === null || due > clock.now() || this.#abort.signal.aborted) return
      const rows = await store.writeAsyncCommit((tx) => takeDueBatches(tx, store.claimSql, nextIn, AT_ONCE))
      if (rows.length === 0) return
      await Promise.all(rows.map((row) => this.#lookAtOne(row)))
    }
  }

  /** When to look again at a batch that nothing changes about (ms from now). */
  #nextIn(row: RemoteBatchRow, isFirst: boolean): number {
    const { clock } = this.#options
    if (row.state !== 'open') return OTHERS_MS
    const changedAt = row.failing_since ?? row.cancelled_at ?? row.creating_at ?? row.created
    const isWaiting = !isFirst && row.failing_since === null && row.cancelled_at === null
    return pollMs(clock.now() - changedAt, isWaiting ? WAITING_SHARE : AGE_SHARE)
  }

  async #lookAtOne(row: RemoteBatchRow): Promise<void> {
    const { rows, log } = this.#options
    const api = rows.upstreamOf(row)?.batches ?? null
    try {
      if (row.state === 'open') await this.#poll(row, api)
      else if (row.state === 'ended') await this.#checkSealed(row)
      else if (row.state === 'recorded') await this.#tidy(row, api)
      else if (row.state === 'abandoned') await this.#cancelAbandoned(row, api)
    } catch (error) {
      if (!(error instanceof BatchApiError) && !this.#abort.signal.aborted)
        log.error({ err: error, remote_batch: row.id }, 'looking at a remote batch failed; it is tried again')
      await this.#again(row, this.#abort.signal.aborted ? 0 : POLL_MS_MAX / 4)
    }
  }

  async #poll(row: RemoteBatchRow, api: BatchApi | null): Promise<void> {
    const { store, clock } = this.#options
    const { signal } = this.#abort
    const [batch] = await readBatchStatuses(store.read, [row.batch_id])
    const isStopped = batch === undefined || stopReason(batch, clock.now()) !== null
    if (api === null || row.remote_id === null) return await this.#failing(row, isStopped)
    try {
      if (isStopped && row.cancelled_at === null) {
        await api.cancel(row.remote_id, signal)
        row.cancelled_at = clock.now()
        const { cancelled_at } = row
        await store.writeAsyncCommit((tx) => changeRemoteBatch(tx, row.id, 'open', { cancelled_at }))
      }
      const seen = await api.read(row.remote_id, signal)
      if (seen === null) return await this.#failing(row, true)
      if (seen.ended !== null) {
        const { output_file_id, error_file_id, detail, report: remote_report } = seen
        const status = seen.isThrottled ? 'throttled' : seen.ended
        return await this.#end(row, { status, output_file_id, error_file_id, detail, remote_report })
      }
    } catch (error) {
      if (!(error instanceof BatchApiError) || signal.aborted) throw error
      return await this.#failing(row, isStopped)
    }
    const now = clock.now()
    if (row.cancelled_at !== null && now - row.cancelled_at > CANCEL_MS)
      return await this.#end(row, { status: 'abandoned' })
    const expires_at = batch?.expires_at ?? Number.POSITIVE_INFINITY
    const isDueAtEnd = now < expires_at && row.poll_at !== null && row.poll_at > expires_at
    if (row.failing_since === null && !isDueAtEnd) return
    const change = { failing_since: null, ...(isDueAtEnd ? { poll_at: expires_at } : {}) }
    await store.writeAsyncCommit((tx) => changeRemoteBatch(tx, row.id, 'open', change))
  }

  async #end(row: RemoteBatchRow, end: Parameters<typeof endRemoteBatch>[2]): Promise<void> {
    const { store, clock, onReady } = this.#options
    await store.writeAsyncCommit((tx) => endRemoteBatch(tx, row, end, clock.now() + ENDED_LOOK_MS))
    onReady()
    await store.writeAsyncCommit((tx) => hastenNextBatch(tx, row, clock.now()))
  }

  /** The batch API does not answer, or does not know the batch. */
  async #failing(row: RemoteBatchRow, mayGoAnyway: boolean): Promise<void> {
    const { store, clock, rows } = this.#options
    const now = clock.now()
    const failing_since = row.failing_since ?? now
    if (rows.mayGiveUp(row, failing_since, mayGoAnyway)) return await this.#end(row, { status: 'abandoned' })
    if (row.failing_since === null)
      await store.writeAsyncCommit((tx) => changeRemoteBatch(tx, row.id, 'open', { failing_since }))
  }

  /** The worker that recorded its results crashed before it noted that. */
  async #checkSealed(row: RemoteBatchRow): Promise<void> {
    const { store, clock } = this.#options
    const chunk = await readChunk(store.read, row.batch_id, row.idx)
    if (chunk?.state !== 'sealed') return await this.#again(row, ENDED_LOOK_MS)
    const change = { state: 'recorded' as const, answered: 0, cost_nanos: 0, poll_at: clock.now() }
    await store.write((tx) => settleRemoteBatch(tx, row, chunk.epoch, change))
  }

  /** Deletes its files there. */
  async #tidy(row: RemoteBatchRow, api: BatchApi | null): Promise<void> {
    const files = [row.file_id, row.output_file_id, row.error_file_id].filter((id) => id !== null)
    try {
      if (api !== null) for (const id of files) await api.remove(id)
    } catch (error) {
      if (!(error instanceof BatchApiError)) throw error
      if (!this.#isOld(row) && !error.hadNoEffect) return await this.#again(row, POLL_MS_MAX)
    }
    await this.#done(row)
  }

  async #cancelAbandoned(row: RemoteBatchRow, api: BatchApi | null): Promise<void> {
    const { signal } = this.#abort
    if (api === null || this.#isOld(row)) return await this.#done(row)
    const since = row.creating_at ?? row.created
    const wanted = { name: row.id, file_id: row.file_id, since }
    const ids =
      row.remote_id === null ? (await api.find(wanted, signal)).map(({ id }) => id) : [row.remote_id]
    for (const id of ids) await api.cancel(id, signal)
    const { log } = this.#options
    log.info({ remote_batch: ids[0], upstream: row.upstream }, 'cancelled a remote batch that was given up')
    await this.#done(row)
  }

  async #done(row: RemoteBatchRow): Promise<void> {
    const { store } = this.#options
    await store.writeAsyncCommit((tx) =>
      changeRemoteBatch(tx, row.id, row.state, { state: 'done', poll_at: null }),
    )
  }

  async #again(row: RemoteBatchRow, waitMs: number): Promise<void> {
    const { store, clock } = this.#options
    const poll_at = clock.now() + waitMs
    await store
      .writeAsyncCommit((tx) => changeRemoteBatch(tx, row.id, row.state, { poll_at }))
      .catch(() => {})
  }

  #isOld({ created }: RemoteBatchRow): boolean {
    return this.#options.clock.now() - created > TIDY_MS
  }
}

function pollMs(ageMs: number, share: number): number {
  return Math.min(POLL_MS_MAX, Math.max(POLL_MS_MIN, ageMs * share))
}
