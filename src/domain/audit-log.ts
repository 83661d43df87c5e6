// The port of audit logs: a collector gets an entry for each call and each line that ends. An entry has no content: no
// request, no answer, no custom_id, no error message.
import type { SpanAttributes } from './tracing.ts'

export interface AuditEntry {
  event: 'offpeak.call' | 'offpeak.line'
  /** The time of the end, Unix ms. */
  at: number
  isFailed: boolean
  /** The trace of the call or line; null: none. */
  traceparent: string | null
  /** The attributes; null ones are omitted. */
  attributes: Readonly<Record<string, SpanAttributes[string] | null>>
}

/** Adds an entry without waiting; the entry is dropped if too many wait for the collector. */
export type AuditLog = (entry: AuditEntry) => void
