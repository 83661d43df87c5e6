// A row of batches as the API shows it. Times that are not set are left out; for clients of OpenAI's API they are null,
// like every other known field without a value.
import { Type } from 'typebox'
import { Compile } from 'typebox/compile'
import { type BatchStatus, shownDedupe } from '../../domain/batch.ts'
import { unixSeconds } from '../../domain/clock.ts'
import { usd } from '../../domain/money.ts'
import type { BatchProgress } from '../../progress/read-batch-progress.ts'
import type { BatchRow } from '../../store/schema.ts'
import { type BatchObject, BatchProblem, Metadata } from '../../wire/batch.ts'
import type { View } from '../access/compat.ts'
import { shownFileId } from './files.ts'

const metadata = Compile(Metadata)
const problems = Compile(Type.Array(BatchProblem))

const TIMES = [
  'in_progress_at',
  'completed_at',
  'failed_at',
  'expired_at',
  'cancelling_at',
  'cancelled_at',
  'start_after',
  'paused_at',
] as const

/** `batchProgress`: for unfinished batches. */
export function showBatch(batch: BatchRow, view: View, batchProgress?: BatchProgress): BatchObject {
  const created = unixSeconds(batch.created)
  const times = TIMES.flatMap((name) => {
    const at = batch[name]
    return at === null ? [] : [[name, unixSeconds(at)] as const]
  })
  const fileId = (id: string | null): string | null => (id === null ? null : shownFileId(id, view))
  return {
    id: batch.id,
    object: 'batch',
    endpoint: batch.endpoint,
    status: batch.status,
    input_file_id: shownFileId(batch.input_file_id, view),
    output_file_id: fileId(batch.output_file_id),
    error_file_id: fileId(batch.error_file_id),
    ...showErrors(batch),
    ...showModel(batch),
    completion_window: batch.completion_window,
    request_counts: { total: batch.total, completed: batch.completed, failed: batch.failed },
    ...showUsage(batch),
    cost_usd: usd(batch.cost_nanos),
    region: view.region,
    created,
    created_at: created,
    ...Object.fromEntries(times),
    expires_at: unixSeconds(batch.expires_at),
    metadata: readMetadata(batch.metadata),
    ...(batch.dedupe === null ? {} : { dedupe: shownDedupe(batch.dedupe) }),
    ...(batchProgress && showProgress(batchProgress)),
    ...(view.compat === 'openai' ? openaiForm(batch) : {}),
  }
}

/**
 * What clients of OpenAI's API expect otherwise. They do not know `queued`: there, a batch is in progress as soon as its
 * input is validated.
 */
function openaiForm(batch: BatchRow): Partial<BatchObject> {
  const begun = batch.queued_at ?? batch.in_progress_at
  const times = Object.fromEntries(TIMES.map((name) => [name, seconds(batch[name])]))
  return {
    ...times,
    status: openaiStatus(batch.status, begun),
    in_progress_at: seconds(begun),
    // The results are in their files as soon as the last line has ended.
    finalizing_at: seconds(batch.completed_at),
    errors: showErrors(batch).errors ?? null,
    model: showModel(batch).model ?? null,
    usage: showUsage(batch).usage ?? null,
  }
}

function openaiStatus(status: BatchStatus, begun: number | null): BatchStatus {
  if (status !== 'queued') return status
  return begun === null ? 'validating' : 'in_progress'
}

function seconds(at: number | null): number | null {
  return at === null ? null : unixSeconds(at)
}

/** What is wrong with the first lines of a batch in which no line can run. */
function showErrors({ status, errors }: BatchRow): Pick<BatchObject, 'errors'> {
  if (status !== 'failed' || errors === null) return {}
  const data: unknown = JSON.parse(errors)
  return { errors: { object: 'list', data: problems.Check(data) ? data : [] } }
}

/** Of a batch whose lines name one model. */
function showModel({ models }: BatchRow): Pick<BatchObject, 'model'> {
  const named: unknown = JSON.parse(models ?? '[]')
  return Array.isArray(named) && named.length === 1 ? { model: String(named[0]) } : {}
}

function showUsage(batch: BatchRow): Pick<BatchObject, 'usage'> {
  const { prompt_tokens, completion_tokens, total_tokens, cached_tokens, reasoning_tokens } = batch
  if (prompt_tokens === null || completion_tokens === null || total_tokens === null) return {}
  return {
    usage: {
      input_tokens: prompt_tokens,
      input_tokens_details: { cached_tokens },
      output_tokens: completion_tokens,
      output_tokens_details: { reasoning_tokens },
      total_tokens,
    },
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
      ...(waiting_reason.until === undefined ? {} : { until: unixSeconds(waiting_reason.until) }),
    },
  }
}

/** `json` is null where no metadata was given. */
function readMetadata(json: string | null): Metadata {
  const stored: unknown = json === null ? {} : JSON.parse(json)
  return metadata.Check(stored) ? stored : {}
}
