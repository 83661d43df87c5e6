// How many requests a model server works on at once, which none says of itself: the number that ran when others had to
// wait. Requests also wait for a moment because long prompts have just come; so a number is believed for longer the
// more often it is found again. Afterwards it is thought larger, step by step, until it is found again.

const BELIEF_MS_MIN = 10_000
const BELIEF_MS_MAX = 3_600_000
const BELIEF_FACTOR = 4
/** Numbers that differ by less are the same. */
const ALIKE = 0.01
const RISE = 0.05
/** A server is full when as many run as have run without others waiting, about, of late. */
const PROVEN_SHARE = 0.9
const PROVEN_HALF_LIFE_MS = 600_000

export class Seats {
  /** Infinite while nobody had to wait. */
  count = Number.POSITIVE_INFINITY
  #found = 0
  #beliefMs = BELIEF_MS_MIN
  #believedUntil = 0
  /** The most that ran while none waited, of late. */
  #proven = 0
  #at: number | null = null

  /** So many ran, and others had to wait or had not. */
  add(running: number, isWaiting: boolean, now: number): void {
    this.#proven *= 2 ** (((this.#at ?? now) - now) / PROVEN_HALF_LIFE_MS)
    this.#at = now
    if (isWaiting) {
      if (running >= PROVEN_SHARE * this.#proven) this.#find(Math.max(1, running), now)
      return
    }
    this.#proven = Math.max(this.#proven, running)
    if (running > this.count) this.count = running
    else if (now >= this.#believedUntil) {
      this.count += Math.max(1, RISE * this.count)
      this.#believedUntil = now + this.#beliefMs / 4
    }
  }

  #find(count: number, now: number): void {
    const isAlike = Math.abs(count - this.#found) <= ALIKE * count
    if (count < this.count && !isAlike && now < this.#believedUntil) return
    this.#found = count
    this.count = count
    this.#beliefMs = isAlike ? Math.min(BELIEF_MS_MAX, this.#beliefMs * BELIEF_FACTOR) : BELIEF_MS_MIN
    this.#believedUntil = now + this.#beliefMs
  }
}
