// Sends a line once. Where it is sampled, the request has a span as the semantic conventions of generative AI describe
// it. No content of a request or an answer is in a span, and of what a server reports only counts and known words.
import type { BackendCall, BackendResult } from '../../backends/backend.ts'
import type { EndpointPath } from '../../domain/endpoint.ts'
import type { Log } from '../../domain/log.ts'
import type { Span, SpanAttributes } from '../../domain/tracing.ts'
import type { ChunkTrace } from '../../results/chunk-trace.ts'
import type { Job } from './lane.ts'
import type { Answered } from './line-outcome.ts'
import { requestBody } from './line-request.ts'
import { sendOnce } from './send-once.ts'
import type { Upstream } from './upstream.ts'

/** `gen_ai.operation.name`; the last two have no name in the conventions. */
const OPERATIONS: Readonly<Record<EndpointPath, string>> = {
  '/v1/chat/completions': 'chat',
  '/v1/completions': 'text_completion',
  '/v1/embeddings': 'embeddings',
  '/v1/responses': 'chat',
  '/v1/rerank': 'rerank',
  '/v1/score': 'score',
}

const FINISH_REASONS = new Set(['stop', 'length', 'tool_calls', 'content_filter', 'function_call'])
/** Choices of longer answers are not read for their finish reasons. */
const CHOICES_BYTES_MAX = 256 * 1024

/** `at`: when it begins (Unix ms). */
export async function sendLine(
  job: Job,
  upstream: Upstream,
  { log, clock, at }: { log: Log; clock: { now(): number }; at: number },
): Promise<BackendResult> {
  const { chunk } = job
  const { endpoint } = chunk.lines[job.position]!
  const span = chunk.trace?.samplesLine() ? startSpan(chunk.trace, job, upstream, at) : null
  const call: BackendCall = {
    endpoint,
    body: requestBody(job, upstream),
    project_id: chunk.batch.project_id,
    signal: chunk.signal,
    traceparent: span?.traceparent ?? chunk.traceparent,
  }
  const result = await sendOnce(upstream.backend, call, log)
  if (span) endSpan(span, result, endpoint, clock.now())
  return result
}

function startSpan(trace: ChunkTrace, job: Job, upstream: Upstream, at: number): Span {
  const { chunk } = job
  const { endpoint, model, line } = chunk.lines[job.position]!
  const operation = OPERATIONS[endpoint]
  return trace.startLine({
    name: `${operation} ${model}`,
    at,
    attributes: {
      'gen_ai.operation.name': operation,
      'gen_ai.provider.name': 'openai',
      'gen_ai.request.model': model ?? '',
      'offpeak.batch.id': chunk.batch.id,
      'offpeak.line': line,
      'offpeak.upstream': upstream.name,
      'http.request.resend_count': job.attempts.length + job.attemptsOmitted,
    },
  })
}

function endSpan(span: Span, result: BackendResult, endpoint: EndpointPath, at: number): void {
  const { status } = result
  if (status !== null) span.set({ 'http.response.status_code': status })
  if (result.kind !== 'answered') {
    span.end(at, 'code' in result ? result.code : result.kind)
    return
  }
  const { usage } = result.answer
  span.set({
    ...(usage && {
      'gen_ai.usage.input_tokens': usage.prompt_tokens,
      'gen_ai.usage.output_tokens': usage.completion_tokens,
    }),
    ...(endpoint.endsWith('/completions') && finishReasons(result)),
  })
  span.end(at)
}

function finishReasons({ body, answer: { content } }: Answered): SpanAttributes {
  if (content.end - content.start > CHOICES_BYTES_MAX) return {}
  const choices: readonly { finish_reason?: unknown }[] = JSON.parse(
    body.toString('utf8', content.start, content.end),
  )
  const reasons = choices.map(({ finish_reason }) =>
    typeof finish_reason === 'string' && FINISH_REASONS.has(finish_reason) ? finish_reason : 'other',
  )
  return { 'gen_ai.response.finish_reasons': reasons }
}
