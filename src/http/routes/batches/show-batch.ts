// A row of batches as the API shows it. Times that are not set are left out.
import { Compile } from 'typebox/compile'
import { unixSeconds } from '../../../domain/clock.ts'
import { usd } from '../../../domain/money.ts'
import type { BatchProgress } from '../../../progress/read-batch-progress.ts'
import type { BatchRow } from '../../../store/schema.ts'
import type { BatchObject } from '../../../wire/batch.ts'
import { Metadata } from '../../../wire/metadata.ts'

const metadata = Compile(Metadata)

const TIMES = [
  'in_progress_at',
  'completed_at',
  'failed_at',
  'expired_at',
  'cancelling_at',
  'cancelled_at',
] as const

/** `batchProgress`: for unfinished batches. */
export function showBatch(batch: BatchRow, region: string, batchProgress?: BatchProgress): BatchObject {
  const created = unixSeconds(batch.created)
  const times = TIMES.flatMap((name) => {
    const at = batch[name]
    return at === null ? [] : [[name, unixSeconds(at)] as const]
  })
  return {
    id: batch.id,
    object: 'batch',
    endpoint: batch.endpoint,
    status: batch.status,
    input_file_id: batch.input_file_id,
    output_file_id: batch.output_file_id,
    error_file_id: batch.error_file_id,
    completion_window: batch.completion_window,
    request_counts: { total: batch.total, completed: batch.completed, failed: batch.failed },
    cost_usd: usd(batch.cost_nanos),
    region,
    created,
    created_at: created,
    ...Object.fromEntries(times),
    expires_at: unixSeconds(batch.expires_at),
    metadata: readMetadata(batch.metadata),
    ...(batchProgress && showProgress(batchProgress)),
  }
}

function showProgress({ progress, waiting_reason }: BatchProgress) {
  const { lines_per_s, estimated_completion, at_risk } = progress
  return {
    progress: {
      lines_per_s: lines_per_s === null ? null : Math.round(lines_per_s * 100) / 100,
      estimated_completion: estimated_completion === null ? null : unixSeconds(estimated_completion),
      at_risk,
    },
    waiting_reason: waiting_reason && {
      ...waiting_reason,
      ...(waiting_reason.since === undefined ? {} : { since: unixSeconds(waiting_reason.since) }),
    },
  }
}

/** `json` is null where no metadata was given. */
function readMetadata(json: string | null): Metadata {
  const stored: unknown = json === null ? {} : JSON.parse(json)
  return metadata.Check(stored) ? stored : {}
}
