// The span of one request to a model server, as the semantic conventions of generative AI describe it. No content of a
// request or an answer is in a span, and of what a server reports only counts and known words.
import type { BackendResult } from '../backends/backend.ts'
import { type BuiltInPath, type EndpointPath, isBuiltIn } from '../domain/endpoint.ts'
import type { Span, SpanAttributes } from '../domain/tracing.ts'
import type { ChunkTrace } from '../results/chunk-trace.ts'
import type { Answered } from '../results/record-line.ts'
import type { Run } from './run.ts'
import type { Upstream } from './upstream.ts'

/** `gen_ai.operation.name`; the last two have no name in the conventions. */
const OPERATIONS: Readonly<Record<BuiltInPath, string>> = {
  '/v1/chat/completions': 'chat',
  '/v1/completions': 'text_completion',
  '/v1/embeddings': 'embeddings',
  '/v1/responses': 'chat',
  '/v1/messages': 'chat',
  '/v1/rerank': 'rerank',
  '/v1/score': 'score',
}

const FINISH_REASONS = new Set(['stop', 'length', 'tool_calls', 'content_filter', 'function_call'])
/** Choices of longer answers are not read for their finish reasons. */
const CHOICES_BYTES_MAX = 256 * 1024

/** `at`: when it begins (Unix ms). */
export function startSpan(
  trace: ChunkTrace,
  run: Run,
  position: number,
  upstream: Pick<Upstream, 'name'>,
  at: number,
): Span {
  const { endpoint, model, line } = run.lines[position]!
  const tries = run.triesOf(position)
  const operation = isBuiltIn(endpoint) ? OPERATIONS[endpoint] : endpoint.slice('/v1/'.length)
  return trace.startLine({
    name: `${operation} ${model}`,
    at,
    attributes: {
      'gen_ai.operation.name': operation,
      'gen_ai.provider.name': 'openai',
      'gen_ai.request.model': model ?? '',
      'offpeak.batch.id': run.batch.id,
      'offpeak.line': line,
      'offpeak.upstream': upstream.name,
      'http.request.resend_count': (tries?.listed.length ?? 0) + (tries?.omitted ?? 0),
    },
  })
}

export function endSpan(span: Span, result: BackendResult, endpoint: EndpointPath, at: number): void {
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
    ...(result.answer.stop_reason && { 'gen_ai.response.finish_reasons': [result.answer.stop_reason] }),
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
