// The port of tracing, and the W3C Trace Context that links calls to batches, chunks, lines and model servers. Without
// an adapter nothing is recorded; the trace context of a caller is still stored and forwarded.

export type SpanAttributes = Readonly<Record<string, string | number | boolean | readonly string[]>>

export interface SpanOrder {
  name: string
  kind: 'server' | 'client' | 'internal'
  /** The `traceparent` of the parent span; null: the span starts a trace. */
  parent: string | null
  /** The start of the span, Unix ms. */
  at: number
  attributes?: SpanAttributes
}

export interface Span {
  /** The ID that a child span, also in another process, names as its parent. */
  readonly traceparent: string
  /** Whether the span is sampled; attributes of other spans are dropped. */
  readonly isRecording: boolean
  set(attributes: SpanAttributes): void
  /** Ends the span at a time in Unix ms. `error`: the kind of error, without text from users or servers. */
  end(at: number, error?: string): void
}

export interface Tracing {
  start(order: SpanOrder): Span
  /** Whether the next line of a sampled chunk gets a span. */
  samplesLine(): boolean
}

const TRACEPARENT = /^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/

/** The header in the form of version 00; null if it is absent or invalid, and then a new trace starts. */
export function parseTraceparent(header: unknown): string | null {
  if (typeof header !== 'string') return null
  const [, version, trace, parent, flags, more] = TRACEPARENT.exec(header.trim()) ?? []
  if (version === undefined || version === 'ff' || (version === '00' && more !== undefined)) return null
  if (/^0+$/.test(trace!) || /^0+$/.test(parent!)) return null
  return `00-${trace}-${parent}-${isSampled(flags!) ? '01' : '00'}`
}

/** The trace context, marked as not sampled. */
export function unsampled(traceparent: string): string {
  return `${traceparent.slice(0, -2)}00`
}

function isSampled(flags: string): boolean {
  return (Number.parseInt(flags, 16) & 1) === 1
}
