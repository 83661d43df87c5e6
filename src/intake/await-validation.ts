// A batch is often created right after its file was uploaded, while the file is still being validated: then the call
// waits for the result. It polls the file's row, and keeps neither a transaction nor a connection in between. The
// number of waiting calls is limited; a call above the limit does not wait.
import { type Clock, sleep } from '../domain/clock.ts'
import { SharedSlots } from '../domain/shared-slots.ts'
import { readFile } from '../store/files.ts'
import type { Store } from '../store/store.ts'

const WAITING_MAX = 512
const WAITING_PER_PROJECT_MAX = 64
/** The polling interval; it doubles after each poll, since most files are small. */
const POLL_MS_MIN = 10
const POLL_MS_MAX = 250

export interface ValidationWait {
  project_id: string
  file_id: string
  /** Aborts when the caller has disconnected. */
  signal: AbortSignal
}

export class ValidationWaits {
  readonly #store: Pick<Store, 'read'>
  readonly #clock: Clock
  readonly #waitMs: number
  readonly #stopped = new AbortController()
  readonly #slots = new SharedSlots(WAITING_MAX)

  constructor(store: Pick<Store, 'read'>, clock: Clock, waitMs: number) {
    this.#store = store
    this.#clock = clock
    this.#waitMs = waitMs
  }

  /** Resolves when the file is not pending, or when the wait has reached its limit. */
  async wait({ project_id, file_id, signal }: ValidationWait): Promise<void> {
    const mayWait = this.#slots.used(project_id) < WAITING_PER_PROJECT_MAX
    const giveBack = mayWait ? this.#slots.take(project_id) : null
    if (!giveBack) return
    try {
      await this.#poll(project_id, file_id, AbortSignal.any([signal, this.#stopped.signal]))
    } finally {
      giveBack()
    }
  }

  async #poll(project_id: string, file_id: string, signal: AbortSignal): Promise<void> {
    const until = this.#clock.now() + this.#waitMs
    for (let pauseMs = POLL_MS_MIN; !signal.aborted; pauseMs = Math.min(pauseMs * 2, POLL_MS_MAX)) {
      const now = this.#clock.now()
      const file = await readFile(this.#store.read, project_id, file_id, now)
      const remainingMs = until - now
      if (file?.status !== 'pending' || remainingMs <= 0) return
      await sleep(this.#clock, Math.min(pauseMs, remainingMs), signal)
    }
  }

  /** Ends all waits. */
  stop(): void {
    this.#stopped.abort()
  }
}
