// Turns the end of a line into its result line, audit record and cost.
import { type LineRecord, lineRecordLine, NOT_BILLED } from '../../audit/line-record.ts'
import type { BackendResult } from '../../backends/backend.ts'
import { ENDPOINTS, type EndpointPath } from '../../domain/endpoint.ts'
import { type WireError, wireError } from '../../domain/errors.ts'
import { base32 } from '../../domain/ids.ts'
import type { Log } from '../../domain/log.ts'
import type { Model } from '../../domain/model.ts'
import { costNanos, FREE, type TokenUsage, usdLiteral } from '../../domain/money.ts'
import { estimateTokens } from '../../domain/tokens.ts'
import { boundUsage } from '../../domain/usage-bound.ts'
import { promptTokensMax } from '../../jsonl/prompt-bound.ts'
import type { Outcome } from '../../results/outcome.ts'
import { errorLine, outputLine, type SharedFrom } from '../../results/result-line.ts'
import { spliceCost } from '../../results/splice-cost.ts'
import type { Job } from './lane.ts'
import { internalFault } from './send-once.ts'
import type { Upstream } from './upstream.ts'

/** How much of a reported usage that is not billed is kept. */
const REPORTED_BYTES_MAX = 1000

export type Answered = Extract<BackendResult, { kind: 'answered' }>

/** An answer, and the line that was sent for it. */
export interface SharedAnswer {
  result: Answered
  from: SharedFrom
}

/** An answer that cannot be recorded ends the line: another attempt would fail in the same way. */
export function outcomeOf(
  job: Job,
  upstream: Upstream,
  result: Answered,
  { models, log }: { models: ReadonlyMap<string, Model>; log: Log },
  now: number,
): Outcome {
  try {
    return answered(job, result, upstream, models.get(job.chunk.lines[job.position]!.model ?? ''), now)
  } catch (error) {
    const { code, reason } = internalFault(upstream.backend, error, log)
    return failed(job, wireError(code, reason), now)
  }
}

/**
 * The outcome of an answered line. Only answered lines cost anything. `model` is undefined if the configuration has
 * dropped it; the line is then free.
 */
export function answered(
  job: Job,
  result: Answered,
  upstream: Pick<Upstream, 'name' | 'tier' | 'price'>,
  model: Pick<Model, 'price' | 'context_window'> | undefined,
  now: number,
): Outcome {
  const line = job.chunk.lines[job.position]!
  const { answer } = result
  const { price, context_window } = model ?? { price: FREE, context_window: null }
  const counted = answer.usage ?? estimateUsage(line.input_tokens, answer.generated_bytes)
  const { inputs, choices, output_tokens_max, endpoint, body } = line
  const promptMax = (reported: number): number =>
    promptTokensMax(job.chunk.bytes.subarray(body.start, body.end), endpoint, inputs, reported)
  const bounds = { context_window, inputs, choices, output_tokens_max, promptTokensMax: promptMax }
  const usage = boundUsage(counted, bounds)
  const isCorrected = usage !== counted
  const { prompt_tokens, completion_tokens, cached_tokens } = usage
  const cost_nanos = costNanos(prompt_tokens, completion_tokens, upstream.price ?? price, cached_tokens)
  const request_id = job.chunk.requestIdPrefix + base32(line.line)
  const place = isCorrected ? answer.usage_place : answer.cost
  const splice = spliceCost(place, usdLiteral(cost_nanos), usageLiteral(usage, line.endpoint))
  return {
    line: line.line,
    part: 'output',
    result: outputLine(request_id, line.custom_id_json, result.body, splice),
    audit: lineRecordLine(
      recordOf(job, request_id, {
        upstream: { name: upstream.name, tier: upstream.tier },
        usage,
        usage_estimated: answer.usage === null,
        usage_reported:
          answer.isUsageRejected || (isCorrected && answer.usage) ? reportedUsage(result) : null,
        cost_nanos,
        error: null,
        now,
      }),
    ),
    cost_nanos,
    code: 'ok',
    message: '',
    usageByServer: answer.usage?.prompt_tokens === usage.prompt_tokens,
    expired: false,
    day: job.chunk.dayOf(job.position, now),
    model: line.known_model,
    entity: line.entity,
    usage,
    projected: line.projected,
    isReserved: job.chunk.reserved.has(job.position),
  }
}

