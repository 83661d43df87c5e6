// The learned model of a server with live traffic: the usual number of live requests, how fast it changes, how many
// requests run at once, and how long the steps take. live-share.ts computes the live share from these four.

// How many requests of others a model server usually has: quantiles over time, in which what was long ago counts less, and
// whether a peak of theirs has been seen, after which they were clearly fewer.

/** The number of classes into which each doubling of a level is divided. */
const CLASSES_PER_DOUBLING = 16
/** The time after which time at a level counts half: a day, since traffic repeats by days. */
const LEVEL_HALF_LIFE_MS = 24 * 3_600_000
/** The time in ms over which the number of live requests is averaged. */
const SMOOTHING_MS = 3_000
/** The fall that shows that a peak has passed, in standard deviations: square roots of the number of requests. */
const FALLEN_DEVIATIONS = 4
/** The factor by which a peak must exceed the last passed one to count as a new peak. */
const HIGHER = 1.2

export class LiveLevel {
  /** The recent average. */
  mean = 0
  #peak = 0
  /** The highest peak that has passed. */
  #passedPeak = 0
  #isFirst = true
  /** Milliseconds at each level, by class. */
  readonly #time = new Map<number, number>()
  #total = 0
  #scale = 1

  /** Adds a number of live requests that lasted for `ms`. */
  add(others: number, ms: number): void {
    if (this.#isFirst) this.mean = others
    this.#isFirst = false
    if (!(ms > 0)) return
    this.mean += (1 - Math.exp(-ms / SMOOTHING_MS)) * (others - this.mean)
    this.#watchPeak()
    // Instead of making all that is known smaller, what comes counts more.
    this.#scale *= 2 ** (ms / LEVEL_HALF_LIFE_MS)
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

  /** The share of time, 0 to 1, with more live requests than `level`. */
  shareAbove(level: number): number {
    let time = 0
    for (const [key, ms] of this.#time) if (levelOf(key) > level) time += ms
    return this.#total === 0 ? 0 : time / this.#total
  }

  /** The number of live requests that was not exceeded for this share of the time, 0 to 1. */
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

// How the others' number changes within some seconds: it returns to its mean by a part of its distance from it, and varies
// by chance beside that, with a mean square in proportion to the mean, as of requests that arrive and end by chance. Both are
// learned by how far two readings are apart. What falls as often as it rises has twice the mean square of its rises; a number
// that has just dropped for good is not expected to rise by that.

/** The distances, in readings, over which changes are learned; there are about two readings a second. */
const LAGS = [1, 2, 4, 8, 16]
/** Readings that are kept. */
const LAG_MAX = 16
/** The weight of the last change in the learned ones: bursts are rare, and are not to be forgotten within seconds. */
const CHANGE_SHARE = 0.003

interface Change {
  /** Milliseconds between two readings, on average. */
  ms: number
  /** Mean products of the distance from the mean: with the change, and with itself. */
  returning: number
  distance: number
  /** The mean square of the rise beside its return, for each of the mean. */
  meanSquare: number
  samples: number
}

export class Changes {
  readonly #readings: { value: number; mean: number; at: number }[] = []
  readonly #byLag: Change[] = LAGS.map(() => ({
    ms: 0,
    returning: 0,
    distance: 0,
    meanSquare: 0,
    samples: 0,
  }))

  add(value: number, mean: number, at: number): void {
    this.#readings.push({ value, mean, at })
    if (this.#readings.length > LAG_MAX + 1) this.#readings.shift()
    for (const [i, lag] of LAGS.entries()) {
      const before = this.#readings.at(-1 - lag)
      if (before === undefined) break
      const change = this.#byLag[i]!
      const share = Math.max(CHANGE_SHARE, 1 / ++change.samples)
      const level = Math.max(1, before.mean)
      const distance = before.mean - before.value
      const risen = value - before.value
      change.ms += share * (at - before.at - change.ms)
      change.returning += share * ((distance * risen) / level - change.returning)
      change.distance += share * (distance ** 2 / level - change.distance)
      const rest = Math.max(0, risen - partOf(change) * distance)
      change.meanSquare += share * ((2 * rest ** 2) / level - change.meanSquare)
    }
  }

  /** The expected rise of a number that has this mean, and the deviation from it; shortest time first. */
  ahead(value: number, mean: number): { ms: number; rise: number; deviation: number }[] {
    return this.#byLag
      .filter(({ samples }) => samples > 0)
      .map((change) => ({
        ms: change.ms,
        rise: partOf(change) * (mean - value),
        deviation: Math.sqrt(change.meanSquare * Math.max(1, mean)),
      }))
  }
}

/** The share of the distance from the mean that is returned. */
function partOf({ returning, distance }: Change): number {
  return distance === 0 ? 0 : Math.min(1, Math.max(0, returning / distance))
}

// How many requests a model server works on at once, which none says of itself: the number that ran when others had to
// wait. Requests also wait for a moment because long prompts have just come; so a number is believed for longer the
// more often it is found again. Afterwards it is thought larger, step by step, until it is found again.

/** The time for which a number is believed, at first and at most, and its factor when the number is found again. */
const BELIEF_MS_MIN = 10_000
const BELIEF_MS_MAX = 3_600_000
const BELIEF_FACTOR = 4
/** The share by which two numbers may differ and count as equal. */
const ALIKE_SHARE = 0.01
/** The part by which a number that is no longer believed rises each time. */
const SLOTS_RISE = 0.05
/** The share of the proven number of running requests from which on a server with waiting requests is full. */
const PROVEN_SHARE = 0.9
/** The time after which the highest number of requests that ran without waiting ones counts half. */
const PROVEN_HALF_LIFE_MS = 600_000

export class Slots {
  /** The number of slots; infinite until a request has had to wait. */
  count = Number.POSITIVE_INFINITY
  #found = 0
  #beliefMs = BELIEF_MS_MIN
  #believedUntil = 0
  /** The highest recent number of requests that ran while none waited. */
  #proven = 0
  #at: number | null = null

  /** Adds the number of running requests, and whether other requests waited. */
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
      this.count += Math.max(1, SLOTS_RISE * this.count)
      this.#believedUntil = now + this.#beliefMs / 4
    }
  }

