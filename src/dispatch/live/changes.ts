// How much a quantity rises within some seconds: a deviation by how far two readings are apart. What falls as often as it
// rises has twice the mean square of its rises; a quantity that has just dropped for good is not expected to rise by that.

/** Readings apart, about once a second. */
const LAGS = [1, 2, 4, 8, 16]
const LAG_MAX = 16
/** How much of the mean the last change is. */
const SHARE = 0.04

interface Change {
  /** Milliseconds between two readings, on average. */
  ms: number
  meanSquare: number
  samples: number
}

export class Changes {
  readonly #readings: { value: number; at: number }[] = []
  readonly #byLag: Change[] = LAGS.map(() => ({ ms: 0, meanSquare: 0, samples: 0 }))

  add(value: number, at: number): void {
    this.#readings.push({ value, at })
    if (this.#readings.length > LAG_MAX + 1) this.#readings.shift()
    for (const [i, lag] of LAGS.entries()) {
      const before = this.#readings.at(-1 - lag)
      if (before === undefined) break
      const change = this.#byLag[i]!
      change.samples++
      const share = Math.max(SHARE, 1 / change.samples)
      change.ms += share * (at - before.at - change.ms)
      change.meanSquare += share * (2 * Math.max(0, value - before.value) ** 2 - change.meanSquare)
    }
  }

  /** Shortest time first. */
  get all(): { ms: number; deviation: number }[] {
    return this.#byLag
      .filter(({ samples }) => samples > 0)
      .map(({ ms, meanSquare }) => ({ ms, deviation: Math.sqrt(meanSquare) }))
  }
}
