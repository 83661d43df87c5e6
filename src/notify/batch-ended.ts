// The event of a batch that has ended, with what a receiver needs to fetch the results.
import { usd } from '../domain/money.ts'
import type { BatchRow } from '../store/schema.ts'
import type { NewEvent } from './record-event.ts'

/** `batch` is terminal, with its result files. */
export function batchEnded(
  batch: BatchRow,
  status: 'completed' | 'failed' | 'expired' | 'cancelled',
): NewEvent {
  const { id, project_id, input_file_id, output_file_id, error_file_id, total, completed, failed } = batch
  const metadata: unknown = batch.metadata === null ? {} : JSON.parse(batch.metadata)
  return {
    project_id,
    type: `batch.${status}`,
    data: {
      // Under this name, OpenAI's clients find the batch.
      id,
      batch_id: id,
      status,
      input_file_id,
      output_file_id,
      error_file_id,
      request_counts: { total, completed, failed },
      cost_usd: usd(batch.cost_nanos),
      metadata,
    },
  }
}
