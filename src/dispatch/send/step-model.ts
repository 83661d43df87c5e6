// How much longer a model server takes for each token the more requests it works on: a + b·n milliseconds, found from
// what it is seen to do. Numbers of requests are kept in classes, so that a long time at one of them does not
// make what was seen at others forgotten.

const CLASSES_PER_DOUBLING = 3
/** How much of a class's mean the next sample is, once it has many. */
const SHARE_MIN = 0.1
/** A line is not fitted through fewer classes, or through a narrower range (largest ÷ smallest). */
const CLASSES_MIN = 3
const RANGE_MIN = 1.5

interface Class {
  requests: number
  stepMs: number
  samples: number
}

export interface StepLine {
  /** Milliseconds of a token when the server has next to nothing to do. */
  baseMs: number
  /** More for each request. */
  perRequestMs: number
}

export class StepModel {
  readonly #classes = new Map<number, Class>()
  #line: StepLine | null = null

  /** What a token took while so many requests were worked on. */
  add(requests: number, stepMs: number): void {
    if (!(requests > 0 && stepMs > 0)) return
    const key = Math.round(Math.log2(requests) * CLASSES_PER_DOUBLING)
    const known = this.#classes.get(key)
    if (!known) this.#classes.set(key, { requests, stepMs, samples: 1 })
    else {
      known.samples++
      const share = Math.max(SHARE_MIN, 1 / known.samples)
      known.requests += share * (requests - known.requests)
      known.stepMs += share * (stepMs - known.stepMs)
    }
    this.#line = this.#fit()
  }

  /** Null while too little is known. */
  get line(): StepLine | null {
    return this.#line
  }

  /** Least squares, each class weighted by the root of its samples. */
  #fit(): StepLine | null {
    const classes = [...this.#classes.values()]
    const counts = classes.map(({ requests }) => requests)
    if (classes.length < CLASSES_MIN || Math.max(...counts) < RANGE_MIN * Math.min(...counts)) return null
    let weights = 0
    let x = 0
    let y = 0
    let xx = 0
    let xy = 0
    for (const { requests, stepMs, samples } of classes) {
      const weight = Math.sqrt(Math.min(samples, 100))
      weights += weight
      x += weight * requests
      y += weight * stepMs
      xx += weight * requests * requests
      xy += weight * requests * stepMs
    }
    const perRequestMs = Math.max(0, (weights * xy - x * y) / (weights * xx - x * x))
    const fastestMs = Math.min(...classes.map(({ stepMs }) => stepMs))
    const baseMs = (y - perRequestMs * x) / weights
    return { baseMs: Math.min(fastestMs, Math.max(baseMs, fastestMs / 4)), perRequestMs }
  }
}
