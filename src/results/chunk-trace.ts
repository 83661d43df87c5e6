// Traces a batch and its chunks. A chunk has a span from its claim to its commit, below the call that created its batch,
// and below that one for each phase; the phases follow each other. Lines of the chunk get spans below that of the phase
// `send`. The span of a batch is known only at its end, so it is a sibling of its chunks.
import { type Span, type SpanAttributes, type SpanOrder, type Tracing, unsampled } from '../domain/tracing.ts'
import type { BatchRow, ChunkRow } from '../store/schema.ts'

type ChunkPhase = 'claim' | 'open' | 'send' | 'seal' | 'commit'

export class ChunkTrace {
  readonly #tracing: Tracing
  readonly #span: Span
  #phase: Span
  #ended = false
  /** What the model server is told of a line without a span of its own. */
  traceparent: string

  private constructor(tracing: Tracing, span: Span, phase: Span) {
    this.#tracing = tracing
    this.#span = span
    this.#phase = phase
    this.traceparent = unsampled(phase.traceparent)
  }

  /** Begins with the claim, at `at` (Unix ms); null where the chunk is not sampled. */
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
    return span.isRecording ? new ChunkTrace(tracing, span, phaseOf(tracing, span, 'claim', at)) : null
  }

  /** Ends the phase before. */
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

  /** The span of one request to a model server. */
  startLine(order: Omit<SpanOrder, 'parent' | 'kind'>): Span {
    return this.#tracing.start({ ...order, kind: 'client', parent: this.#phase.traceparent })
  }

  /** The first end counts. */
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
