// What the worker tells whoever measures it. It is told of every line, so what listens must cost next to nothing.
import type { BackendResult } from '../backends/backend.ts'
import type { RecordObserver } from '../results/record-observer.ts'
import type { Upstream } from './send/upstream.ts'

export interface Observer extends RecordObserver {
  /** A line has been sent, and came back or was called back. */
  attempted(upstream: Upstream, result: BackendResult['kind'] | 'aborted', duration_ms: number): void
  /** A line waits for another attempt because of this upstream. */
  retried(upstream: Upstream): void
}
