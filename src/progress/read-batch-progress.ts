// Progress and waiting reason of unfinished batches, read for all batches of a response at once.
import { isTerminal } from '../domain/batch.ts'
import type { Model } from '../domain/model.ts'
import { isMoving, type Progress, progressOf } from '../domain/progress.ts'
import { countLeased, groupUnsealed } from '../store/chunks.ts'
import { remoteWorkOf } from '../store/remote-batches.ts'
import type { BatchRow } from '../store/schema.ts'
import type { Store } from '../store/store.ts'
import { hasWorker, listLaneReports } from '../store/workers.ts'
import { hoursOf } from './deadline-risk.ts'
import { type WaitingReason, waitingReason } from './waiting-reason.ts'

export interface BatchProgress {
  progress: Progress
  waiting_reason: WaitingReason | null
}

/** By ID, for the unfinished ones among `batches`. */
export async function readBatchProgress(
  store: Pick<Store, 'read' | 'claimSql' | 'failing'>,
  batches: readonly BatchRow[],
  now: number,
  models: ReadonlyMap<string, Model>,
): Promise<Map<string, BatchProgress>> {
  const open = batches.filter((batch) => !isTerminal(batch.status))
  // A batch with recently finished lines is not waiting, unless it was paused since.
  const still = open.filter((batch) => batch.paused_at !== null || !isMoving(batch, now))
  const reasons =
    still.length === 0
      ? new Map<string, WaitingReason | null>()
      : await readReasons(store, still, now, models)
  return new Map(
    open.map((batch) => [
      batch.id,
      {
        progress: progressOf(batch, now, null, hoursOf(batch, models)),
        waiting_reason: reasons.get(batch.id) ?? null,
      },
    ]),
  )
}

async function readReasons(
  store: Pick<Store, 'read' | 'claimSql' | 'failing'>,
  batches: readonly BatchRow[],
  now: number,
  models: ReadonlyMap<string, Model>,
): Promise<Map<string, WaitingReason | null>> {
  const ids = batches.map((batch) => batch.id)
  const [groups, leased, laneReports, isWorkerRunning] = await Promise.all([
    groupUnsealed(store.read, ids),
    countLeased(store.read),
    listLaneReports(store.read, store.claimSql),
    hasWorker(store.read, store.claimSql),
  ])
  const byBatch = Map.groupBy([...groups, ...leased], (group) => group.batch_id)
  const remoteIds = groups
    .filter((group) => group.parked_reason === 'remote_batch')
    .map((one) => one.batch_id)
  const remote = Map.groupBy(await remoteWorkOf(store.read, remoteIds), ({ batch_id }) => batch_id)
  const underWay = {
    chunks: leased.reduce((sum, { chunks }) => sum + chunks, 0),
    batches: new Set(leased.map(({ batch_id }) => batch_id)).size,
  }
  const surroundings = {
    ...{ now, hasWorker: isWorkerRunning, storesFail: store.failing !== null, laneReports, leased: underWay },
    models,
  }
  return new Map(
    batches.map((batch) => [
      batch.id,
      waitingReason(batch, byBatch.get(batch.id) ?? [], surroundings, remote.get(batch.id)),
    ]),
  )
}