  #find(count: number, now: number): void {
    const isAlike = Math.abs(count - this.#found) <= ALIKE_SHARE * count
    if (count < this.count && !isAlike && now < this.#believedUntil) return
    this.#found = count
    this.count = count
    this.#beliefMs = isAlike ? Math.min(BELIEF_MS_MAX, this.#beliefMs * BELIEF_FACTOR) : BELIEF_MS_MIN
    this.#believedUntil = now + this.#beliefMs
  }
}

// How much longer a model server takes for each token the more requests it works on: a + b·others + c·ours milliseconds, by
// least squares over what it was seen to do. Lines may weigh more or less than other requests, as their prompts are
// longer or shorter. As long as the two have not changed against each other, they are thought alike.

/** The time after which samples of steps count half. */
const STEP_HALF_LIFE_MS = 6 * 3_600_000
/** Weight, in samples, of the assumption that lines are like other requests. */
const ALIKE_SAMPLES = 20
/** The fewest samples through which a line is fitted. */
const SAMPLES_MIN = 20
/** The narrowest range (largest ÷ smallest) through which a line is fitted. */
const RANGE_MIN = 1.5

export interface StepLine {
  /** Milliseconds of a token when the server has next to nothing to do. */
  baseMs: number
  /** Milliseconds more for each request of others. */
  perOtherMs: number
  /** Milliseconds more for each of our lines. */
  perLineMs: number
}

export class StepModel {
  /** Weighted sums of products of (1, others, ours, step). */
  readonly #sums = new Float64Array(16)
  #least = Number.POSITIVE_INFINITY
  #most = 0
  #fastestMs = Number.POSITIVE_INFINITY

  /** Adds the time of a token at these numbers of requests, `ms` after the last sample. */
  add(others: number, ours: number, stepMs: number, ms: number): void {
    const requests = others + ours
    if (!(requests > 0 && stepMs > 0)) return
    this.#least = Math.min(this.#least, requests)
    this.#most = Math.max(this.#most, requests)
    this.#fastestMs = Math.min(this.#fastestMs, stepMs)
    const sample = [1, others, ours, stepMs]
    const kept = 2 ** (-ms / STEP_HALF_LIFE_MS)
    for (let i = 0; i < 4; i++)
      for (let j = 0; j < 4; j++)
        this.#sums[4 * i + j] = kept * this.#sums[4 * i + j]! + sample[i]! * sample[j]!
  }

  /** The fitted line; null until there are enough samples. */
  get line(): StepLine | null {
    const samples = this.#sums[0]!
    if (samples < SAMPLES_MIN || this.#most < RANGE_MIN * this.#least) return null
    const at = (i: number, j: number): number => this.#sums[4 * i + j]! / samples
    const alike = (ALIKE_SAMPLES / samples) * ((at(0, 1) + at(0, 2)) / 4) ** 2
    // Around the means, so that two equations are left.
    const of = (i: number, j: number): number => at(i, j) - at(0, i) * at(0, j)
    const [oo, ow, ww] = [of(1, 1) + alike, of(1, 2) - alike, of(2, 2) + alike]
    const det = oo * ww - ow * ow
    if (!(det > 0)) return null
    const perOtherMs = Math.max(0, (of(1, 3) * ww - of(2, 3) * ow) / det)
    const perLineMs = Math.max(0, (of(2, 3) * oo - of(1, 3) * ow) / det)
    const baseMs = at(0, 3) - perOtherMs * at(0, 1) - perLineMs * at(0, 2)
    return { baseMs: Math.max(this.#fastestMs / 4, baseMs), perOtherMs, perLineMs }
  }
}
