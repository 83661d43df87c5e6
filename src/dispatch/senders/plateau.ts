// Decides whether more lines in flight bring more throughput, or only slower answers, as with servers that queue
// requests instead of throttling. Throughput is lines in flight divided by latency (Little's law), which bursts do not
// distort. It is measured per cohort: a number of lines that were sent in a row, once most of them are answered.
// Counting answers as they arrive would favour the fast ones. The more latencies vary, the more answers are needed for
// a conclusion.

/** With STRETCH times as many lines in flight, throughput must grow by GAIN_MIN; otherwise it is a plateau. */
const STRETCH = 1.5
const GAIN_MIN = 1.09
/** The lines of a cohort, at least; and how many answers suffice for a conclusion, however much they vary. */
const COHORT_MIN = 32
const LINES_MAX = 256
/** The share of a cohort that must have ended; the slowest lines are not waited for. */
const SHARE = 0.9
/** The width of the confidence interval, in standard errors. */
const CONFIDENCE = 2
/** The shortest latency that is distinguished. */
const LATENCY_MS_MIN = 1

/** Sums over lines: how many were in flight when they were sent, and their latencies. */
interface Sums {
  answers: number
  inFlight: number
  latencyMs: number
  inFlightSquared: number
  latencyMsSquared: number
  product: number
}

export interface Cohort extends Sums {
  size: number
  sent: number
  ended: number
}

export class Plateau {
  /** The concurrency up to which throughput is known to grow. */
  #proven: number
  /** The cohort that growth is measured from. */
  #base: Sums | null = null
  /** The sums of later cohorts, while they allow no conclusion. */
  #soFar: Sums | null = null
  #cohorts = new Set<Cohort>()
  #filling: Cohort

  constructor(proven: number) {
    this.#proven = proven
    this.#filling = this.#newCohort()
  }

  get proven(): number {
    return this.#proven
  }

  /** Starts again with `proven` lines in flight. */
  reset(proven: number): void {
    this.#proven = proven
    this.#base = null
    this.#soFar = null
    this.#cohorts.clear()
    this.#filling = this.#newCohort()
  }

  /** A line is sent; its cohort is passed to the method that is called when it ends. */
  onSent(): Cohort {
    if (this.#filling.sent === this.#filling.size) this.#filling = this.#newCohort()
    this.#filling.sent++
    return this.#filling
  }

  /** True if this answer shows that concurrency beyond `proven` brings no throughput. */
  onAnswered(cohort: Cohort, inFlight: number, latencyMs: number): boolean {
    const tookMs = Math.max(LATENCY_MS_MIN, latencyMs)
    cohort.answers++
    cohort.inFlight += inFlight
    cohort.latencyMs += tookMs
    cohort.inFlightSquared += inFlight ** 2
    cohort.latencyMsSquared += tookMs ** 2
    cohort.product += inFlight * tookMs
    return this.onEnded(cohort)
  }

  /** The line ended without an answer: the cohort no longer waits for it. */
  onEnded(cohort: Cohort): boolean {
    cohort.ended++
    if (cohort.ended < cohort.size * SHARE || !this.#cohorts.delete(cohort)) return false
    return cohort.answers > 0 && this.#compare(cohort)
  }

  #compare(cohort: Sums): boolean {
    const base = this.#base
    const sums = this.#soFar ? sumOf(this.#soFar, cohort) : cohort
    const stretch = base ? inFlightOf(sums) / inFlightOf(base) : 0
    this.#soFar = null
    if (!base || stretch < 1) this.#base = cohort
    if (!base || stretch < STRETCH) return false
    const gain = throughputOf(sums) / throughputOf(base)
    const isLong = sums.answers >= LINES_MAX
    const margin = isLong ? 0 : gain * CONFIDENCE * Math.hypot(errorOf(base), errorOf(sums))
    // Below what is proven, something else made the answers slower: the server stalls, or has just come back.
    if (gain + margin < GAIN_MIN) return inFlightOf(sums) > this.#proven
    if (gain - margin < GAIN_MIN) this.#soFar = sums
    else {
      // Concurrency beyond the gain in throughput is only waiting time.
      this.#proven = Math.max(this.#proven, Math.round(inFlightOf(base) * Math.min(gain, stretch)))
      this.#base = sums
    }
    return false
  }

  #newCohort(): Cohort {
    // The base cohort is larger, because everything is measured against it.
    const size = this.#base ? COHORT_MIN : Math.max(COHORT_MIN, this.#proven)
    const cohort = { size, sent: 0, ended: 0, ...NOTHING }
    this.#cohorts.add(cohort)
    return cohort
  }
}

const NOTHING: Sums = {
  answers: 0,
  inFlight: 0,
  latencyMs: 0,
  inFlightSquared: 0,
  latencyMsSquared: 0,
  product: 0,
}

function sumOf(a: Sums, b: Sums): Sums {
  return {
    answers: a.answers + b.answers,
    inFlight: a.inFlight + b.inFlight,
    latencyMs: a.latencyMs + b.latencyMs,
    inFlightSquared: a.inFlightSquared + b.inFlightSquared,
    latencyMsSquared: a.latencyMsSquared + b.latencyMsSquared,
    product: a.product + b.product,
  }
}

function inFlightOf({ inFlight, answers }: Sums): number {
  return inFlight / answers
}

/** Answers per ms. */
function throughputOf({ inFlight, latencyMs }: Sums): number {
  return inFlight / latencyMs
}

/** The standard error of the throughput, as a share of it: that of a ratio of two means. */
function errorOf(sums: Sums): number {
  const ratio = sums.latencyMs / sums.inFlight
  const squares = sums.latencyMsSquared - 2 * ratio * sums.product + ratio ** 2 * sums.inFlightSquared
  return Math.sqrt(Math.max(0, squares)) / sums.latencyMs
}
