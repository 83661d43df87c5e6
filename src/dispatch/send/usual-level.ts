// The level that a quantity usually stays below: a quantile over time, in which what was long ago counts less.

const CLASSES_PER_DOUBLING = 8
const HALF_LIFE_MS = 24 * 3_600_000

export class UsualLevel {
  readonly #share: number
  /** Milliseconds at each level, by class. */
  readonly #time = new Map<number, number>()
  #total = 0
  #scale = 1

  /** `share`: of the time, 0 to 1. */
  constructor(share: number) {
    this.#share = share
  }

  /** It was at this level for so long. */
  add(level: number, ms: number): void {
    if (!(ms > 0)) return
    // Instead of making all that is known smaller, what comes counts more.
    this.#scale *= 2 ** (ms / HALF_LIFE_MS)
    const key = level < 1 ? -1 : Math.round(Math.log2(level) * CLASSES_PER_DOUBLING)
    this.#time.set(key, (this.#time.get(key) ?? 0) + ms * this.#scale)
    this.#total += ms * this.#scale
    if (this.#scale < 1e100) return
    for (const [at, time] of this.#time) this.#time.set(at, time / this.#scale)
    this.#total /= this.#scale
    this.#scale = 1
  }

  get value(): number {
    let left = this.#total * (1 - this.#share)
    for (const key of [...this.#time.keys()].sort((a, b) => b - a)) {
      left -= this.#time.get(key)!
      if (left <= 0) return key === -1 ? 0 : 2 ** (key / CLASSES_PER_DOUBLING)
    }
    return 0
  }
}
