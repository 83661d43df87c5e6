// Whether more lines in flight bring more answers, or only slower ones, as with servers that queue instead of
// refusing. Throughput is what was in flight divided by how long it took (Little's law), which bursts do not
// disturb. It is told cohort by cohort: so many lines in a row as they are sent, once most of them are answered;
// whoever counted answers as they come would hear the fast ones first. Answers that differ much among themselves
// need to be many before anything is concluded from them.

/** With this much more in flight there must be this much more throughput; else it was for nothing. */
const STRETCH = 1.5
const GAIN_MIN = 1.09
/** Lines of a cohort, at least; and how many are needed for a conclusion, however much they differ. */
const COHORT_MIN = 32
const LINES_MAX = 256
/** The share of a cohort that is waited for: the slowest may take for ever. */
const SHARE = 0.9
/** Standard errors by which a conclusion must be clear of chance. */
const CERTAIN = 2
/** Answers that are faster are not told apart. */
const LATENCY_MS_MIN = 1

/** Sums over lines: what was in flight when they were sent, and how long they took. */
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
  /** As much in flight as is known to bring what it should. */
  #proven: number
  /** Where growth is measured from. */
  #base: Sums | null = null
  /** What the cohorts since then have shown together, if that was not plain yet. */
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

  /** Begins anew: nothing is known but that `proven` lines in flight are fine. */
  reset(proven: number): void {
    this.#proven = proven
    this.#base = null
    this.#soFar = null
    this.#cohorts.clear()
    this.#filling = this.#newCohort()
  }

  /** A line is sent; the cohort is to be named when it ends. */
  onSent(): Cohort {
    if (this.#filling.sent === this.#filling.size) this.#filling = this.#newCohort()
    this.#filling.sent++
    return this.#filling
  }

  /** Whether this answer showed that what is in flight beyond `proven` brings nothing. */
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

  /** The line ended without an answer, which tells nothing but that it is not to be waited for. */
  onEnded(cohort: Cohort): boolean {
    cohort.ended++
    if (cohort.ended < cohort.size * SHARE || !this.#cohorts.delete(cohort)) return false
    return cohort.answers > 0 && this.#checkLines(cohort)
  }

  #checkLines(cohort: Sums): boolean {
    const base = this.#base
    const sums = this.#soFar ? together(this.#soFar, cohort) : cohort
    const stretch = base ? inFlightOf(sums) / inFlightOf(base) : 0
    this.#soFar = null
    if (!base || stretch < 1) this.#base = cohort
    if (!base || stretch < STRETCH) return false
    const gain = throughputOf(sums) / throughputOf(base)
    const isLong = sums.answers >= LINES_MAX
    const doubt = isLong ? 0 : gain * CERTAIN * Math.hypot(errorOf(base), errorOf(sums))
    if (gain + doubt < GAIN_MIN) return true
    if (gain - doubt < GAIN_MIN) this.#soFar = sums
    else {
      // What brings no more than less would have brought only waits.
      this.#proven = Math.max(this.#proven, Math.round(inFlightOf(base) * Math.min(gain, stretch)))
      this.#base = sums
    }
    return false
  }

  #newCohort(): Cohort {
    // What all else is measured by is taken with care.
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

function together(a: Sums, b: Sums): Sums {
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
