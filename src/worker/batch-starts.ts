// Moves batches from `queued` to `in_progress` when their first line is sent. Usually the commit of the first finished
// lines does so (results/commit.ts). If no line finishes soon, this class writes the new status, for all batches that
// began meanwhile in one transaction; nothing waits for it. After a crash before that, the line is sent again, and the
// batch begins then.

import type { Run } from '../dispatch/run.ts'
import { moveBatch } from '../store/batches.ts'
import type { Ports } from '../store/store.ts'

/** How long to wait for a commit that moves the batch anyway. */
const WAIT_MS = 50
const RETRY_MS = 1_000

type BatchStartsOptions = Pick<Ports, 'store' | 'clock' | 'log'>

export class BatchStarts {
  readonly #options: BatchStartsOptions
  /** By batch, its first run of which a line was sent. */
  #begun = new Map<string, Run>()
  #cancelTimer: (() => void) | null = null
  #writing: Promise<void> | null = null
  #closed = false

  constructor(options: BatchStartsOptions) {
    this.#options = options
  }

  /** The first line of a run was sent, and its batch was still queued when the run was opened. */
  begun(run: Run): void {
    if (this.#begun.has(run.batch.id)) return
    this.#begun.set(run.batch.id, run)
    if (this.#cancelTimer === null) this.#arm(WAIT_MS)
  }

  async close(): Promise<void> {
    this.#closed = true
    this.#cancelTimer?.()
    this.#begun.clear()
    await this.#writing
  }

  #arm(waitMs: number): void {
    this.#cancelTimer = this.#options.clock.after(waitMs, () => {
      this.#writing = this.#write().then((nextMs) => {
        this.#writing = null
        this.#cancelTimer = null
        if (this.#begun.size > 0) this.#arm(nextMs)
      })
    })
  }

  /** Resolves to how long to wait before the next write (ms). */
  async #write(): Promise<number> {
    const { store, clock, log } = this.#options
    // The commit that seals a chunk also begins its batch.
    const begun = [...this.#begun].filter(([, run]) => run.unfinished > 0 && !run.isClosed)
    this.#begun = new Map()
    if (begun.length === 0) return WAIT_MS
    // In the order in which commits lock batches, which prevents deadlocks.
    begun.sort(([a], [b]) => (a < b ? -1 : 1))
    try {
      await store.write(async (tx) => {
        for (const [id, run] of begun)
          await moveBatch(tx, id, 'in_progress', run.results.begunAt ?? clock.now())
      })
      return WAIT_MS
    } catch (error) {
      log.error({ err: error }, 'recording the start of batches failed; trying again')
      if (!this.#closed) for (const [id, run] of begun) this.#begun.set(id, run)
      return RETRY_MS
    }
  }
}
