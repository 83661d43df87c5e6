// What a sender is given by the worker.
import type { Clock } from '../../domain/clock.ts'
import type { Log } from '../../domain/log.ts'
import type { Model } from '../../domain/model.ts'
import type { OpenChunk } from '../../results/open-chunk.ts'
import type { Outcome } from '../../results/outcome.ts'
import type { ReservedFunds } from '../limits/reserved-funds.ts'
import type { Observer } from '../observer.ts'
import type { EarlierAnswers } from './earlier-answers.ts'
import type { Job } from './lane.ts'
import type { RetryPolicy } from './retry-policy.ts'
import type { Spill } from './tiers.ts'
import type { Upstream } from './upstream.ts'

export interface SenderOptions {
  clock: Clock
  /** In [0, 1). */
  random: () => number
  log: Log
  models: ReadonlyMap<string, Model>
  upstreams: ReadonlyMap<string, readonly Upstream[]>
  /** By model; a model without an entry spills nothing over. */
  spills?: ReadonlyMap<string, Spill> | undefined
  /** Whether lines of the chunk that name this model are paused. */
  isPaused?: ((chunk: OpenChunk, model: string) => boolean) | undefined
  retry: RetryPolicy
  /** Whether lines may be sent now. When it becomes true, the owner calls `pump`. */
  maySend: () => boolean
  /** The first line of a chunk was sent, and its batch was queued. */
  onBegun: (chunk: OpenChunk) => void
  /** The reserved funds that lines are sent with. */
  funds: Pick<ReservedFunds, 'draw' | 'reserve'>
  /** The reserved funds do not cover a line, which now waits with its chunk. */
  onInsufficientFunds: (chunk: OpenChunk) => void
  /** Called once for every line that ends. */
  onOutcome: (chunk: OpenChunk, outcome: Outcome) => void
  /** Called when no line of a stopped or drained chunk is in flight any more. */
  onIdle: (chunk: OpenChunk) => void
  /** Takes lines for a batch API: all of a chunk and a model that are not in flight. */
  onHandOver?: ((upstream: Upstream, jobs: readonly Job[]) => void) | undefined
  /** Answers of identical lines that other workers have; without it, those of this worker alone are shared. */
  earlier?: EarlierAnswers | undefined
  observe?: Pick<Observer, 'attempted' | 'retried'> | undefined
}
