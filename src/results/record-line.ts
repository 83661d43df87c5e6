// Records the end of a line: its result line, its audit record and its cost, as bytes and sums (chunk-results.ts).

import type { AuditEntry } from '../domain/audit-log.ts'
import { isAnswerFault, isNotRun } from '../domain/batch.ts'
import { dayOf } from '../domain/days.ts'
import { endpointOf } from '../domain/endpoint.ts'
import type { WireError } from '../domain/errors.ts'
import { base32 } from '../domain/ids.ts'
import type { Model } from '../domain/model.ts'
import {
  addTokens,
  costNanos,
  FREE,
  NO_SPEND,
  NO_TOKENS,
  type Price,
  ratesAt,
  type TokenUsage,
} from '../domain/money.ts'
import { boundUsage, estimateTokens, type LineBounds, withoutZeros } from '../domain/tokens.ts'
import type { Answer, CostPlace } from '../jsonl/answer-scan.ts'
import type { ChunkLine } from '../jsonl/chunk-lines.ts'
import { repairTokensMax } from '../jsonl/projection.ts'
import { promptTokensMax } from '../jsonl/prompt-bound.ts'
import type { BatchRow } from '../store/schema.ts'
import type { ChunkResults, Ended } from './chunk-results.ts'
import {
  errorJson,
  type LineAttempts,
  type LineEnd,
  NO_ATTEMPTS,
  RECORD_BYTES_MAX,
  RESULT_BYTES_MAX,
  recordTextBytes,
  type SharedFrom,
  writeErrorLine,
  writeOutputLine,
  writeRecord,
} from './line-record.ts'

/** The limit of bytes of a reported usage that is stored but not billed. */
const REPORTED_BYTES_MAX = 1000

/** An answer of a server: its bytes and its scanned facts. */
export interface Answered {
  body: Buffer
  answer: Answer
}

/** An answer that identical lines share, and the line that was sent. */
export interface SharedAnswer extends Answered {
  /** The cost of the line that was sent. */
  cost_nanos: number
  from: SharedFrom
}

/** A line that ends, and the results to which it is added. */
interface RecordedLine {
  batch: Pick<BatchRow, 'id' | 'project_id' | 'key_id' | 'traceparent'>
  requestIdPrefix: string
  line: ChunkLine
  position: number
  results: ChunkResults
  /** Whether the line's projected spend is reserved. */
  isReserved: boolean
  /** Whether the line waits for limits: the reservation of an earlier attempt may be another line's. */
  isHeld?: boolean
  /** The UTC day under whose limits the line was reserved, and to which it is charged; null: the day of its end. */
  reservedOn: number | null
}

export interface SentLine extends RecordedLine {
  /** The bytes that the positions in the line refer to. */
  bytes: Buffer
}

/** The server that answered, with its prices and window at that time: a reload may change them before the line ends. */
export interface Answerer {
  upstream: { name: string; tier: number; price: Price | null }
  /** The model; undefined if the configuration has not named it since the worker started. */
  model: BilledModel
}

/** The usage of the answers before the last one. */
export interface Earlier {
  usage: TokenUsage
  /** Whether some of the usage was estimated, since a server reported none, or zeros. */
  isEstimated: boolean
  cost_nanos: number
  /** The prompt tokens of the first answer. */
  first_prompt_tokens: number
  /** An upper bound of the tokens that the next request adds to the line's own. */
  more_tokens: number
}

export const NO_EARLIER: Earlier = {
  usage: NO_TOKENS,
  isEstimated: false,
  cost_nanos: 0,
  first_prompt_tokens: Number.POSITIVE_INFINITY,
  more_tokens: 0,
}

/** The usage of a line that was answered itself. */
interface AnsweredLine {
  cost_nanos: number
  usage: TokenUsage
  /** Whether the server reported the prompt tokens. */
  isPromptReported: boolean
}

type BilledModel = Pick<Model, 'price' | 'context_window'> | undefined

