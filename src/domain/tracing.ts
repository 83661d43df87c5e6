// The port of tracing, and the W3C Trace Context that ties calls to batches, chunks, lines and model servers. Without an
// adapter nothing is recorded; the trace context of a caller is still kept and passed on.

export type SpanAttributes = Readonly<Record<string, string | number | boolean | readonly string[]>>

export interface SpanOrder {
  name: string
  kind: 'server' | 'client' | 'internal'
  /** The `traceparent` of its parent; null: it begins a trace. */
  parent: string | null
  /** Unix ms. */
  at: number
  attributes?: SpanAttributes
}

export interface Span {
  /** The ID that a child, also in another process, names as its parent. */
  readonly traceparent: string
  /** Whether it is sampled; attributes of others are dropped. */
  readonly isRecording: boolean
  set(attributes: SpanAttributes): void
  /** `error`: what kind of error ended it, without anything that a user or a server wrote. */
  end(at: number, error?: string): void
}

export interface Tracing {
  start(order: SpanOrder): Span
  /** Whether the next line of a sampled chunk gets a span. */
  samplesLine(): boolean
}

const TRACEPARENT = /^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/

/** The header in the form of version 00; null where it is absent or invalid, and a new trace begins. */
export function parseTraceparent(header: unknown): string | null {
  if (typeof header !== 'string') return null
  const [, version, trace, parent, flags, more] = TRACEPARENT.exec(header.trim()) ?? []
  if (version === undefined || version === 'ff' || (version === '00' && more !== undefined)) return null
  if (/^0+$/.test(trace!) || /^0+$/.test(parent!)) return null
  return `00-${trace}-${parent}-${isSampled(flags!) ? '01' : '00'}`
}

/** The same trace context, marked as not sampled. */
export function unsampled(traceparent: string): string {
  return `${traceparent.slice(0, -2)}00`
}

function isSampled(flags: string): boolean {
  return (Number.parseInt(flags, 16) & 1) === 1
}
