// The port of audit logs: a collector is told of each call and each line as it ends. An entry has no content: no request, no
// answer, no custom_id, no message of an error.
import type { SpanAttributes } from './tracing.ts'

export interface AuditEntry {
  event: 'offpeak.call' | 'offpeak.line'
  /** Unix ms. */
  at: number
  isFailed: boolean
  /** The trace that it belongs to; null: none. */
  traceparent: string | null
  /** The attributes; those that are null are left out. */
  attributes: Readonly<Record<string, SpanAttributes[string] | null>>
}

/** Takes an entry and returns at once; the entry is dropped where too many wait for the collector. */
export type AuditLog = (entry: AuditEntry) => void