/** The usage and the cost of an answer, with the answers before it. `more_bytes`: bytes that the next request adds. */
export function billAnswer(
  to: SentLine,
  answer: Answer,
  { upstream, model }: Answerer,
  earlier: Earlier,
  more_bytes: number,
): Earlier {
  const counted = countedUsage(to, answer, earlier)
  const usage = boundedUsage(to, counted, model, earlier)
  return {
    usage: addTokens(earlier.usage, usage),
    isEstimated: earlier.isEstimated || counted !== answer.usage,
    cost_nanos: earlier.cost_nanos + costOf(usage, answer, upstream, model),
    first_prompt_tokens: earlier === NO_EARLIER ? usage.prompt_tokens : earlier.first_prompt_tokens,
    // A token has at least one byte.
    more_tokens: Math.min(more_bytes, repairTokensMax(to.line.output_tokens_max)),
  }
}

/** Whether the answers so far cost no more than was projected for the line, if that is reserved. */
export function isWithinProjection(
  { line, isReserved }: RecordedLine,
  { usage, cost_nanos }: Earlier,
): boolean {
  const { projected } = line
  return !isReserved || (cost_nanos <= projected.cost_nanos && usage.total_tokens <= projected.tokens)
}

/** The reported usage itself, or an estimate if the server reports none, or zeros where there are tokens. */
function countedUsage(
  { line }: SentLine,
  { usage, generated_bytes }: Answer,
  { more_tokens }: Earlier,
): TokenUsage {
  return withoutZeros(usage ?? NO_TOKENS, {
    prompt_tokens: line.input_tokens + estimateTokens(more_tokens),
    completion_tokens: estimateTokens(generated_bytes),
  })
}

function boundedUsage(to: SentLine, counted: TokenUsage, model: BilledModel, earlier: Earlier): TokenUsage {
  bound.line = to
  // The context window is one of tokens.
  const countsTokens = endpointOf(to.line.endpoint).usage.unit === undefined
  bound.context_window = countsTokens ? (model?.context_window ?? null) : null
  bound.earlier = earlier
  return boundUsage(counted, bound)
}

/** The cost of an answer; free if `model` is undefined. */
function costOf(
  usage: TokenUsage,
  { service_tier }: Pick<Answer, 'service_tier'>,
  upstream: { price: Price | null },
  model: BilledModel,
): number {
  const { prompt_tokens, completion_tokens } = usage
  const price = upstream.price ?? model?.price ?? FREE
  return costNanos(prompt_tokens, completion_tokens, ratesAt(price, prompt_tokens, service_tier), usage)
}

/** Records an answered line with the cost of all its answers. `attempts`: all of them, the answered one last. */
export function recordAnswer(
  to: SentLine,
  { body, answer }: Answered,
  { upstream, model }: Answerer,
  attempts: LineAttempts,
  now: number,
  earlier = NO_EARLIER,
): AnsweredLine {
  const counted = countedUsage(to, answer, earlier)
  const usage = boundedUsage(to, counted, model, earlier)
  const isCorrected = usage !== answer.usage
  const billed = earlier === NO_EARLIER ? usage : addTokens(earlier.usage, usage)
  const own_nanos = costOf(usage, answer, upstream, model)
  const uncached_nanos = usage.cached_tokens
    ? costOf({ ...usage, cached_tokens: 0 }, answer, upstream, model)
    : own_nanos
  const cost_nanos = earlier.cost_nanos + own_nanos
  const isRejected = answer.isUsageRejected || (isCorrected && answer.usage !== null)
  const isEstimated = earlier.isEstimated || counted !== answer.usage
  writeOutput(
    to,
    body,
    isCorrected ? answer.usage_place : answer.cost,
    usage,
    {
      attempts,
      upstream,
      missing: missingEntries(to, answer),
      isIncomplete: answer.isIncomplete,
      service_tier: answer.service_tier,
      usage: billed,
      usage_estimated: isEstimated,
      usage_reported: isRejected ? reportedUsage(body, answer) : null,
      cost_nanos,
      cache_saved_nanos: uncached_nanos - own_nanos,
      shared_from: null,
      error: null,
      finished: now,
    },
    null,
  )
  const isPromptReported = earlier === NO_EARLIER && answer.usage?.prompt_tokens === usage.prompt_tokens
  return { cost_nanos, usage: billed, isPromptReported }
}

