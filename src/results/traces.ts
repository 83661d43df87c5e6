// Traces a batch and its chunks. A chunk has a span from its claim to its commit, below the call that created its
// batch, and below that one for each phase; the phases follow each other. Lines of the chunk get spans below that of
// the phase `send`. The span of a batch is known only at its end, so it is a sibling of its chunks.

import type { BackendResult } from '../backends/backend.ts'
import type { EndpointPath } from '../domain/endpoint.ts'
import { operationOf, providerOf } from '../domain/gen-ai.ts'
import { type Span, type SpanAttributes, type Tracing, unsampled } from '../domain/tracing.ts'
import type { ChunkLine } from '../jsonl/chunk-lines.ts'
import { JsonScanner, Names } from '../jsonl/json-scan.ts'
import type { BatchRow, ChunkRow } from '../store/schema.ts'
import type { LineAttempts } from './line-record.ts'

type ChunkPhase = 'claim' | 'open' | 'send' | 'seal' | 'commit'

export class ChunkTrace {
  readonly #tracing: Tracing
  readonly #span: Span
  readonly #batch_id: string
  #phase: Span
  #ended = false
  /** The parent that a request names for a line without a span of its own. */
  traceparent: string

  private constructor(tracing: Tracing, span: Span, batch_id: string, phase: Span) {
    this.#tracing = tracing
    this.#span = span
    this.#batch_id = batch_id
    this.#phase = phase
    this.traceparent = unsampled(phase.traceparent)
  }

  /** Starts the trace of a chunk with its claim, at `at` (Unix ms); null if it is not sampled. */
  static begin(
    tracing: Tracing | undefined,
    { id, project_id, traceparent }: BatchRow,
    claim: ChunkRow,
    at: number,
  ): ChunkTrace | null {
    if (!tracing) return null
    const attributes = {
      'offpeak.batch.id': id,
      'offpeak.project.id': project_id,
      'offpeak.chunk.index': claim.idx,
      'offpeak.chunk.epoch': claim.epoch,
    }
    const span = tracing.start({ name: 'chunk', kind: 'internal', parent: traceparent, at, attributes })
    return span.isRecording ? new ChunkTrace(tracing, span, id, phaseOf(tracing, span, 'claim', at)) : null
  }

  /** Enters a phase and ends the previous one. */
  enter(phase: ChunkPhase, at: number): void {
    if (this.#ended) return
    this.#phase.end(at)
    this.#phase = phaseOf(this.#tracing, this.#span, phase, at)
    this.traceparent = unsampled(this.#phase.traceparent)
  }

  /** Whether the next request to a model server gets a span. */
  samplesLine(): boolean {
    return this.#tracing.samplesLine()
  }

  /** The span of one request to a model server, from `at` (Unix ms); `earlier`: the line's spans before. */
  startLine(
    { endpoint, model, line }: Pick<ChunkLine, 'endpoint' | 'model' | 'line'>,
    { name: upstream, provider }: { name: string; provider: string | null },
    earlier: LineAttempts,
    at: number,
  ): Span {
    const operation = operationOf(endpoint)
    return this.#tracing.start({
      name: `${operation} ${model}`,
      kind: 'client',
      parent: this.#phase.traceparent,
      at,
      attributes: {
        'gen_ai.operation.name': operation,
        'gen_ai.provider.name': providerOf(provider, endpoint),
        'gen_ai.request.model': model ?? '',
        'offpeak.batch.id': this.#batch_id,
        'offpeak.line': line,
        'offpeak.upstream': upstream,
        'http.request.resend_count': earlier.listed.length + earlier.omitted,
      },
    })
  }

