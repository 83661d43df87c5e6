// What the worker tells whoever measures it. It is told of every line, so what listens must cost next to nothing.
import type { BackendResult } from '../backends/backend.ts'
import type { Outcome } from '../results/outcome.ts'
import type { Upstream } from './upstream.ts'

/** What the recorder does with blobs (`journal`, `seal`) and in the database (`commit`, `park`). */
export type RecordWork = 'journal' | 'seal' | 'commit' | 'park'

export interface Observer {
  /** A line has been sent, and came back or was called back. */
  attempted(upstream: Upstream, result: BackendResult['kind'] | 'aborted', duration_ms: number): void
  /** A line waits for another attempt because of this upstream. */
  retried(upstream: Upstream): void
  /** These lines have ended, and that is durable. */
  committed(lines: readonly Outcome[]): void
  recorded(work: RecordWork, duration_ms: number): void
}
