// Writes the result and the audit record of a finished line. The result, in the output or error file, keeps the bytes
// of `custom_id` and of the model's answer, and only the cost is inserted: parsing and printing an answer would change
// numbers, escapes and the order of keys. The audit record has the caller, the times, every attempt and the cost.
import { BoundedMap } from '../domain/bounded-map.ts'
import { type EndpointPath, endpointOf } from '../domain/endpoint.ts'
import type { WireError } from '../domain/errors.ts'
import { LINE_DIGITS } from '../domain/ids.ts'
import { recordOf } from '../domain/json-record.ts'
import { COMPLETION_PARTS, PROMPT_PARTS, TOKEN_PARTS, type TokenUsage } from '../domain/money.ts'
import type { CostPlace } from '../jsonl/answer-scan.ts'
import type { ChunkLine } from '../jsonl/chunk-lines.ts'
import type { ByteWriter } from './byte-writer.ts'
import { NO_RESPONSE, roomFor } from './openai-errors.ts'

/** The text after the response of a line that succeeded. */
export const RESULT_TAIL = ',"error":null}\n'
const NEWLINE = 0x0a
const CARRIAGE_RETURN = 0x0d
const SPACE = 0x20

/** The line of the same batch whose answer or error a line shares. */
export interface SharedFrom {
  request_id: string
  custom_id_json: string
}

/** The parts of a line that result lines show. */
type NamedLine = Pick<ChunkLine, 'line' | 'custom_id_json' | 'endpoint'>

/** An upper bound of a result's bytes beside its custom_id, its answer or error, and the shared line. */
export const RESULT_BYTES_MAX = 850

/** The member `shared_from` with a comma; '' for a line that was sent itself. */
function sharedFromJson(from: SharedFrom | null): string {
  return from === null ? '' : `"shared_from":{"id":"${from.request_id}","custom_id":${from.custom_id_json}},`
}

/**
 * Writes the result of a line; `answer` is JSON. Raw line breaks, which JSON has only between tokens, become blanks,
 * because a result is one line. The cost is inserted, with `usage` if the answer has none.
 */
export function writeOutputLine(
  out: ByteWriter,
  requestIdPrefix: string,
  line: NamedLine,
  answer: Buffer,
  place: CostPlace,
  usage: TokenUsage,
  { cost_nanos, shared_from, missing }: Pick<LineEnd, 'cost_nanos' | 'shared_from' | 'missing'>,
): void {
  writeHead(out, requestIdPrefix, line, shared_from)
  if (missing > 0) out.ascii(`"missing":${missing},`)
  out.ascii('"response":{"status_code":200,"request_id":"')
  out.ascii(requestIdPrefix)
  out.base32(line.line, LINE_DIGITS)
  out.ascii('","body":')
  const from = out.at
  out.copy(answer, 0, place.start)
  writeCost(out, place, cost_nanos, usage, line.endpoint)
  out.copy(answer, place.end, answer.length)
  if (answer.includes(NEWLINE) || answer.includes(CARRIAGE_RETURN)) blankLineBreaks(out.bytes, from, out.at)
  out.ascii('}')
  out.ascii(RESULT_TAIL)
}

export function writeErrorLine(
  out: ByteWriter,
  requestIdPrefix: string,
  line: NamedLine,
  error: WireError,
  shared_from: SharedFrom | null,
): void {
  writeHead(out, requestIdPrefix, line, shared_from)
  out.ascii(NO_RESPONSE)
  out.text(errorJson(error))
  out.ascii(roomFor(error.code))
  out.ascii('}\n')
}

function writeHead(
  out: ByteWriter,
  requestIdPrefix: string,
  { line, custom_id_json }: NamedLine,
  shared_from: SharedFrom | null,
): void {
  out.ascii('{"id":"')
  out.ascii(requestIdPrefix)
  out.base32(line, LINE_DIGITS)
  out.ascii('","custom_id":')
  out.text(custom_id_json)
  out.ascii(',')
  if (shared_from !== null) out.text(sharedFromJson(shared_from))
}

