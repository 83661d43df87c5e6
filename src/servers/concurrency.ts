// The adaptive concurrency limit of an upstream. At first every answer raises the limit, so it reaches the capacity
// within a few answers' time. A throttle (429, 503) shows the capacity exactly: it is the number of lines still in
// flight. From then on one more line is tried every half round; if these trials succeed, the limit rises again as at
// first, so that returning capacity is used at once. Throttles that go on though the limit falls, among many answers, say
// nothing about the capacity, and the limit rises again. A failure (5xx, timeout) lowers the limit by a factor; after an
// outage the limit recovers at once: what it was lowered to without an answer in between proves nothing. Where the server
// says that it works on all that it has, the limit doubles without waiting for answers. If more lines in flight only make
// answers slower (`Plateau`), the limit is set back and does not grow for a while.
//
// Several workers of one upstream converge to equal shares: all try to grow equally often, and the worker with the
// larger share loses more.
import { recordOf } from '../domain/json-record.ts'

const START = 32
/**
 * The rise of the limit: the number of lines per answer, and the highest multiple of the proven concurrency. With slow
 * answers the limit rises more carefully, because lines that wait in a server's queue for too long time out.
 */
const RISE = { lines: 2, factorMax: 8 }
const SLOW_RISE = { lines: 1, factorMax: 2 }
const SLOW_MS = 2_000
/** The factor by which the limit rises where a server reports room for more lines. */
const ROOM_FACTOR = 2
const FAILURE_FACTOR = 0.7
/**
 * Throttles that have lowered the limit by this factor, line by line and with so many answers for each of them, do not show the
 * capacity: a full server stops throttling once it has fewer lines. One of its replicas is full, or a gateway sheds requests.
 */
const STRAY_FACTOR = 0.8
const STRAY_ANSWERS_MIN = 4
/** The trials that must succeed in a row before the limit rises freely; failures cost lines their attempts. */
const TRIALS_AFTER_THROTTLE = 2
const TRIALS_AFTER_FAILURE = 16
/** The time without growth of the limit after a plateau: the least, a multiple of the latency, and the most. */
const PLATEAU_PAUSE_MS = 5_000
const PLATEAU_PAUSE_LATENCIES = 5
const PLATEAU_PAUSE_MS_MAX = 30_000

export interface ConcurrencyOptions {
  max: number
  start?: number
  /** Whether the limit seeks the number of lines beyond which answers only become slower. Default true. */
  seeksPlateau?: boolean
}

export interface Sent {
  /** Unix ms. */
  readonly sentAt: number
  /** The number of lines in flight when the line was sent, itself included. */
  inFlight: number
  /** The cohort of the line; null before it is sent. */
  cohort: Cohort | null
}

export class ConcurrencyLimit {
  #max: number
  readonly #plateau: Plateau
  readonly #seeksPlateau: boolean
  #limit: number
  #inFlight = 0
  /** The limit up to which every answer raises it; beyond, only trials do. */
  #riseTo = Number.POSITIVE_INFINITY
  #trialsLeft = 0
  /** Whether there was no answer since the last failure or throttle. */
  #missing = false
  /** Answers until the end of the round. */
  #roundLeft = 0
  /** Whether the limit was reached in this round; if not, its answers say nothing about the capacity. */
  #wasFull = false
  #growAt = 0
  #answeredAt: number | null = null
  /** Whether the limit was reached when the first answer of this millisecond came: many come before the next line is sent. */
  #answeredFull = false
  /** Failures of calls that were sent before this moment lower the limit no further. */
  #failureCountedAt = Number.NEGATIVE_INFINITY
  /** Answers since the last line was sent: their slots are free, and were not when the server throttled. */
  #freed = 0
  /** The limit before throttles began to lower it, and the throttles and answers since then. */
  readonly #descent = { from: 0, throttles: 0, answers: 0 }

  constructor(options: ConcurrencyOptions) {
    this.#max = Math.max(1, options.max)
    this.#limit = Math.min(this.#max, options.start ?? START)
    this.#plateau = new Plateau(this.#limit)
    this.#seeksPlateau = options.seeksPlateau ?? true
    this.#startRound()
  }

