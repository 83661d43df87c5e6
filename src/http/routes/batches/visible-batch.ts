// The batch that a call names, as far as the caller's project can see it.
import { ApiError } from '../../../domain/errors.ts'
import { readBatch } from '../../../store/batches.ts'
import type { BatchRow } from '../../../store/schema.ts'
import type { Reader } from '../../../store/store.ts'

/** Throws batch_not_found. */
export async function visibleBatch(read: Reader, project_id: string, batch_id: string): Promise<BatchRow> {
  const batch = await readBatch(read, project_id, batch_id)
  if (!batch) throw new ApiError('batch_not_found')
  return batch
}
