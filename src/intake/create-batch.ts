// Turns a request into a batch that waits to be planned. Checks without the database come first (orderBatch); the
// rest runs in one transaction (createBatch), so the file cannot be deleted in between.
import { type BatchEndpoint, endpointPathOf, endpointPaths, MIXED } from '../domain/endpoint.ts'
import { ApiError, invalidParam } from '../domain/errors.ts'
import { newId } from '../domain/ids.ts'
import { sumOf } from '../domain/money.ts'
import { type Plan, type Quotas, quotaExceeded, windowOf } from '../domain/plan.ts'
import { type Retention, readRetention, retentionText } from '../domain/retention.ts'
import { admit, type BatchProjection, recordProjectedSpend } from '../ledger/check-limits.ts'
import type { Language } from '../ledger/limit-error.ts'
import { insertBatch } from '../store/batches.ts'
import { lockInputFile } from '../store/files.ts'
import type { BatchRow, FileRow } from '../store/schema.ts'
import type { Writer } from '../store/store.ts'
import { insertTask, sizeClass } from '../store/tasks.ts'
import type { CreateBatch } from '../wire/batch.ts'
import { type BatchColumns, keptFields } from './batch-fields.ts'
import { checkQueuedTokens, checkQuotas, type Use } from './check-quota.ts'

/** The caller of the request that creates a batch. */
interface BatchOwner {
  project_id: string
  key_id: string
  /** The entity of the header X-Service-Entity. */
  header_entity: string | null
  language: Language
  /** The W3C trace context of the call. */
  traceparent: string | null
  /**
   * Whether a batch of an invalid or unvalidated file is created and fails or waits, instead of an error of the call;
   * `pending`: only of an unvalidated one.
   */
  takesAnyFile: boolean | 'pending'
}

export type BatchOrder = BatchOwner &
  BatchColumns & {
    endpoint: BatchEndpoint
    input_file_id: string
    completion_window: string
    window_ms: number
    quotas: Quotas
  }

/** Checks a request for a batch without the database. Throws invalid_request and plan_lacks_feature. */
export function orderBatch(
  request: CreateBatch & { input_file_id: string },
  owner: BatchOwner & { retention: Retention | null },
  plan: Plan,
): BatchOrder {
  const { endpoint, input_file_id, completion_window } = request
  if (endpoint !== MIXED && endpointPathOf(endpoint) !== endpoint) {
    const known = [...endpointPaths(), MIXED].map((path) => JSON.stringify(path))
    const message = `\`endpoint\` must be one of ${known.join(', ')}, not ${JSON.stringify(endpoint).slice(0, 100)}.`
    throw invalidParam('endpoint', message)
  }
  const columns = keptFields(request)
  const window = offeredWindow(plan, completion_window)
  const { retention: ofKey, ...rest } = owner
  return {
    ...columns,
    ...rest,
    retention: retentionText([plan.retention, ofKey, readRetention(columns.retention ?? null)]),
    endpoint,
    input_file_id,
    completion_window: window.text,
    window_ms: window.ms,
    quotas: plan.quotas,
  }
}

/**
 * Inserts a batch and its plan task. Throws file_not_found, file_not_processed, invalid_request for a file that is not
 * an input, quota_exceeded and usage_limit_exceeded. `projection` comes from the file's index; null when the file had
 * none. A batch of a file that is invalid or not validated yet has no lines (plan.ts).
 */
export async function createBatch(
  tx: Writer,
  order: BatchOrder,
  projection: BatchProjection | null,
  now: number,
): Promise<BatchRow> {
  const { window_ms, quotas, takesAnyFile, ...fields } = order
  // The API shows whole seconds, and nothing runs after the time that the caller sees.
  const expires_at = Math.floor(now / 1000) * 1000 + window_ms
  if ((fields.start_after ?? 0) >= expires_at) throw invalidParam('start_after', startTooLate(expires_at))
  const found = await lockInputFile(tx, order.project_id, order.input_file_id, now)
  // Streaming validation stores a file's index before the file is processed.
  const lines = found?.status === 'processed' ? projection : null
  const mayLackLines = takesAnyFile && (takesAnyFile !== 'pending' || found?.status !== 'error')
  // A file may have been processed since its index was looked up.
  const hasNoLines = mayLackLines && found?.purpose === 'batch' && !lines
  const file = hasNoLines ? { ...found, line_count: 0 } : usableInput(found)
  if (!lines && !hasNoLines) throw new ApiError('file_not_processed', PENDING, { param: 'input_file_id' })
  await admitLines(tx, order, lines, { open_batches: 1, queued_lines: file.line_count }, now)
  const batch = await insertBatch(tx, {
    ...fields,
    id: newId('batch', now),
    total: file.line_count,
    created: now,
    expires_at,
    models: lines && modelsText(modelsIn(lines)),
  })
  if (lines) await recordProjectedSpend(tx, batch, lines)
  // If no line can run, the plan task reads the whole file.
  const large = sizeClass(file.bytes)
  await insertTask(tx, { kind: 'plan', subject: batch.id, project_id: batch.project_id, large }, now)
  return batch
}

