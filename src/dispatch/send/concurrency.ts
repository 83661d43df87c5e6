// How many lines an upstream gets at once, found by itself. Until the first complaint every answer lets more
// follow, so a capacity is found within a few answers' time. A refusal for lack of room (429, 503) says exactly
// how much room there is: what is still in flight after it. From then on one more is tried every half round, and
// where that is not refused the limit rises again as in the beginning: capacity that comes back is used at once.
// A failure (5xx, timeout) only says "less"; what was lost to an outage is regained as soon as it is over. And
// where more in flight only makes answers slower (plateau.ts), the limit goes back and rests.
//
// Several workers before one upstream come to share it: all try for more equally often, and who has more has
// more to lose to the others.
import { type Cohort, Plateau } from './plateau.ts'

const START = 32
/**
 * How the limit rises: by how many lines for each that is answered, and to how many times what is known to bring
 * what it should. Answers that take long ask for care: what waits in a queue for too long times out.
 */
const RISE = { lines: 2, factorMax: 8 }
const SLOW_RISE = { lines: 1, factorMax: 2 }
const SLOW_MS = 2_000
const FAILURE_FACTOR = 0.7
/** So many trials in a row of one line more must go well before the limit rises: failures cost lines their attempts. */
const TRIALS_AFTER_REFUSAL = 2
const TRIALS_AFTER_FAILURE = 16
/** How long growth rests on a plateau before it is tried again: at least, and in multiples of what an answer took. */
const PLATEAU_REST_MS = 5_000
const PLATEAU_REST_ANSWERS = 5

export interface ConcurrencyOptions {
  max: number
  start?: number
}

/** A call under way: when it was sent (ms), and how many were in flight then, itself included. */
export interface Sent {
  at: number
  inFlight: number
  cohort: Cohort
}

export class ConcurrencyLimit {
  readonly #max: number
  readonly #plateau: Plateau
  #limit: number
  #inFlight = 0
  /** How far every answer raises the limit; beyond it only trials do. */
  #riseTo = Number.POSITIVE_INFINITY
  #trialsLeft = 0
  /** Whether no answer has come since the last failure. */
  #failing = false
  /** Answers still to come before the round is over. */
  #roundLeft = 0
  /** Whether the limit was ever the bottleneck in this round: an idle upstream proves nothing. */
  #pressed = false
  #retryAt = 0
  #answeredAt: number | null = null
  /** Failures of calls sent before this moment were punished already. */
  #punishedUntil = Number.NEGATIVE_INFINITY

  constructor(options: ConcurrencyOptions) {
    this.#max = Math.max(1, options.max)
    this.#limit = Math.min(this.#max, options.start ?? START)
    this.#plateau = new Plateau(this.#limit)
    this.#startRound()
  }

  get limit(): number {
    return this.#limit
  }

  get inFlight(): number {
    return this.#inFlight
  }

  get free(): number {
    return Math.max(0, this.#limit - this.#inFlight)
  }

  /** When the last answer came (ms); null before the first. */
  get answeredAt(): number | null {
    return this.#answeredAt
  }

  /** Each call that is acquired ends in exactly one of the methods below. */
  acquire(now: number): Sent {
    this.#inFlight++
    if (this.#inFlight >= this.#limit) this.#pressed = true
    return { at: now, inFlight: this.#inFlight, cohort: this.#plateau.onSent() }
  }

  /** The call was answered, or refused for what it asked: either way the upstream kept up. */
  onAnswered(sent: Sent, now: number): void {
    const isFull = this.#inFlight >= this.#limit
    this.#inFlight--
    this.#failing = false
    this.#answeredAt = now
    const latencyMs = now - sent.at
    if (isFull && now >= this.#retryAt) this.#rise(latencyMs > SLOW_MS ? SLOW_RISE : RISE)
    if (this.#plateau.onAnswered(sent.cohort, sent.inFlight, latencyMs)) this.#goBack(sent, now)
    else if (--this.#roundLeft <= 0) this.#endRound(now)
  }

  /** The upstream has no room for more than what is still in flight. */
  onThrottled(sent: Sent): void {
    this.#inFlight--
    this.#plateau.onEnded(sent.cohort)
    this.#riseTo = 0
    this.#fall(Math.min(this.#limit, this.#inFlight), TRIALS_AFTER_REFUSAL)
  }

  /** The call broke. */
  onFailed(sent: Sent, now: number): void {
    this.#inFlight--
    if (this.#plateau.onEnded(sent.cohort)) this.#goBack(sent, now)
    if (sent.at < this.#punishedUntil) return
    this.#punishedUntil = now
    const lower = Math.floor(this.#limit * FAILURE_FACTOR)
    // However long an outage lasts, it says no more of the capacity than its first failure.
    if (!this.#failing) this.#riseTo = lower
    this.#failing = true
    this.#fall(lower, TRIALS_AFTER_FAILURE)
  }

  /** The call was aborted by us: it says nothing of the upstream. */
  onAborted(sent: Sent, now: number): void {
    this.#inFlight--
    if (this.#plateau.onEnded(sent.cohort)) this.#goBack(sent, now)
  }

  /** What lowered the limit was no lack of room: it is as high as it was. */
  restore(limit: number): void {
    if (limit <= this.#limit) return
    this.#limit = Math.min(this.#max, limit)
    this.#riseTo = Number.POSITIVE_INFINITY
    this.#trialsLeft = 0
    this.#plateau.reset(this.#limit)
    this.#startRound()
  }

  #rise({ lines, factorMax }: typeof RISE): void {
    const bound = Math.min(this.#max, this.#riseTo, Math.max(START, this.#plateau.proven) * factorMax)
    this.#limit = Math.max(this.#limit, Math.min(bound, this.#limit + lines))
  }

  #goBack(sent: Sent, now: number): void {
    this.#retryAt = now + Math.max(PLATEAU_REST_MS, PLATEAU_REST_ANSWERS * (now - sent.at))
    this.#riseTo = 0
    this.#fall(Math.min(this.#limit, this.#plateau.proven), TRIALS_AFTER_REFUSAL)
  }

  #fall(to: number, trials: number): void {
    this.#limit = Math.max(1, to)
    this.#trialsLeft = trials
    this.#plateau.reset(this.#limit)
    this.#startRound()
  }

  #endRound(now: number): void {
    if (this.#pressed && now >= this.#retryAt && this.#limit >= this.#riseTo) {
      if (this.#trialsLeft === 0) this.#riseTo = Number.POSITIVE_INFINITY
      else {
        this.#trialsLeft--
        this.#limit = Math.min(this.#max, this.#limit + 1)
      }
    }
    this.#startRound()
  }

  /** As many answers as the limit; half as many will do to see whether one line more is refused. */
  #startRound(): void {
    const isTrial = this.#limit >= this.#riseTo
    this.#roundLeft = isTrial ? Math.ceil(this.#limit / 2) : this.#limit
    this.#pressed = this.#inFlight >= this.#limit
  }
}
