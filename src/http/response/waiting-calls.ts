// Calls that wait until something has come about: the validation of a file, the end of a batch. Whatever process brings
// it about, the database has it; so they poll, and keep neither a transaction nor a connection in between. The number of
// waiting calls is limited; a call above the limit does not wait.
import { type Clock, sleep } from '../../domain/clock.ts'
import { SharedSlots } from '../../domain/project-queue.ts'

const WAITING_MAX = 512
const WAITING_PER_PROJECT_MAX = 64
/** Between two polls. What takes long may be noticed later: by a quarter of the time that it has taken. */
const POLL_MS_MIN = 5
const POLL_MS_MAX = 1_000
const POLL_SHARE = 1 / 4

interface Wait {
  project_id: string
  ms: number
  /** Aborts when the caller has disconnected. */
  signal: AbortSignal
}

export class WaitingCalls {
  readonly #clock: Clock
  readonly #stopped = new AbortController()
  readonly #slots = new SharedSlots(WAITING_MAX)

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /** Resolves when `isOver`, or when the wait has reached its limit. Rejects as `isOver` does. */
  async wait({ project_id, ms, signal }: Wait, isOver: () => Promise<boolean>): Promise<void> {
    const mayWait = this.#slots.used(project_id) < WAITING_PER_PROJECT_MAX
    const giveBack = mayWait ? this.#slots.take(project_id) : null
    if (!giveBack) return
    try {
      await this.#poll(ms, AbortSignal.any([signal, this.#stopped.signal]), isOver)
    } finally {
      giveBack()
    }
  }

  async #poll(ms: number, signal: AbortSignal, isOver: () => Promise<boolean>): Promise<void> {
    const begin = this.#clock.now()
    while (!signal.aborted && !(await isOver())) {
      const waitedMs = this.#clock.now() - begin
      if (waitedMs >= ms) return
      const pauseMs = Math.min(Math.max(waitedMs * POLL_SHARE, POLL_MS_MIN), POLL_MS_MAX, ms - waitedMs)
      await sleep(this.#clock, pauseMs, signal)
    }
  }

  /** Ends all waits. */
  stop(): void {
    this.#stopped.abort()
  }
}
