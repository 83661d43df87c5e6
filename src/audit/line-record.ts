// The audit record of one line: who, what, when, every attempt, and what it cost. It outlives the files, so
// it holds nothing of their content; while the result file exists, reading a record shows its response too.
import type { WireError } from '../domain/errors.ts'
import { type TokenUsage, usdLiteral } from '../domain/money.ts'
import { asLine, errorJson, type SharedFrom, sharedFromJson } from '../results/result-line.ts'

export interface Attempt {
  /** Unix ms. */
  at: number
  upstream: string
  tier: number
  /** HTTP status; null when there was no answer. */
  status: number | null
  duration_ms: number
  /** Absent for the attempt that was answered. */
  reason?: string
  /** The ID of the batch at the batch API; absent for a line that was sent alone. */
  remote_batch?: string
}

export interface LineRecord {
  request_id: string
  batch_id: string
  custom_id_json: string
  line: number
  model: string | null
  entity: string | null
  conversation: string | null
  tags: string | null
  attempts: readonly Attempt[]
  /** Attempts that were made and are no longer listed. */
  attempts_omitted: number
  /** The one that answered; null where none did. */
  upstream: { name: string; tier: number } | null
  usage: TokenUsage | null
  /** Whether the server reported no usage, so that it was estimated. */
  usage_estimated: boolean
  /** JSON of what the server reported, where that cannot be and another usage is billed. */
  usage_reported: string | null
  cost_nanos: number
  /** The line whose answer or error this one shares, without having been sent. */
  shared_from: SharedFrom | null
  error: WireError | null
  /** The W3C trace context of the call that created the batch. */
  traceparent: string | null
  /** Unix ms. */
  finished: number
}

/** Of a line that no server answered. */
export const NOT_BILLED = {
  upstream: null,
  usage: null,
  usage_estimated: false,
  usage_reported: null,
  cost_nanos: 0,
}

/** The record as one line of JSON, its line break included; written by hand because every line passes here. */
export function lineRecordLine(record: LineRecord): Buffer {
  const { usage } = record
  return asLine(
    `{"id":"${record.request_id}","object":"request","kind":"line","batch_id":"${record.batch_id}",` +
      `"custom_id":${record.custom_id_json},"line":${record.line},"model":${text(record.model)},` +
      `"entity":${text(record.entity)},"conversation":${JSON.stringify(record.conversation)},"tags":${JSON.stringify(record.tags)},` +
      `"status_code":${record.error === null ? 200 : 'null'},` +
      `"attempts":[${record.attempts.map(attemptJson).join(',')}],` +
      (record.attempts_omitted > 0 ? `"attempts_omitted":${record.attempts_omitted},` : '') +
      (record.upstream === null
        ? ''
        : `"upstream":${text(record.upstream.name)},"tier":${record.upstream.tier},`) +
      `"usage":${usage === null ? 'null' : usageJson(usage)},` +
      (record.usage_estimated ? '"usage_estimated":true,' : '') +
      (record.usage_reported === null ? '' : `"usage_reported":${record.usage_reported},`) +
      `"cost_usd":${usdLiteral(record.cost_nanos)},${sharedFromJson(record.shared_from)}"error":${record.error === null ? 'null' : errorJson(record.error)},` +
      (record.traceparent === null ? '' : `"traceparent":"${record.traceparent}",`) +
      `"created":${Math.floor(record.finished / 1000)}}`,
  )
}

function usageJson(usage: TokenUsage): string {
  const { cached_tokens = 0, reasoning_tokens = 0 } = usage
  const cached = cached_tokens > 0 ? `,"cached_tokens":${cached_tokens}` : ''
  const reasoning = reasoning_tokens > 0 ? `,"reasoning_tokens":${reasoning_tokens}` : ''
  return `{"prompt_tokens":${usage.prompt_tokens},"completion_tokens":${usage.completion_tokens},"total_tokens":${usage.total_tokens}${cached}${reasoning}}`
}

function attemptJson(attempt: Attempt): string {
  const reason = attempt.reason === undefined ? '' : `,"reason":${JSON.stringify(attempt.reason)}`
  const remote =
    attempt.remote_batch === undefined ? '' : `,"remote_batch":${JSON.stringify(attempt.remote_batch)}`
  return `{"at":${attempt.at / 1000},"upstream":${text(attempt.upstream)},"tier":${attempt.tier},"status":${attempt.status},"duration_ms":${Math.round(attempt.duration_ms * 10) / 10}${remote}${reason}}`
}

/** Models, upstreams and entities, as JSON: the same few for lines without end. */
const quoted = new Map<string, string>()
const QUOTED_MAX = 4096

function text(value: string | null): string {
  if (value === null) return 'null'
  const known = quoted.get(value)
  if (known !== undefined) return known
  if (quoted.size === QUOTED_MAX) quoted.clear()
  const json = JSON.stringify(value)
  quoted.set(value, json)
  return json
}
