// Stray leases: chunks or tasks that are leased to this worker without its knowledge, because the answer to a claim was
// lost. Such a claim may take effect long after it timed out, when a stalled database continues. So after the first
// claim without an answer, stray leases are released at intervals.
import type { Clock } from '../../domain/clock.ts'

const RELEASE_INTERVAL_MS = 5_000

export class StrayLeases {
  readonly #clock: Clock
  /** Null: every claim of this process was answered. */
  #releaseAt: number | null = null

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /** A claim failed, or its leases could not be released: there may be stray leases. */
  suspect(): void {
    this.#releaseAt = Number.NEGATIVE_INFINITY
  }

  /** Whether the next claim has to release stray leases. */
  get isReleaseDue(): boolean {
    return this.#releaseAt !== null && this.#clock.now() >= this.#releaseAt
  }

  /** A claim released them. */
  released(): void {
    this.#releaseAt = this.#clock.now() + RELEASE_INTERVAL_MS
  }
}
