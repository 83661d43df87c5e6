// Turns the end of a line into its result line, audit record and cost.
import { type LineRecord, lineRecordLine } from '../../audit/line-record.ts'
import type { BackendResult } from '../../backends/backend.ts'
import type { WireError } from '../../domain/errors.ts'
import { base32 } from '../../domain/ids.ts'
import type { Model } from '../../domain/model.ts'
import { costNanos, FREE, type TokenUsage, usdLiteral } from '../../domain/money.ts'
import { estimateTokens } from '../../domain/tokens.ts'
import { boundUsage } from '../../domain/usage-bound.ts'
import type { Outcome } from '../../results/outcome.ts'
import { errorLine, outputLine } from '../../results/result-line.ts'
import { spliceCost } from '../../results/splice-cost.ts'
import type { Job } from './lane.ts'

/** How much of a reported usage that is not billed is kept. */
const REPORTED_BYTES_MAX = 1000

export type Answered = Extract<BackendResult, { kind: 'answered' }>

/**
 * The outcome of an answered line. Only answered lines cost anything. `model` is undefined if the configuration has
 * dropped it; the line is then free.
 */
export function answered(
  job: Job,
  result: Answered,
  model: Pick<Model, 'price' | 'context_window'> | undefined,
  now: number,
): Outcome {
  const line = job.chunk.lines[job.position]!
  const { completion } = result
  const { price, context_window } = model ?? { price: FREE, context_window: null }
  const counted = completion.usage ?? estimateUsage(line.input_tokens, completion.message_bytes)
  const usage = boundUsage(counted, { context_window, choices: line.choices })
  const isCorrected = usage !== counted
  const cost_nanos = costNanos(usage.prompt_tokens, usage.completion_tokens, price)
  const request_id = job.chunk.requestIdPrefix + base32(line.line)
  const place = isCorrected ? completion.usage_place : completion.cost
  const splice = spliceCost(place, usdLiteral(cost_nanos), usageLiteral(usage))
  return {
    line: line.line,
    part: 'output',
    result: outputLine(request_id, line.custom_id_json, result.body, splice),
    audit: lineRecordLine(
      recordOf(job, request_id, {
        usage,
        usage_estimated: completion.usage === null,
        usage_reported:
          completion.isUsageRejected || (isCorrected && completion.usage) ? reportedUsage(result) : null,
        cost_nanos,
        error: null,
        now,
      }),
    ),
    cost_nanos,
    code: 'ok',
    message: '',
    usageByServer: completion.usage?.prompt_tokens === usage.prompt_tokens,
    expired: false,
    finished_at: now,
    model: line.known_model,
    entity: line.entity,
    usage,
    projected: line.projected,
    isReserved: job.chunk.reserved.has(job.position),
  }
}

/** The outcome of a line without an answer, which costs nothing. */
export function failed(job: Job, error: WireError, now: number): Outcome {
  const line = job.chunk.lines[job.position]!
  const request_id = job.chunk.requestIdPrefix + base32(line.line)
  return {
    line: line.line,
    part: 'error',
    result: errorLine(request_id, line.custom_id_json, error),
    audit: lineRecordLine(
      recordOf(job, request_id, {
        usage: null,
        usage_estimated: false,
        usage_reported: null,
        cost_nanos: 0,
        error,
        now,
      }),
    ),
    cost_nanos: 0,
    code: error.code,
    message: error.message,
    usageByServer: false,
    expired: error.code === 'batch_expired',
    finished_at: now,
    model: line.known_model,
    entity: line.entity,
    usage: null,
    projected: line.projected,
    isReserved: job.chunk.reserved.has(job.position),
  }
}

function recordOf(
  job: Job,
  request_id: string,
  end: Pick<LineRecord, 'usage' | 'usage_estimated' | 'usage_reported' | 'cost_nanos' | 'error'> & {
    now: number
  },
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
    usage: end.usage,
    usage_estimated: end.usage_estimated,
    usage_reported: end.usage_reported,
    cost_nanos: end.cost_nanos,
    error: end.error,
    finished: end.now,
  }
}

/** For servers that report no usage: the estimated input tokens, and the length of the answer's messages in tokens. */
function estimateUsage(input_tokens: number, message_bytes: number): TokenUsage {
  const completion_tokens = estimateTokens(message_bytes)
  return { prompt_tokens: input_tokens, completion_tokens, total_tokens: input_tokens + completion_tokens }
}

/** The reported usage as JSON; if it is long, a shortened copy in a string. */
function reportedUsage({ body, completion }: Answered): string | null {
  const { start, end, kind } = completion.usage_place
  if (kind !== 'usage') return null
  if (end - start <= REPORTED_BYTES_MAX) return JSON.stringify(JSON.parse(body.toString('utf8', start, end)))
  return JSON.stringify(`${body.toString('utf8', start, start + REPORTED_BYTES_MAX)}…`)
}

function usageLiteral(usage: TokenUsage): string {
  return `{"prompt_tokens":${usage.prompt_tokens},"completion_tokens":${usage.completion_tokens},"total_tokens":${usage.total_tokens}}`
}
