// A batch is often ordered right after its file was uploaded, while the file is still being validated: then the
// call waits for the verdict. It looks at the file's row again and again and holds neither a transaction nor a
// connection in between. So many calls may wait at once; one more is answered as if it had waited.
import { type Clock, sleep } from '../domain/clock.ts'
import { readFile } from '../store/files.ts'
import type { Store } from '../store/store.ts'

const WAITING_MAX = 512
const WAITING_PER_PROJECT_MAX = 64
/** Between two looks at a file; twice as long after each, since most files are small. */
const LOOK_MS_MIN = 10
const LOOK_MS_MAX = 250

export interface Awaited {
  project_id: string
  file_id: string
  /** Ends the wait early: nobody is left to be answered. */
  signal: AbortSignal
}

export class ValidationWaits {
  readonly #store: Pick<Store, 'read'>
  readonly #clock: Clock
  readonly #wait_ms: number
  readonly #stopped = new AbortController()
  readonly #by_project = new Map<string, number>()
  #waiting = 0

  constructor(store: Pick<Store, 'read'>, clock: Clock, wait_ms: number) {
    this.#store = store
    this.#clock = clock
    this.#wait_ms = wait_ms
  }

  /** Resolves when the file is not pending, or may not be waited for any longer. */
  async wait({ project_id, file_id, signal }: Awaited): Promise<void> {
    const mine = this.#by_project.get(project_id) ?? 0
    if (this.#waiting >= WAITING_MAX || mine >= WAITING_PER_PROJECT_MAX) return
    this.#by_project.set(project_id, mine + 1)
    this.#waiting++
    try {
      await this.#look(project_id, file_id, AbortSignal.any([signal, this.#stopped.signal]))
    } finally {
      this.#waiting--
      const left = (this.#by_project.get(project_id) ?? 1) - 1
      if (left > 0) this.#by_project.set(project_id, left)
      else this.#by_project.delete(project_id)
    }
  }

  async #look(project_id: string, file_id: string, signal: AbortSignal): Promise<void> {
    const until = this.#clock.now() + this.#wait_ms
    for (let pause_ms = LOOK_MS_MIN; !signal.aborted; pause_ms = Math.min(pause_ms * 2, LOOK_MS_MAX)) {
      const file = await readFile(this.#store.read, project_id, file_id)
      const left_ms = until - this.#clock.now()
      if (file?.status !== 'pending' || left_ms <= 0) return
      await sleep(this.#clock, Math.min(pause_ms, left_ms), signal)
    }
  }

  /** Those that wait are answered now. */
  stop(): void {
    this.#stopped.abort()
  }
}
