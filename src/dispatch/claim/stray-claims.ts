// Whether something may be leased to this worker that it knows nothing of, because the answer to a claim was lost. Such
// a claim may take effect long after its author gave up, when a database that stalled goes on: so once there was a
// reason to doubt, it is looked for again and again.
import type { Clock } from '../../domain/clock.ts'

const AGAIN_MS = 5_000

export class StrayClaims {
  readonly #clock: Clock
  /** Null: no claim of this process was ever in doubt. */
  #lookAt: number | null = null

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /** A claim failed, or what it leased could not be given back. */
  raise(): void {
    this.#lookAt = Number.NEGATIVE_INFINITY
  }

  /** Whether the next claim is to give back what the worker knows nothing of. */
  get isRaised(): boolean {
    return this.#lookAt !== null && this.#clock.now() >= this.#lookAt
  }

  /** A claim has done so. */
  settle(): void {
    this.#lookAt = this.#clock.now() + AGAIN_MS
  }
}