function writeCost(
  out: ByteWriter,
  { kind, comma }: CostPlace,
  cost_nanos: number,
  usage: TokenUsage,
  endpoint: EndpointPath,
): void {
  if (comma && (kind === 'member' || kind === 'usage_member')) out.ascii(',')
  if (kind === 'usage_member') out.ascii('"usage":')
  const isWhole = kind === 'usage' || kind === 'usage_member'
  if (isWhole) {
    // The endpoint defines the names of the counts.
    const { input, output } = endpointOf(endpoint).usage
    out.ascii('{')
    writeCount(out, input, usage.prompt_tokens)
    if (output !== null) writeCount(out, output, usage.completion_tokens)
    writeCount(out, 'total_tokens', usage.total_tokens)
    for (const [name, parts] of [
      [input, PROMPT_PARTS],
      [output, COMPLETION_PARTS],
    ] as const)
      if (parts.some((part) => usage[part]))
        out.ascii(`"${name}_details":${JSON.stringify(recordOf(parts, (part) => usage[part]))},`)
  }
  if (kind !== 'cost') out.ascii('"cost_usd":')
  out.usd(cost_nanos)
  if (isWhole) out.ascii('}')
}

function writeCount(out: ByteWriter, name: string, count: number): void {
  out.ascii('"')
  out.ascii(name)
  out.ascii('":')
  out.count(count)
  out.ascii(',')
}

/** The JSON of error objects: every unfinished line of a cancelled batch ends with the same object. */
const jsonOf = new WeakMap<WireError, string>()

export function errorJson(error: WireError): string {
  const json = jsonOf.get(error) ?? JSON.stringify(error)
  jsonOf.set(error, json)
  return json
}

function blankLineBreaks(bytes: Buffer, from: number, to: number): void {
  for (let at = from; at < to; at++)
    if (bytes[at] === NEWLINE || bytes[at] === CARRIAGE_RETURN) bytes[at] = SPACE
}

export interface AttemptRecord {
  /** The time of the attempt, Unix ms. */
  at: number
  upstream: string
  tier: number
  /** The HTTP status; null without an answer. */
  status: number | null
  duration_ms: number
  /** The reason of a failure; absent for the attempt that was answered. */
  reason?: string
  /** The remote ID of the remote batch; absent for a line that was sent alone. */
  remote_batch?: string
}

/** The attempts of a line, the first ones only as a count. */
export interface LineAttempts {
  listed: readonly AttemptRecord[]
  omitted: number
}

export const NO_ATTEMPTS: LineAttempts = { listed: [], omitted: 0 }

/** The end of a line, as its record states it. */
export interface LineEnd {
  attempts: LineAttempts
  /** The server that answered; null without an answer. */
  upstream: { name: string; tier: number } | null
  /** The service tier that the answer names; null: none. */
  service_tier: string | null
  /** The number of choices, vectors or scores that the answer lacks. */
  missing: number
  /** Whether the answer was cut off, where its status says so; absent: no. */
  isIncomplete?: boolean
  usage: TokenUsage | null
  /** Whether some of the usage was estimated, since the server reported none, or zeros beside an answer. */
  usage_estimated: boolean
  /** JSON of an impossible reported usage, in place of which another one is billed; else null. */
  usage_reported: string | null
  cost_nanos: number
  /** The cost that cached tokens saved; absent: none. */
  cache_saved_nanos?: number
  /** The line whose answer or error this line shares, without having been sent. */
  shared_from: SharedFrom | null
  error: WireError | null
  /** The time of the end, Unix ms. */
  finished: number
}

/** An upper bound of a record's bytes beside the texts that `recordTextBytes` counts. */
export const RECORD_BYTES_MAX = 1_390
const ATTEMPT_BYTES_MAX = 200

/** An upper bound of the bytes of all texts of the record. */
export function recordTextBytes(line: ChunkLine, end: LineEnd): number {
  const { model, entity, conversation, tags } = line
  let characters = (model?.length ?? 0) + (entity?.length ?? 0)
  characters += (conversation?.length ?? 0) + (tags?.length ?? 0) + (end.usage_reported?.length ?? 0)
  characters += (end.upstream?.name.length ?? 0) + (end.service_tier?.length ?? 0)
  for (const { upstream, reason = '', remote_batch = '' } of end.attempts.listed)
    characters += ATTEMPT_BYTES_MAX + upstream.length + reason.length + remote_batch.length
  // A character takes at most six bytes in JSON.
  return 6 * characters
}

