// Warns the log of model servers: that one fails on lines of a batch while it answers others, once for each batch and
// server; and of what callers are not told, such as a wrong address, at most every few minutes.
import type { BackendResult } from '../../backends/backend.ts'
import type { Log } from '../../domain/log.ts'
import type { OpenChunk } from '../../results/open-chunk.ts'
import type { Upstream } from './upstream.ts'

const REMEMBERED = 1_000
const AGAIN_MS = 600_000

export class LineWarnings {
  readonly #log: Log
  /** When each warning was last given (Unix ms). */
  readonly #told = new Map<string, number>()

  constructor(log: Log) {
    this.#log = log
  }

  failsOnBatch(
    { batch }: Pick<OpenChunk, 'batch'>,
    { name }: Pick<Upstream, 'name'>,
    result: BackendResult,
    now: number,
  ): void {
    if (this.#isTold(`${batch.id} ${name}`, Number.POSITIVE_INFINITY, now)) return
    this.#log.warn(
      { batch: batch.id, upstream: name, reason: reasonOf(result) },
      'a model server failed on lines of a batch while it answered others',
    )
  }

  /** Nothing, where callers are told the same. */
  failsForOperators({ name }: Pick<Upstream, 'name'>, result: BackendResult, now: number): void {
    if (result.kind !== 'failed' || result.operatorReason === undefined) return
    if (this.#isTold(`${name} ${result.status} ${result.reason}`, AGAIN_MS, now)) return
    this.#log.warn(
      { upstream: name, status: result.status, reason: reasonOf(result) },
      'a model server failed to answer a request',
    )
  }

  #isTold(key: string, againMs: number, now: number): boolean {
    const told = this.#told.get(key)
    if (told !== undefined && now - told < againMs) return true
    if (this.#told.size >= REMEMBERED) this.#told.clear()
    this.#told.set(key, now)
    return false
  }
}

function reasonOf(result: BackendResult): string | undefined {
  if (result.kind === 'failed') return result.operatorReason ?? result.reason
  return result.kind === 'throttled' ? result.reason : undefined
}
