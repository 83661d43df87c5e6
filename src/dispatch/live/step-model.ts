// How much longer a model server takes for each token the more requests it works on: a + b·others + c·ours milliseconds, by
// least squares over what it was seen to do. Lines may weigh more or less than other requests, as their prompts are
// longer or shorter. As long as the two have not changed against each other, they are thought alike.

const HALF_LIFE_MS = 6 * 3_600_000
/** As if so many samples had shown that lines are like other requests. */
const ALIKE_SAMPLES = 20
const SAMPLES_MIN = 20
/** No line is fitted through a narrower range (largest ÷ smallest). */
const RANGE_MIN = 1.5

export interface StepLine {
  /** Milliseconds of a token when the server has next to nothing to do. */
  baseMs: number
  /** More for each request of others. */
  perOtherMs: number
  /** More for each of our lines. */
  perLineMs: number
}

export class StepModel {
  /** Weighted sums of products of (1, others, ours, step). */
  readonly #sums = new Float64Array(16)
  #least = Number.POSITIVE_INFINITY
  #most = 0
  #fastestMs = Number.POSITIVE_INFINITY

  /** What a token took while so many requests were worked on, `ms` after the last time. */
  add(others: number, ours: number, stepMs: number, ms: number): void {
    const requests = others + ours
    if (!(requests > 0 && stepMs > 0)) return
    this.#least = Math.min(this.#least, requests)
    this.#most = Math.max(this.#most, requests)
    this.#fastestMs = Math.min(this.#fastestMs, stepMs)
    const sample = [1, others, ours, stepMs]
    const kept = 2 ** (-ms / HALF_LIFE_MS)
    for (let i = 0; i < 4; i++)
      for (let j = 0; j < 4; j++)
        this.#sums[4 * i + j] = kept * this.#sums[4 * i + j]! + sample[i]! * sample[j]!
  }

  /** Null while too little is known. */
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
