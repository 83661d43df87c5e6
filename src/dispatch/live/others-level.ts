// How many requests of others a model server usually has: quantiles over time, in which what was long ago counts less, and
// whether a peak of theirs has been seen, after which they were clearly fewer.

const CLASSES_PER_DOUBLING = 16
const HALF_LIFE_MS = 24 * 3_600_000
/** Over how long they are averaged. */
const SMOOTHING_MS = 3_000
/** They are clearly fewer by so many times what their number varies by chance, the root of it. */
const FALLEN_DEVIATIONS = 4
/** A peak so much higher than the one before is a new one. */
const HIGHER = 1.2

export class OthersLevel {
  /** Lately, on average. */
  mean = 0
  #peak = 0
  /** The highest peak after which they were fewer. */
  #passedPeak = 0
  #isFirst = true
  /** Milliseconds at each level, by class. */
  readonly #time = new Map<number, number>()
  #total = 0
  #scale = 1

  /** There were so many, for so long. */
  add(others: number, ms: number): void {
    if (this.#isFirst) this.mean = others
    this.#isFirst = false
    if (!(ms > 0)) return
    this.mean += (1 - Math.exp(-ms / SMOOTHING_MS)) * (others - this.mean)
    this.#watchPeak()
    // Instead of making all that is known smaller, what comes counts more.
    this.#scale *= 2 ** (ms / HALF_LIFE_MS)
    const key = others < 1 ? -1 : Math.round(Math.log2(others) * CLASSES_PER_DOUBLING)
    this.#time.set(key, (this.#time.get(key) ?? 0) + ms * this.#scale)
    this.#total += ms * this.#scale
    if (this.#scale < 1e100) return
    for (const [at, time] of this.#time) this.#time.set(at, time / this.#scale)
    this.#total /= this.#scale
    this.#scale = 1
  }

  get hasPassedPeak(): boolean {
    return this.#passedPeak > 0 && this.#peak <= HIGHER * this.#passedPeak
  }

  /** How much of the time there were more than this, 0 to 1. */
  shareAbove(level: number): number {
    let time = 0
    for (const [key, ms] of this.#time) if (levelOf(key) > level) time += ms
    return this.#total === 0 ? 0 : time / this.#total
  }

  /** The number that they stayed below for this share of the time, 0 to 1. */
  quantile(share: number): number {
    let left = this.#total * (1 - share)
    for (const key of [...this.#time.keys()].sort((a, b) => b - a)) {
      left -= this.#time.get(key)!
      if (left <= 0) return levelOf(key)
    }
    return 0
  }

  #watchPeak(): void {
    this.#peak = Math.max(this.#peak, this.mean)
    if (this.mean < this.#peak - FALLEN_DEVIATIONS * Math.sqrt(this.#peak)) this.#passedPeak = this.#peak
  }
}

function levelOf(key: number): number {
  return key === -1 ? 0 : 2 ** (key / CLASSES_PER_DOUBLING)
}
