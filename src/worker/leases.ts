// The claims of a worker. A claim whose answer was lost may have taken effect, or take effect long after it timed out: the
// worker then has leases that it does not know of, which no other worker can claim while its session lives. So after the
// first claim without an answer, such stray leases are looked for at intervals.
//
// Claims run one at a time, and strays are looked for between two of them: a lease whose claim has not been answered yet
// is not taken for a stray. Strays are released by their epoch, so that a release which takes effect late ends no other
// lease.
import type { Clock } from '../domain/clock.ts'
import { type Fenced, releaseChunk } from '../store/chunks.ts'
import { leasedChunks, leasedTasks, lockSession, releaseTask } from '../store/leases.ts'
import type { ChunkRow, TaskRow } from '../store/schema.ts'
import type { Store, Writer } from '../store/store.ts'

const RELEASE_INTERVAL_MS = 5_000

interface LeasesOptions {
  store: Store
  clock: Clock
  sessionId: () => string
}

export class Leases {
  readonly #options: LeasesOptions
  /** What this worker knows that it has leased. */
  readonly #chunks: (() => Iterable<ChunkRow>)[] = []
  readonly #tasks: (() => Iterable<TaskRow>)[] = []
  /** Null: every claim of this process was answered. */
  #releaseAt: number | null = null
  #last: Promise<unknown> = Promise.resolve()

  constructor(options: LeasesOptions) {
    this.#options = options
  }

  /** `known`: chunks that a part of the worker has leased. */
  knowsChunks(known: () => Iterable<ChunkRow>): void {
    this.#chunks.push(known)
  }

  knowsTasks(known: () => Iterable<TaskRow>): void {
    this.#tasks.push(known)
  }

  /** The lease of something could not be ended: there may be strays. */
  suspect(): void {
    this.#releaseAt = Number.NEGATIVE_INFINITY
  }

  /** What came of ending a lease. A commit whose answer was lost may have changed the row: the chunk is then a stray. */
  ended(how: Fenced): void {
    if (how !== 'accepted') this.suspect()
  }

  /** Whether strays are to be looked for, which a claim does even if there is nothing else to claim. */
  get isReleaseDue(): boolean {
    if (this.#releaseAt === null) return false
    const leftMs = this.#releaseAt - this.#options.clock.now()
    // Set back, the clock must not keep it from looking.
    return leftMs <= 0 || leftMs > RELEASE_INTERVAL_MS
  }

  /**
   * Runs a claim under the session; undefined if the session has ended. `onClaimed` is called before any other claim, and
   * makes what was leased known.
   */
  claim<T>(
    choose: (tx: Writer, worker_id: string) => Promise<T>,
    onClaimed: (claimed: T) => void,
  ): Promise<T | undefined> {
    const claimed = this.#last.then(async () => {
      const { store, sessionId } = this.#options
      const id = sessionId()
      try {
        if (this.isReleaseDue) await this.#release(id)
        const found = await store.write(async (tx) =>
          (await lockSession(tx, store.claimSql, id)) ? await choose(tx, id) : undefined,
        )
        if (found !== undefined) onClaimed(found)
        return found
      } catch (error) {
        this.suspect()
        throw error
      }
    })
    this.#last = claimed.catch(() => {})
    return claimed
  }

  /** Where nothing else may be claimed for long: looks for strays, if they are to be looked for. */
  async releaseStrays(): Promise<void> {
    if (this.isReleaseDue)
      await this.claim(
        async () => null,
        () => {},
      )
  }

  async #release(worker_id: string): Promise<void> {
    const { store, clock } = this.#options
    const known = new Set(this.#chunks.flatMap((of) => Array.from(of(), nameOf)))
    const knownTasks = new Set(this.#tasks.flatMap((of) => Array.from(of(), ({ id }) => id)))
    const chunks = (await leasedChunks(store.read, worker_id)).filter((chunk) => !known.has(nameOf(chunk)))
    const tasks = (await leasedTasks(store.read, worker_id)).filter(({ id }) => !knownTasks.has(id))
    if (chunks.length + tasks.length > 0)
      await store.write(async (tx) => {
        for (const chunk of chunks) await releaseChunk(tx, chunk)
        for (const task of tasks) await releaseTask(tx, task)
      })
    this.#releaseAt = clock.now() + RELEASE_INTERVAL_MS
  }
}

/** A chunk that was claimed again has another epoch. */
function nameOf({ batch_id, idx, epoch }: Pick<ChunkRow, 'batch_id' | 'idx' | 'epoch'>): string {
  return `${batch_id} ${idx} ${epoch}`
}
