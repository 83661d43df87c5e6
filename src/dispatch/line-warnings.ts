// Logs warnings about model servers: once per batch and server when a server fails on lines of the batch while it
// answers others, and at most every ten minutes for failures whose reason only operators may see, such as a wrong
// address.
import type { BackendResult } from '../backends/backend.ts'
import { reasonForLog } from '../backends/failure-reason.ts'
import type { Log } from '../domain/log.ts'
import type { Run } from './run.ts'
import type { Upstream } from './upstream.ts'

const REMEMBERED = 1_000
const REPEAT_MS = 600_000

export class LineWarnings {
  readonly #log: Log
  /** When each warning was last logged (Unix ms). */
  readonly #warnedAt = new Map<string, number>()

  constructor(log: Log) {
    this.#log = log
  }

  failsOnBatch(
    { batch }: Pick<Run, 'batch'>,
    { name }: Pick<Upstream, 'name'>,
    result: BackendResult,
    now: number,
  ): void {
    if (this.#wasWarned(`${batch.id} ${name}`, Number.POSITIVE_INFINITY, now)) return
    this.#log.warn(
      { batch: batch.id, upstream: name, ...reasonOf(result) },
      'a model server failed on lines of a batch while it answered others',
    )
  }

  /** Logs failures that have a reason for operators only. */
  failsForOperators({ name }: Pick<Upstream, 'name'>, result: BackendResult, now: number): void {
    if (result.kind !== 'failed' || result.operatorReason === undefined) return
    if (this.#wasWarned(`${name} ${result.status} ${result.reason}`, REPEAT_MS, now)) return
    this.#log.warn(
      { upstream: name, status: result.status, ...reasonOf(result) },
      'a model server failed to answer a request',
    )
  }

  #wasWarned(key: string, repeatMs: number, now: number): boolean {
    const warnedAt = this.#warnedAt.get(key)
    if (warnedAt !== undefined && now - warnedAt < repeatMs) return true
    if (this.#warnedAt.size >= REMEMBERED) this.#warnedAt.clear()
    this.#warnedAt.set(key, now)
    return false
  }
}

function reasonOf(result: BackendResult): { reason?: string } {
  return 'reason' in result ? { reason: reasonForLog(result) } : {}
}
