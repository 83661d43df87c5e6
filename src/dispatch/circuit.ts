// A circuit per upstream: after several failures in a row nothing is sent for a while, then one line probes.
// A probe that is answered closes the circuit; one that fails doubles the pause.

const FAILURES_TO_OPEN = 8
const PAUSE_MS_MIN = 500
const PAUSE_MS_MAX = 30_000

export class Circuit {
  #failures = 0
  #pause_ms = PAUSE_MS_MIN
  #openUntil: number | null = null
  #probing = false
  #openedAt: number | null = null

  /** Whether a line may be sent at `now`; while half open, only one may until it has come back. */
  allows(now: number): boolean {
    if (this.#openUntil === null) return true
    return !this.#probing && now >= this.#openUntil
  }

  /** When `allows` may next become true; null while closed or while a probe is out. */
  get retryAt(): number | null {
    return this.#probing ? null : this.#openUntil
  }

  get open(): boolean {
    return this.#openUntil !== null
  }

  /** Since when nothing has gone through (Unix ms); null while closed. */
  get openedAt(): number | null {
    return this.#openedAt
  }

  onSent(): void {
    if (this.#openUntil !== null) this.#probing = true
  }

  onAnswered(): void {
    this.#failures = 0
    this.#pause_ms = PAUSE_MS_MIN
    this.#openUntil = null
    this.#openedAt = null
    this.#probing = false
  }

  onFailed(now: number): void {
    this.#failures++
    if (this.#openUntil !== null && this.#probing) {
      this.#probing = false
      this.#pause_ms = Math.min(this.#pause_ms * 2, PAUSE_MS_MAX)
      this.#openUntil = now + this.#pause_ms
    } else if (this.#openUntil === null && this.#failures >= FAILURES_TO_OPEN) {
      this.#openedAt = now
      this.#openUntil = now + this.#pause_ms
    }
  }

  /** The line that probed was withdrawn before it said anything. */
  onAborted(): void {
    this.#probing = false
  }
}
