// Cancels a batch: no further line is sent, and lines in flight may finish. A second call changes nothing.
import { cancelOutcome, isTerminal } from '../domain/batch.ts'
import { ApiError } from '../domain/errors.ts'
import { moveBatch } from '../store/batches.ts'
import { pauseBatch, resumeBatch } from '../store/pauses.ts'
import { hastenRemoteBatches } from '../store/remote-batches.ts'
import { readOwn } from '../store/rows.ts'
import type { BatchRow } from '../store/schema.ts'
import type { Writer } from '../store/store.ts'

/** Returns the batch afterwards. Throws batch_not_found and batch_not_cancellable. */
export async function cancelBatch(
  tx: Writer,
  project_id: string,
  id: string,
  now: number,
): Promise<BatchRow> {
  const batch = await readOwn(tx, 'batches', project_id, id)
  if (!batch) throw new ApiError('batch_not_found')
  const effect = cancelOutcome(batch.status)
  if (effect === 'same') return batch
  const moved = effect === 'move' ? await moveBatch(tx, id, 'cancelling', now) : undefined
  if (!moved) throw new ApiError('batch_not_cancellable', `The batch is already ${batch.status}.`)
  if (effect === 'move') await hastenRemoteBatches(tx, id, now)
  return moved
}

// Pauses a batch and resumes it: nothing new is sent meanwhile, what is in flight may finish, and its window goes on.
// Asking again changes nothing.

/** Returns the batch afterwards. Throws batch_not_found and batch_not_pausable. */
export async function setBatchPaused(
  tx: Writer,
  { project_id, id }: { project_id: string; id: string },
  paused: boolean,
  now: number,
): Promise<BatchRow> {
  const batch = await readOwn(tx, 'batches', project_id, id)
  if (!batch) throw new ApiError('batch_not_found')
  if (isTerminal(batch.status) || batch.status === 'cancelling')
    throw new ApiError('batch_not_pausable', `The batch is already ${batch.status}.`)
  if (paused === (batch.paused_at !== null)) return batch
  return paused ? await pauseBatch(tx, id, now) : await resumeBatch(tx, id, now)
}
