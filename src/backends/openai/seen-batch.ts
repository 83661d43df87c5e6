// Reads the batch object of a batch API. Batch APIs agree on the field names, with known deviations: Together wraps a
// created batch in `job` and writes statuses in capitals, Mistral has other names for statuses and files, times are
// numbers or text, and some lists leave metadata out.
import { isRecord } from '../../domain/json-record.ts'
import { storableText } from '../../domain/text.ts'
import { type SeenBatch, UnusableId } from '../batch-api/batch-api.ts'
import { blamedByBatch, notUnderstood, saysTooMuch } from './batch-api-failure.ts'

/** The end of a batch by the statuses of several batch APIs. */
const ENDS: Readonly<Record<string, string>> = {
  completed: 'completed',
  complete: 'completed',
  succeeded: 'completed',
  success: 'completed',
  done: 'completed',
  failed: 'failed',
  error: 'failed',
  expired: 'expired',
  timeout_exceeded: 'expired',
  timed_out: 'expired',
  cancelled: 'cancelled',
  canceled: 'cancelled',
}
const RUNNING = [
  'validating',
  'queued',
  'pending',
  'running',
  'in_progress',
  'finalizing',
  'cancelling',
  'canceling',
  'cancellation_requested',
  'created',
]
/** Codes of a batch that was rejected because too much is queued. */
const THROTTLED = /quota_exceeded|rate_limit/i
const DETAIL_LENGTH_MAX = 300
/** The greatest time that counts as seconds; greater numbers are milliseconds. */
const SECONDS_MAX = 1e11
/** The bounds of a plausible time of creation: 2001 and 2100 (Unix ms). */
const CREATED_MS_MIN = 1e12
const CREATED_MS_MAX = 4.1e12
const STATUS_LENGTH_MAX = 40
/** The longest ID that is accepted: IDs are stored, and become parts of addresses. */
const ID_LENGTH_MAX = 512
const COUNT_MAX = 1e9

/** Reads a batch; null if the JSON is none. Throws for invalid IDs. `redact` removes secrets from its texts. */
export function seenBatch(json: unknown, redact: (text: string) => string): SeenBatch | null {
  const batch = isRecord(json) && isRecord(json.job) ? json.job : json
  if (!isRecord(batch)) return null
  const id = idOf(batch.id)
  if (id === null) return null
  const status = typeof batch.status === 'string' ? batch.status.toLowerCase() : ''
  const detail = storableText(redact(detailOf(batch))).slice(0, DETAIL_LENGTH_MAX)
  const { request_counts, cost_usd } = batch
  const output_file_id = fileIdOf(batch.output_file_id ?? batch.output_file)
  const error_file_id = fileIdOf(batch.error_file_id ?? batch.error_file)
  const known = Object.hasOwn(ENDS, status) ? ENDS[status] : undefined
  const isKnown = known !== undefined || RUNNING.includes(status)
  const done = doneOf(request_counts)
  const ended =
    known ?? (!isKnown && (output_file_id ?? error_file_id) !== null && done === 1 ? 'completed' : null)
  const isThrottled = ended === 'failed' && (THROTTLED.test(detail) || saysTooMuch(detail))
  const blamed = ended === 'failed' ? blamedByBatch(batch, redact) : null
  return {
    id,
    status: status.slice(0, STATUS_LENGTH_MAX),
    isKnown,
    ended,
    done,
    output_file_id,
    error_file_id,
    detail: detail === '' ? null : detail,
    isThrottled,
    blamed,
    refusesService: ended === 'failed' && blamed === null && !isThrottled && detail !== '',
    report: reportOf(status, request_counts, cost_usd),
  }
}

/** The time when a batch was created (Unix ms); null if it has none. */
export function createdMs(batch: Record<string, unknown>): number | null {
  const at = batch.created_at ?? batch.created
  const number = typeof at === 'string' && /^\d+(\.\d+)?$/.test(at) ? Number(at) : at
  const text = typeof at === 'string' ? Date.parse(at) : Number.NaN
  const ms = typeof number === 'number' ? (number > SECONDS_MAX ? number : number * 1000) : text
  return ms >= CREATED_MS_MIN && ms <= CREATED_MS_MAX ? ms : null
}

/** JSON of the counts and the cost that are plausible. */
function reportOf(status: string, counts: unknown, cost: unknown): string {
  const { total, completed, failed } = isRecord(counts) ? counts : {}
  const request_counts = { total: countOf(total), completed: countOf(completed), failed: countOf(failed) }
  const cost_usd = typeof cost === 'number' && cost >= 0 && cost <= COUNT_MAX ? cost : undefined
  return JSON.stringify({ status: status.slice(0, STATUS_LENGTH_MAX), request_counts, cost_usd })
}

function countOf(value: unknown): number | undefined {
  return Number.isInteger(value) && Number(value) >= 0 && Number(value) <= COUNT_MAX
    ? Number(value)
    : undefined
}

function doneOf(counts: unknown): number {
  if (!isRecord(counts)) return 0
  const { total, completed, failed } = counts
  const share = (Number(completed ?? 0) + Number(failed ?? 0)) / Number(total)
  return share > 0 && share <= 1 ? share : 0
}

/** The ID of a file; null where it is missing or unusable: the lines of such a file have no result. */
function fileIdOf(value: unknown): string | null {
  return typeof value === 'string' && isUsable(value) ? value : null
}

/** The ID of a batch; null where it is missing. Throws an UnusableId for one that cannot be a part of an address. */
export function idOf(value: unknown): string | null {
  if (typeof value !== 'string') return null
  if (isUsable(value)) return value
  const what =
    value.length > ID_LENGTH_MAX
      ? `an ID of more than ${ID_LENGTH_MAX} characters`
      : 'an ID that cannot be part of an address'
  throw new UnusableId(notUnderstood(what).result, false)
}

/** Whether an ID can be stored, and be a part of a URL path. */
export function isUsable(id: string): boolean {
  const isPath = id === '' || id === '.' || id === '..'
  return !isPath && id.length <= ID_LENGTH_MAX && id.isWellFormed() && !/\p{Cc}/u.test(id)
}

/** The batch API's message about the failure of a batch. */
function detailOf({ errors, error }: Record<string, unknown>): string {
  const list = isRecord(errors) ? errors.data : errors
  const first: unknown = Array.isArray(list) ? list[0] : (list ?? error)
  if (typeof first === 'string') return first
  if (!isRecord(first)) return ''
  const words = [first.code, first.message].filter((word) => typeof word === 'string')
  return words.join(': ')
}