/** The reason for which entries of an answer cannot be matched to the line's inputs; null if they can. */
export function misplacedEntries({ line }: SentLine, { entries }: Answer): string | null {
  const { answer, usage, choicesPerText } = endpointOf(line.endpoint)
  const isGenerated = usage.output !== null
  // Choices for one prompt may be in any order.
  if (line.entries === null || (isGenerated && (!choicesPerText || line.inputs === 1))) return null
  const most = isGenerated ? line.entries : line.inputs
  const { count, index_max, isIndexRepeated } = entries
  const where = `its \`${answer.list}\` cannot be matched with the ${most} that were asked for`
  if (count > most) return `${where}: there are ${count}`
  if (isIndexRepeated) return `${where}: an index is given twice`
  return index_max < most ? null : `${where}: an index is not below ${most}`
}

/** Records a line that shares the answer of an identical one, without usage or cost. */
export function recordShared(
  to: RecordedLine,
  { body, answer, cost_nanos, from }: SharedAnswer,
  attempts: LineAttempts,
  now: number,
): void {
  writeOutput(
    to,
    body,
    answer.usage_place,
    NO_TOKENS,
    {
      ...unbilled(attempts, now),
      missing: missingEntries(to, answer),
      isIncomplete: answer.isIncomplete,
      usage: NO_TOKENS,
      shared_from: from,
    },
    cost_nanos,
  )
}

/** Records a line that fails. `shared_from`: the identical line whose error it shares. */
export function recordFailure(
  to: RecordedLine,
  error: WireError,
  now: number,
  {
    attempts = NO_ATTEMPTS,
    shared_from = null,
    expired = error.code === 'batch_expired',
  }: { attempts?: LineAttempts; shared_from?: SharedFrom | null; expired?: boolean } = {},
): void {
  const { results, requestIdPrefix, line, position } = to
  const end: LineEnd = { ...unbilled(attempts, now), shared_from, error }
  results.begin(position, 'error', 2 * maxBytes(errorJson(error)) + bytesMax(line, end))
  writeErrorLine(results.out, requestIdPrefix, line, error, shared_from)
  finish(to, end, expired, null)
}

/** The number of entries that an answer lacks. */
function missingEntries({ line }: RecordedLine, { entries }: Answer): number {
  return Math.max(0, (line.entries ?? 0) - entries.count)
}

function writeOutput(
  to: RecordedLine,
  body: Buffer,
  place: CostPlace,
  usage: TokenUsage,
  end: LineEnd,
  saved_nanos: number | null,
): void {
  const { results, requestIdPrefix, line, position } = to
  results.begin(position, 'output', body.length + bytesMax(line, end))
  writeOutputLine(results.out, requestIdPrefix, line, body, place, usage, end)
  finish(to, end, false, saved_nanos)
}

/** An upper bound of the bytes of both lines beside the answer or the error. */
function bytesMax(line: ChunkLine, end: LineEnd): number {
  return RESULT_BYTES_MAX + RECORD_BYTES_MAX + sharedBytes(line, end.shared_from) + recordTextBytes(line, end)
}

/** Writes the audit record after the result, and counts the line. */
function finish(to: RecordedLine, end: LineEnd, expired: boolean, saved_nanos: number | null): void {
  const { results, batch, requestIdPrefix, line, position, isReserved, isHeld = false, reservedOn } = to
  const { error, attempts, finished } = end
  results.endResult()
  writeRecord(results.out, batch, requestIdPrefix, line, end)
  results.auditLog?.(entryOf(to, end))
  scratch.part = error === null ? 'output' : 'error'
  scratch.day = reservedOn ?? dayOf(finished)
  scratch.model = line.known_model
  scratch.entity = line.entity
  scratch.usage = end.usage
  scratch.cost_nanos = end.cost_nanos
  scratch.projected = line.projected
  scratch.isReserved = isReserved
  scratch.saved_nanos = saved_nanos
  scratch.cache_saved_nanos = end.cache_saved_nanos ?? 0
  scratch.failure = error && { model: line.known_model, code: error.code, message: error.message }
  scratch.expired = expired
  const sent = attempts.listed.length + attempts.omitted
  scratch.isNotRun = error !== null && isNotRun(error.code, sent)
  scratch.wasSent = sent > 0 && (error === null || !isHeld)
  const last = attempts.listed.at(-1)
  scratch.isFaulty = error === null && isAnswerFault(last?.reason)
  scratch.isReasked = attempts.listed.length > 1 && wasAskedAgain(attempts)
  results.end(position, scratch, finished)
}

