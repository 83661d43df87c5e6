// Whether chunks or tasks may be leased to this worker without its knowledge, because the answer to a claim was lost.
// Such a claim may take effect long after it timed out, when a stalled database continues. So after the first claim
// without an answer, stray leases are released at intervals.
import type { Clock } from '../../domain/clock.ts'

const AGAIN_MS = 5_000

export class StrayClaims {
  readonly #clock: Clock
  /** Null: every claim of this process was answered. */
  #lookAt: number | null = null

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /** A claim failed, or its leases could not be released. */
  raise(): void {
    this.#lookAt = Number.NEGATIVE_INFINITY
  }

  /** Whether the next claim has to release stray leases. */
  get isRaised(): boolean {
    return this.#lookAt !== null && this.#clock.now() >= this.#lookAt
  }

  /** A claim has done so. */
  settle(): void {
    this.#lookAt = this.#clock.now() + AGAIN_MS
  }
}
