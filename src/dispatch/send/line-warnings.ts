// Tells the log of servers that fail on lines of a batch while they answer others: once for each batch and server.
import type { BackendResult } from '../../backends/backend.ts'
import type { Log } from '../../domain/log.ts'
import type { OpenChunk } from '../../results/open-chunk.ts'
import type { Upstream } from './upstream.ts'

const REMEMBERED = 1_000
const MESSAGE = 'a model server failed on lines of a batch while it answered others'

export class LineWarnings {
  readonly #log: Log
  readonly #told = new Set<string>()

  constructor(log: Log) {
    this.#log = log
  }

  warn({ batch }: Pick<OpenChunk, 'batch'>, { name }: Pick<Upstream, 'name'>, result: BackendResult): void {
    const key = `${batch.id} ${name}`
    if (this.#told.has(key)) return
    if (this.#told.size >= REMEMBERED) this.#told.clear()
    this.#told.add(key)
    const reason = 'reason' in result ? result.reason : undefined
    this.#log.warn({ batch: batch.id, upstream: name, reason }, MESSAGE)
  }
}