/** Checks the quotas and reserves the projected cost of lines. Throws quota_exceeded and usage_limit_exceeded. */
export async function admitLines(
  tx: Writer,
  owner: Pick<BatchOrder, 'project_id' | 'quotas' | 'language'>,
  projection: BatchProjection | null,
  more: Use,
  now: number,
): Promise<void> {
  const entitiesMax = owner.quotas.entities_per_batch
  const entities = new Set(projection?.payers.flatMap(({ entity }) => entity ?? [])).size
  if (entitiesMax !== null && entities > entitiesMax)
    throw quotaExceeded('entities_per_batch', entitiesMax, 0, entities)
  await checkQuotas(tx, owner, more)
  if (projection) await checkQueuedTokens(tx, owner, tokensByModel(projection))
  if (projection) await admit(tx, owner.project_id, projection, owner.language, now)
}

function tokensByModel({ groups }: BatchProjection): Map<string, number> {
  const tokens = new Map<string, number>()
  for (const { model, spend } of groups)
    if (model !== null) tokens.set(model, sumOf(tokens.get(model) ?? 0, spend.tokens))
  return tokens
}

/** The limit of models whose names are stored with a batch. */
const MODELS_MAX = 100

export function modelsIn({ groups }: BatchProjection): Set<string> {
  return new Set(groups.flatMap(({ model }) => (model === null ? [] : [model])))
}

/** The names of models as JSON, as a batch stores them; null for too many. */
export function modelsText(models: ReadonlySet<string>): string | null {
  return models.size <= MODELS_MAX ? JSON.stringify([...models]) : null
}

function startTooLate(expires_at: number): string {
  const last = new Date(expires_at).toISOString()
  return `\`start_after\` must be a time in Unix seconds before the end of the completion window, which is ${last}.`
}

const PENDING = 'The input file is still being validated. Wait until its status is `processed`.'

/** Returns a batch's input. Throws file_not_found, file_not_processed, and invalid_request for another purpose. */
export function usableInput(file: FileRow | undefined): FileRow {
  const param = 'input_file_id'
  if (!file) throw new ApiError('file_not_found', undefined, { param })
  if (file.purpose !== 'batch') {
    const message =
      file.purpose === 'table'
        ? 'The file is a table. Say in `table` what to ask about its rows.'
        : 'The file contains results. A batch needs a file that was uploaded with the purpose "batch".'
    throw invalidParam(param, message)
  }
  if (file.status !== 'processed') {
    const message =
      file.status === 'pending'
        ? PENDING
        : `The input file is invalid: ${file.status_details ?? 'see its errors.'}`
    throw new ApiError('file_not_processed', message, { param })
  }
  return file
}

/** Reads a completion window that the plan offers. Throws invalid_request and plan_lacks_feature. */
export function offeredWindow(plan: Plan, text: string): Exclude<ReturnType<typeof windowOf>, string> {
  const window = windowOf(plan, text)
  if (typeof window === 'object') return window
  const offered = plan.completion_windows.map((one) => `"${one.text}"`).join(' or ')
  const param = 'completion_window'
  if (window === 'invalid') throw invalidParam(param, `\`completion_window\` must be ${offered}.`)
  const message = `The plan "${plan.name}" does not include this completion window. Use ${offered}; the operator of the service adds others to \`plans.${plan.name}.completion_windows\` in the configuration.`
  throw new ApiError('plan_lacks_feature', message, { param })
}
