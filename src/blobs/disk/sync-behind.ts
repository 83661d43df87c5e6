// A long file is brought to the disk while it is being written: left to its end, that would take as long again,
// with nothing else to do meanwhile.

/** A sync is worth its while after so many bytes; more than twice as many are hardly ever outstanding. */
const SYNC_BYTES = 16 * 1024 * 1024

export class SyncBehind {
  readonly #sync: () => Promise<void>
  #bytes = 0
  #running: Promise<void> | null = null
  /** The system reports a write that failed once: to the sync that met it. */
  #failure: { cause: unknown } | null = null

  constructor(sync: () => Promise<void>) {
    this.#sync = sync
  }

  /** To be told of what has been written; does not wait. */
  wrote(bytes: number): void {
    this.#bytes += bytes
    if (this.#bytes < SYNC_BYTES || this.#running !== null) return
    this.#bytes = 0
    this.#running = this.#sync()
      .catch((cause: unknown) => {
        this.#failure ??= { cause }
      })
      .finally(() => {
        this.#running = null
      })
  }

  /** Resolves when all that was written is on the disk; rejects as the first sync did that failed. */
  async end(): Promise<void> {
    await this.#running
    if (this.#failure) throw this.#failure.cause
    await this.#sync()
  }
}