/** Writes the audit record. `batch` and the request ID are ASCII; `custom_id_json` and errors are written unchanged. */
export function writeRecord(
  out: ByteWriter,
  batch: { id: string; traceparent: string | null },
  requestIdPrefix: string,
  line: ChunkLine,
  end: LineEnd,
): void {
  out.ascii('{"id":"')
  out.ascii(requestIdPrefix)
  out.base32(line.line, LINE_DIGITS)
  out.ascii('","object":"request","kind":"line","batch_id":"')
  out.ascii(batch.id)
  out.ascii('","custom_id":')
  out.text(line.custom_id_json)
  out.ascii(',"line":')
  out.count(line.line)
  out.ascii(',"model":')
  out.text(quoted(line.model))
  out.ascii(',"entity":')
  out.text(quoted(line.entity))
  out.ascii(',"conversation":')
  out.text(quoted(line.conversation))
  out.ascii(',"tags":')
  out.text(quoted(line.tags))
  out.ascii(end.error === null ? ',"status_code":200,"attempts":[' : ',"status_code":null,"attempts":[')
  writeAttempts(out, end.attempts)
  out.ascii(',')
  if (end.upstream !== null) {
    out.ascii('"upstream":')
    out.text(quoted(end.upstream.name))
    out.ascii(',"tier":')
    out.count(end.upstream.tier)
    out.ascii(',')
  }
  if (end.service_tier !== null) out.text(`"service_tier":${quoted(end.service_tier)},`)
  out.ascii('"usage":')
  if (end.usage === null) out.ascii('null')
  else writeUsage(out, end.usage)
  if (end.missing > 0) out.ascii(`,"missing":${end.missing}`)
  if (end.isIncomplete) out.ascii(',"incomplete":true')
  if (end.usage_estimated) out.ascii(',"usage_estimated":true')
  if (end.usage_reported !== null) out.text(`,"usage_reported":${end.usage_reported}`)
  out.ascii(',"cost_usd":')
  out.usd(end.cost_nanos)
  out.ascii(',')
  if (end.shared_from !== null) out.text(sharedFromJson(end.shared_from))
  out.ascii('"error":')
  if (end.error === null) out.ascii('null,')
  else out.text(`${errorJson(end.error)},`)
  if (batch.traceparent !== null) out.ascii(`"traceparent":"${batch.traceparent}",`)
  out.ascii('"created":')
  out.count(Math.floor(end.finished / 1000))
  out.ascii('}\n')
}

function writeAttempts(out: ByteWriter, { listed, omitted }: LineAttempts): void {
  for (let i = 0; i < listed.length; i++) {
    const attempt = listed[i]!
    out.ascii(i === 0 ? '{"at":' : ',{"at":')
    writeSeconds(out, attempt.at)
    out.ascii(',"upstream":')
    out.text(quoted(attempt.upstream))
    out.ascii(',"tier":')
    out.count(attempt.tier)
    out.ascii(',"status":')
    if (attempt.status === null) out.ascii('null')
    else out.count(attempt.status)
    out.ascii(',"duration_ms":')
    if (Number.isInteger(attempt.duration_ms) && attempt.duration_ms >= 0) out.count(attempt.duration_ms)
    else out.ascii(String(Math.round(attempt.duration_ms * 10) / 10))
    if (attempt.remote_batch !== undefined)
      out.text(`,"remote_batch":${JSON.stringify(attempt.remote_batch)}`)
    if (attempt.reason !== undefined) out.text(`,"reason":${JSON.stringify(attempt.reason)}`)
    out.ascii('}')
  }
  out.ascii(']')
  if (omitted > 0) out.ascii(`,"attempts_omitted":${omitted}`)
}

function writeUsage(out: ByteWriter, usage: TokenUsage): void {
  out.ascii('{"prompt_tokens":')
  out.count(usage.prompt_tokens)
  out.ascii(',"completion_tokens":')
  out.count(usage.completion_tokens)
  out.ascii(',"total_tokens":')
  out.count(usage.total_tokens)
  for (const part of TOKEN_PARTS) {
    const count = usage[part]
    if (count) out.ascii(`,"${part}":${count}`)
  }
  out.ascii('}')
}

/** Writes Unix ms as seconds with their fraction, as JSON prints the quotient. */
function writeSeconds(out: ByteWriter, ms: number): void {
  const seconds = Math.floor(ms / 1000)
  const rest = ms - seconds * 1000
  if (!Number.isInteger(ms) || ms < 0) {
    out.ascii(String(ms / 1000))
    return
  }
  out.count(seconds)
  if (rest === 0) return
  out.ascii(rest < 10 ? '.00' : rest < 100 ? '.0' : '.')
  out.count(rest % 100 === 0 ? rest / 100 : rest % 10 === 0 ? rest / 10 : rest)
}

/** The JSON of models, upstreams, entities, conversations and tags, which most lines share. */
const known = new BoundedMap<string, string>(4096)

function quoted(value: string | null): string {
  if (value === null) return 'null'
  let json = known.get(value)
  if (json !== undefined) return json
  json = JSON.stringify(value)
  known.set(value, json)
  return json
}
