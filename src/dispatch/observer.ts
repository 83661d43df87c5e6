// What the worker reports to metrics. It is called for every line, so it must be cheap.
import type { BackendResult } from '../backends/backend.ts'
import type { RecordObserver } from '../results/store-retries.ts'
import type { Upstream } from './upstream.ts'

export interface Observer extends RecordObserver {
  /** These upstreams are in use from now on, by model. */
  configured?(upstreams: ReadonlyMap<string, readonly Upstream[]>): void
  /** An attempt has ended; `aborted`: the worker aborted it. */
  attempted(upstream: Upstream, result: BackendResult['kind'] | 'aborted', durationMs: number): void
  /** A line is retried because of this upstream. */
  retried(upstream: Upstream): void
}
