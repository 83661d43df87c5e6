// The span of a batch, from its creation to its end; it is known only then, so the chunks are its siblings.
import type { Tracing } from '../domain/tracing.ts'
import type { BatchRow } from '../store/schema.ts'

/** `at`: when it ended (Unix ms). */
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
      'offpeak.batch.lines.failed': batch.failed,
      'offpeak.batch.chunks': batch.chunk_count,
    },
  })
  span.end(at, batch.status === 'failed' || batch.status === 'expired' ? batch.status : undefined)
}
