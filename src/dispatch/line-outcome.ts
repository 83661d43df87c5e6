// Turns the end of a line into what is written down of it: result line, audit record, cost.
import { type LineRecord, lineRecordLine } from '../audit/line-record.ts'
import type { BackendResult } from '../backends/backend.ts'
import type { WireError } from '../domain/errors.ts'
import { base32 } from '../domain/ids.ts'
import { costNanos, FREE, type Price, type TokenUsage, usdLiteral } from '../domain/money.ts'
import { estimateTokens } from '../domain/tokens.ts'
import type { Outcome } from '../results/outcome.ts'
import { errorLine, outputLine } from '../results/result-line.ts'
import { spliceCost } from '../results/splice-cost.ts'
import type { Job } from './lane.ts'

type Answered = Extract<BackendResult, { kind: 'answered' }>

/** A line that produced a result: the only kind that costs anything. */
export function answered(job: Job, result: Answered, price: Price, now: number): Outcome {
  const line = job.chunk.lines[job.position]!
  const { completion } = result
  const usage = completion.usage ?? estimateUsage(line.input_tokens, completion.message_bytes)
  const cost_nanos = costNanos(usage.prompt_tokens, usage.completion_tokens, price)
  const request_id = job.chunk.request_id_prefix + base32(line.line)
  const splice = spliceCost(completion.cost, usdLiteral(cost_nanos), usageLiteral(usage))
  return {
    line: line.line,
    part: 'output',
    result: outputLine(request_id, line.custom_id_json, result.body, splice),
    audit: lineRecordLine(
      recordOf(job, request_id, {
        usage,
        usage_estimated: completion.usage === null,
        cost_nanos,
        error: null,
        now,
      }),
    ),
    cost_nanos,
    code: 'ok',
    expired: false,
    finished_at: now,
    model: line.known_model,
    entity: line.entity,
    usage,
    projected: line.projected,
    held: job.chunk.held.has(job.position),
  }
}

/** A line that ends without a result: it costs nothing. */
export function failed(job: Job, error: WireError, now: number): Outcome {
  const line = job.chunk.lines[job.position]!
  const request_id = job.chunk.request_id_prefix + base32(line.line)
  return {
    line: line.line,
    part: 'error',
    result: errorLine(request_id, line.custom_id_json, error),
    audit: lineRecordLine(
      recordOf(job, request_id, { usage: null, usage_estimated: false, cost_nanos: 0, error, now }),
    ),
    cost_nanos: 0,
    code: error.code,
    expired: error.code === 'batch_expired',
    finished_at: now,
    model: line.known_model,
    entity: line.entity,
    usage: null,
    projected: line.projected,
    held: job.chunk.held.has(job.position),
  }
}

/** The price of a model that the configuration no longer knows is nothing. */
export function priceOf(prices: ReadonlyMap<string, { price: Price }>, model: string | null): Price {
  return (model === null ? undefined : prices.get(model)?.price) ?? FREE
}

function recordOf(
  job: Job,
  request_id: string,
  end: Pick<LineRecord, 'usage' | 'usage_estimated' | 'cost_nanos' | 'error'> & { now: number },
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
    attempts_omitted: job.attempts_omitted,
    usage: end.usage,
    usage_estimated: end.usage_estimated,
    cost_nanos: end.cost_nanos,
    error: end.error,
    finished: end.now,
  }
}

/** Where the server reports no usage: what was projected for the input, and the answer's messages by their length. */
function estimateUsage(input_tokens: number, message_bytes: number): TokenUsage {
  const completion_tokens = estimateTokens(message_bytes)
  return { prompt_tokens: input_tokens, completion_tokens, total_tokens: input_tokens + completion_tokens }
}

function usageLiteral(usage: TokenUsage): string {
  return `{"prompt_tokens":${usage.prompt_tokens},"completion_tokens":${usage.completion_tokens},"total_tokens":${usage.total_tokens}}`
}