function entryOf({ batch, requestIdPrefix, line }: RecordedLine, end: LineEnd): AuditEntry {
  const { error, finished, usage, attempts } = end
  return {
    event: 'offpeak.line',
    at: finished,
    isFailed: error !== null,
    traceparent: batch.traceparent,
    attributes: {
      'offpeak.request.id': requestIdPrefix + base32(line.line),
      'offpeak.batch.id': batch.id,
      'offpeak.project.id': batch.project_id,
      'offpeak.key.id': batch.key_id,
      'offpeak.entity': line.entity,
      'offpeak.attempts': attempts.listed.length + attempts.omitted,
      'offpeak.cost_nanos': end.cost_nanos,
      'offpeak.upstream': end.upstream?.name ?? null,
      'gen_ai.request.model': line.model,
      'gen_ai.usage.input_tokens': usage?.prompt_tokens ?? null,
      'gen_ai.usage.output_tokens': usage?.completion_tokens ?? null,
      'error.type': error?.code ?? null,
    },
  }
}

/** Whether an answer before the last one had a fault. */
function wasAskedAgain({ listed }: LineAttempts): boolean {
  return listed.slice(0, -1).some(({ reason }) => isAnswerFault(reason))
}

/** An upper bound of the bytes of the custom_id in both lines, and of the shared line. */
function sharedBytes(line: ChunkLine, from: SharedFrom | null): number {
  const own = 2 * maxBytes(line.custom_id_json)
  return from === null ? own : own + 2 * (100 + maxBytes(from.custom_id_json))
}

/** An upper bound of a text's bytes: UTF-8 has at most three bytes for a UTF-16 unit. */
function maxBytes(text: string): number {
  return 3 * text.length
}

/** The bounds for the usage of the current line. */
class Bound implements LineBounds {
  line: SentLine | null = null
  context_window: number | null = null
  earlier = NO_EARLIER

  get inputs(): number {
    return this.line!.line.inputs
  }

  get choices(): number {
    return this.line!.line.choices
  }

  get output_tokens_max(): number {
    return this.line!.line.output_tokens_max
  }

  promptTokensMax(reported: number): number {
    const { bytes, line, isReserved } = this.line!
    const { usage, first_prompt_tokens, more_tokens } = this.earlier
    const most =
      promptTokensMax(bytes, line.body, line.endpoint, line.inputs, reported - more_tokens) + more_tokens
    if (!isReserved) return most
    // A further attempt is bounded by the rest of the reservation, or by the first attempt's prompt if that is longer.
    return Math.min(most, Math.max(line.input_tokens_max - usage.prompt_tokens, first_prompt_tokens))
  }
}

const bound = new Bound()

/** The reused object for a line's end, read before the next line is recorded. */
const scratch: Ended = {
  part: 'output',
  day: 0,
  model: null,
  entity: null,
  usage: null,
  cost_nanos: 0,
  projected: NO_SPEND,
  isReserved: false,
  saved_nanos: null,
  cache_saved_nanos: 0,
  failure: null,
  expired: false,
  isNotRun: false,
  wasSent: false,
  isReasked: false,
  isFaulty: false,
}

function unbilled(attempts: LineAttempts, finished: number): LineEnd {
  return {
    attempts,
    upstream: null,
    missing: 0,
    service_tier: null,
    usage: null,
    usage_estimated: false,
    usage_reported: null,
    cost_nanos: 0,
    shared_from: null,
    error: null,
    finished,
  }
}

/** The reported usage as JSON; a JSON string if it is long. */
function reportedUsage(body: Buffer, { usage_place }: Answer): string | null {
  const { start, end, kind } = usage_place
  if (kind !== 'usage') return null
  if (end - start <= REPORTED_BYTES_MAX) return JSON.stringify(JSON.parse(body.toString('utf8', start, end)))
  return JSON.stringify(`${body.toString('utf8', start, start + REPORTED_BYTES_MAX)}…`)
}