/** The outcome of a line that shares the answer of an identical one: it used nothing and costs nothing. */
export function shared(job: Job, { result, from }: SharedAnswer, now: number): Outcome {
  const line = job.chunk.lines[job.position]!
  const request_id = job.chunk.requestIdPrefix + base32(line.line)
  const splice = spliceCost(result.answer.usage_place, usdLiteral(0), usageLiteral(NO_USAGE, line.endpoint))
  return {
    ...ended(job, now),
    part: 'output',
    result: outputLine(request_id, line.custom_id_json, result.body, splice, from),
    audit: lineRecordLine({
      ...recordOf(job, request_id, { ...NOT_BILLED, error: null, now }),
      usage: NO_USAGE,
      shared_from: from,
    }),
    code: 'ok',
    message: '',
    usage: NO_USAGE,
  }
}

/** The outcome of a line without an answer, which costs nothing. `from`: the line whose error it shares. */
export function failed(job: Job, error: WireError, now: number, from: SharedFrom | null = null): Outcome {
  const line = job.chunk.lines[job.position]!
  const request_id = job.chunk.requestIdPrefix + base32(line.line)
  return {
    ...ended(job, now),
    part: 'error',
    result: errorLine(request_id, line.custom_id_json, error, from),
    audit: lineRecordLine({
      ...recordOf(job, request_id, { ...NOT_BILLED, error, now }),
      shared_from: from,
    }),
    code: error.code,
    message: error.message,
    expired: error.code === 'batch_expired',
    usage: null,
  }
}

const NO_USAGE: TokenUsage = { prompt_tokens: 0, completion_tokens: 0, total_tokens: 0 }
/** What is the same for every line that costs nothing. */
function ended({ chunk, position }: Job, now: number) {
  const { line, known_model, entity, projected } = chunk.lines[position]!
  return {
    line,
    cost_nanos: 0,
    usageByServer: false,
    expired: false,
    day: chunk.dayOf(position, now),
    model: known_model,
    entity,
    projected,
    isReserved: chunk.reserved.has(position),
  }
}

function recordOf(
  job: Job,
  request_id: string,
  end: Pick<
    LineRecord,
    'upstream' | 'usage' | 'usage_estimated' | 'usage_reported' | 'cost_nanos' | 'error'
  > & { now: number },
): LineRecord {
  const line = job.chunk.lines[job.position]!
  return {
    request_id,
    batch_id: job.chunk.batch.id,
    custom_id_json: line.custom_id_json,
    line: line.line,
    model: line.model,
    entity: line.entity,
    conversation: line.conversation,
    tags: line.tags,
    attempts: job.attempts,
    attempts_omitted: job.attemptsOmitted,
    upstream: end.upstream,
    usage: end.usage,
    usage_estimated: end.usage_estimated,
    usage_reported: end.usage_reported,
    cost_nanos: end.cost_nanos,
    shared_from: null,
    error: end.error,
    traceparent: job.chunk.batch.traceparent,
    finished: end.now,
  }
}

/** Where the server reports no usage: what was projected for the input, and what was generated by its length. */
function estimateUsage(input_tokens: number, generated_bytes: number): TokenUsage {
  const completion_tokens = estimateTokens(generated_bytes)
  return { prompt_tokens: input_tokens, completion_tokens, total_tokens: input_tokens + completion_tokens }
}

/** What the server reported, as JSON: a text where it is long. */
function reportedUsage({ body, answer }: Answered): string | null {
  const { start, end, kind } = answer.usage_place
  if (kind !== 'usage') return null
  if (end - start <= REPORTED_BYTES_MAX) return JSON.stringify(JSON.parse(body.toString('utf8', start, end)))
  return JSON.stringify(`${body.toString('utf8', start, start + REPORTED_BYTES_MAX)}…`)
}

/** As the endpoint names the counts. */
function usageLiteral(
  { prompt_tokens, completion_tokens, total_tokens }: TokenUsage,
  endpoint: EndpointPath,
): string {
  const { input, output } = ENDPOINTS[endpoint].usage
  const generated = output === null ? '' : `"${output}":${completion_tokens},`
  return `{"${input}":${prompt_tokens},${generated}"total_tokens":${total_tokens}}`
}