  setMax(max: number): void {
    this.#max = Math.max(1, max)
    if (this.#limit > this.#max) this.#lowerTo(this.#max, 0)
  }

  get max(): number {
    return this.#max
  }

  get limit(): number {
    return this.#limit
  }

  get inFlight(): number {
    return this.#inFlight
  }

  /** The number of lines that the server had at its last answer, of which some may be answered. */
  get atServer(): number {
    return this.#inFlight + this.#freed
  }

  /** Acquires a slot for a call, which ends in exactly one of the methods below. */
  acquire(sent: Sent): void {
    this.#inFlight++
    this.#freed = 0
    if (this.#inFlight >= this.#limit) this.#wasFull = true
    sent.inFlight = this.#inFlight
    sent.cohort = this.#plateau.onSent()
  }

  /** Notes an answer, or a rejection of the content: in both cases the upstream had capacity for the call. */
  onAnswered(sent: Sent, now: number): void {
    if (now !== this.#answeredAt) this.#answeredFull = this.#inFlight >= this.#limit
    this.#answeredAt = now
    this.#inFlight--
    this.#freed++
    this.#descent.answers++
    this.#missing = false
    const latencyMs = now - sent.sentAt
    if (this.#answeredFull && now >= this.#growAt) this.#rise(latencyMs > SLOW_MS ? SLOW_RISE : RISE)
    if (this.#plateau.onAnswered(sent.cohort!, sent.inFlight, latencyMs)) this.#backToProven(sent, now)
    else if (--this.#roundLeft <= 0) this.#endRound(now)
  }

  /** Notes a throttle: the upstream has no capacity beyond the lines that it has, unless throttles say nothing about it. */
  onThrottled(sent: Sent): void {
    this.#inFlight--
    this.#plateau.onEnded(sent.cohort!)
    this.#riseTo = 0
    const lower = Math.min(this.#limit, this.atServer)
    // One line less changes nothing about what the plateau measures.
    if (lower >= this.#limit - 1) this.#descend(lower)
    else this.#lowerTo(lower, TRIALS_AFTER_THROTTLE, this.#provenAfterMiss(lower))
    this.#missing = true
  }

  #descend(lower: number): void {
    const descent = this.#descent
    if (this.#limit > descent.from) this.#startDescent()
    descent.throttles++
    this.#setLimit(lower, TRIALS_AFTER_THROTTLE)
    if (this.#limit > STRAY_FACTOR * descent.from) return
    if (descent.answers >= STRAY_ANSWERS_MIN * descent.throttles) this.#riseFrom(descent.from)
    this.#startDescent()
  }

  #startDescent(): void {
    Object.assign(this.#descent, { from: this.#limit, throttles: 0, answers: 0 })
  }

  onFailed(sent: Sent, now: number): void {
    this.#inFlight--
    if (this.#plateau.onEnded(sent.cohort!)) this.#backToProven(sent, now)
    if (sent.sentAt < this.#failureCountedAt) return
    this.#failureCountedAt = now
    const lower = Math.floor(this.#limit * FAILURE_FACTOR)
    if (!this.#missing) this.#riseTo = this.#provenAfterMiss(lower)
    this.#lowerTo(lower, TRIALS_AFTER_FAILURE, this.#provenAfterMiss(lower))
    this.#missing = true
  }

  /** The proven concurrency after a miss. Further misses of one outage say little about the capacity. */
  #provenAfterMiss(lower: number): number {
    const { proven } = this.#plateau
    if (this.#missing) return proven
    return this.#limit < proven ? Math.max(lower, Math.floor(proven * FAILURE_FACTOR)) : lower
  }

  /** Ends a call that the worker aborted, which says nothing about the upstream. */
  onAborted(sent: Sent, now: number): void {
    this.#inFlight--
    if (this.#plateau.onEnded(sent.cohort!)) this.#backToProven(sent, now)
  }

  /** Whether the limit keeps lines back without a sign that the server lacks capacity for them. */
  seeksRoom(now: number): boolean {
    const isFull = this.#inFlight >= this.#limit && this.#limit < this.#max
    return isFull && this.#seeksPlateau && this.#riseTo === Number.POSITIVE_INFINITY && now >= this.#growAt
  }

  /** Notes that the server works on everything in flight and takes more. */
  onRoom(): void {
    this.#limit = Math.min(this.#max, ROOM_FACTOR * this.#limit)
    this.#startRound()
  }

  /** Restores a limit that was lowered for another reason than missing capacity. */
  restore(limit: number): void {
    if (limit <= this.#limit) return
    this.#riseFrom(limit)
    this.#plateau.reset(this.#limit)
  }

  #riseFrom(limit: number): void {
    this.#riseTo = Number.POSITIVE_INFINITY
    this.#setLimit(Math.min(this.#max, limit), 0)
  }

  #rise({ lines, factorMax }: typeof RISE): void {
    const bound = Math.min(this.#max, this.#riseTo, Math.max(START, this.#plateau.proven) * factorMax)
    this.#limit = Math.max(this.#limit, Math.min(bound, this.#limit + lines))
  }

  #backToProven(sent: Sent, now: number): void {
    if (!this.#seeksPlateau) return
    const pauseMs = Math.max(PLATEAU_PAUSE_MS, PLATEAU_PAUSE_LATENCIES * (now - sent.sentAt))
    this.#growAt = now + Math.min(pauseMs, PLATEAU_PAUSE_MS_MAX)
    this.#riseTo = 0
    this.#lowerTo(Math.min(this.#limit, this.#plateau.proven), TRIALS_AFTER_THROTTLE)
  }

  #lowerTo(to: number, trials: number, proven = to): void {
    this.#plateau.reset(Math.max(1, proven))
    this.#setLimit(to, trials)
    this.#startDescent()
  }

  #setLimit(to: number, trials: number): void {
    this.#limit = Math.max(1, to)
    this.#trialsLeft = trials
    this.#startRound()
  }

  #endRound(now: number): void {
    if (this.#wasFull && now >= this.#growAt && this.#limit >= this.#riseTo) {
      if (this.#trialsLeft === 0) this.#riseTo = Number.POSITIVE_INFINITY
      else {
        this.#trialsLeft--
        this.#limit = Math.min(this.#max, this.#limit + 1)
      }
    }
    this.#startRound()
  }

  /** A round is as many answers as the limit, or half as many for a trial. */
  #startRound(): void {
    const isTrial = this.#limit >= this.#riseTo
    this.#roundLeft = isTrial ? Math.ceil(this.#limit / 2) : this.#limit
    this.#wasFull = this.#inFlight >= this.#limit
  }
}

// `Plateau` decides whether more lines in flight bring more throughput, or only slower answers, as with servers that queue
// requests instead of throttling. Throughput is lines in flight divided by latency (Little's law), which bursts do not
// distort. It is measured per cohort: a number of lines that were sent in a row, once most of them are answered.
// Counting answers as they arrive would favour the fast ones. The more latencies vary, the more answers are needed for
// a conclusion.

/** The growth that is no plateau: with STRETCH times as many lines in flight, throughput must grow by GAIN_MIN. */
const STRETCH = 1.5
const GAIN_MIN = 1.09
/** The least number of lines of a cohort; and the number of answers that suffices for any conclusion. */
const COHORT_MIN = 32
const LINES_MAX = 256
/** The share of a cohort that must have ended; the slowest lines are not waited for. */
const ENDED_SHARE = 0.9
/** The width of the confidence interval, in standard errors. */
const CONFIDENCE = 2
/** The shortest latency that is distinguished. */
const LATENCY_MS_MIN = 1

/** Sums over lines: how many were in flight when they were sent, and their latencies. */
const SUMS = ['answers', 'inFlight', 'latencyMs', 'inFlightSquared', 'latencyMsSquared', 'product'] as const
type Sums = Record<(typeof SUMS)[number], number>

export interface Cohort extends Sums {
  size: number
  sent: number
  ended: number
}

class Plateau {
  /** The concurrency up to which throughput is known to grow. */
  #proven: number
  /** The cohort from which growth is measured. */
  #base: Sums | null = null
  /** The sums of cohorts after the base, until they suffice for a conclusion. */
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

  reset(proven: number): void {
    this.#proven = proven
    this.#base = null
    this.#soFar = null
    this.#cohorts.clear()
    this.#filling = this.#newCohort()
  }

  /** Counts a sent line; its cohort is passed to the method that ends the line. */
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

  /** Counts a line that ended without an answer: the cohort no longer waits for it. */
  onEnded(cohort: Cohort): boolean {
    cohort.ended++
    if (cohort.ended < cohort.size * ENDED_SHARE || !this.#cohorts.delete(cohort)) return false
    return cohort.answers > 0 && this.#compare(cohort)
  }

  #compare(cohort: Sums): boolean {
    const base = this.#base
    const before = this.#soFar
    const sums = before ? recordOf(SUMS, (name) => before[name] + cohort[name]) : cohort
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
    const cohort = { size, sent: 0, ended: 0, ...recordOf(SUMS, () => 0) }
    this.#cohorts.add(cohort)
    return cohort
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