  /** Ends the trace; only the first call counts. */
  end(at: number, attributes: SpanAttributes, error?: string): void {
    if (this.#ended) return
    this.#ended = true
    this.#phase.end(at, error)
    this.#span.set(attributes)
    this.#span.end(at, error)
  }
}

function phaseOf(tracing: Tracing, chunk: Span, phase: ChunkPhase, at: number): Span {
  return tracing.start({ name: `chunk.${phase}`, kind: 'internal', parent: chunk.traceparent, at })
}

/** Records the span of a batch, from its creation to its end at `at` (Unix ms). */
export function traceBatch(tracing: Tracing, batch: BatchRow, at: number): void {
  const span = tracing.start({
    name: 'batch',
    kind: 'internal',
    parent: batch.traceparent,
    at: batch.created,
    attributes: {
      'offpeak.batch.id': batch.id,
      'offpeak.project.id': batch.project_id,
      'offpeak.batch.status': batch.status,
      'offpeak.batch.lines.completed': batch.completed,
      'offpeak.batch.lines.failed': batch.failed - batch.not_run,
      'offpeak.batch.lines.not_run': batch.not_run,
      'offpeak.batch.chunks': batch.chunk_count,
    },
  })
  span.end(at, batch.status === 'failed' || batch.status === 'expired' ? batch.status : undefined)
}

// The span of a line, which is that of one request to a model server, as the semantic conventions of generative AI
// describe it. No content of a request or an answer is in a span, and of a server's report only counts and known words.

const FINISH_REASONS = new Set(['stop', 'length', 'tool_calls', 'content_filter', 'function_call'])
/** The limit of an answer's bytes in which finish reasons are read. */
const CHOICES_BYTES_MAX = 256 * 1024

/** Ends the span of a request at `at` (Unix ms). */
export function endLine(span: Span, result: BackendResult, endpoint: EndpointPath, at: number): void {
  const { status } = result
  if (status !== null) span.set({ 'http.response.status_code': status })
  if (result.kind !== 'answered') {
    span.end(at, 'code' in result ? result.code : result.kind)
    return
  }
  const { usage, service_tier } = result.answer
  const model = modelIn(result.body)
  span.set({
    ...(model !== null && NAME.test(model) && { 'gen_ai.response.model': model }),
    ...(service_tier !== null && NAME.test(service_tier) && { 'openai.response.service_tier': service_tier }),
    ...(usage && {
      'gen_ai.usage.input_tokens': usage.prompt_tokens,
      'gen_ai.usage.output_tokens': usage.completion_tokens,
    }),
    ...(usage?.cached_tokens && { 'gen_ai.usage.cache_read.input_tokens': usage.cached_tokens }),
    ...(usage?.cache_write_tokens && {
      'gen_ai.usage.cache_creation.input_tokens': usage.cache_write_tokens,
    }),
    ...(endpoint.endsWith('/completions') && finishReasons(result)),
    ...(result.answer.stop_reason && { 'gen_ai.response.finish_reasons': [result.answer.stop_reason] }),
  })
  span.end(at)
}

const KEYS = new Names('model')
/** Names that servers report; other text may be content. */
const NAME = /^[\w./:@+-]{1,128}$/

/** The model that an answer names. */
function modelIn(body: Buffer): string | null {
  const json = new JsonScanner()
  json.open(body, 0, body.length)
  for (let more = json.beginObject(); more; more = json.nextMember()) {
    if (json.key(KEYS) === null) json.skipValue()
    else if (json.readString()) return json.decode(json.text_start, json.text_end, json.text_escaped)
  }
  return null
}

function finishReasons({
  body,
  answer: { content },
}: Extract<BackendResult, { kind: 'answered' }>): SpanAttributes {
  if (content.end - content.start > CHOICES_BYTES_MAX) return {}
  const choices: readonly { finish_reason?: unknown }[] = JSON.parse(
    body.toString('utf8', content.start, content.end),
  )
  const reasons = choices.map(({ finish_reason }) =>
    typeof finish_reason === 'string' && FINISH_REASONS.has(finish_reason) ? finish_reason : 'other',
  )
  return { 'gen_ai.response.finish_reasons': reasons }
}
