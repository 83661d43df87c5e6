// How many lines an upstream gets at once, found by itself. The limit grows while the upstream keeps up:
// the step doubles with each round that passes without complaint, so a doubled capacity is found in a few
// round trips. A refusal for lack of room (429, 503) says exactly how much room there is: what is still in
// flight after it. A failure (5xx, timeout) only says "less". And where more in flight only makes answers
// slower, as with servers that queue instead of refusing, the limit goes back and rests: throughput is what
// was in flight divided by how long it took (Little's law), which bursts do not disturb.

const START = 32
const FAILURE_FACTOR = 0.7
/** Having grown by this factor, the limit must have brought this much more throughput; else it goes back. */
const STRETCH = 1.25
const GAIN_MIN = 1.05
/** How long growth rests on a plateau before it probes again. */
const PLATEAU_REST_MS = 5_000
/** Answers that are faster are not told apart. */
const LATENCY_MS_MIN = 1

export interface ConcurrencyOptions {
  max: number
  start?: number
}

/** A call under way: when it was sent (ms), and how many were in flight then, itself included. */
export interface Sent {
  at: number
  in_flight: number
}

export class ConcurrencyLimit {
  readonly #max: number
  #limit: number
  #inFlight = 0
  #step = 1
  /** Answers still to come before the limit may grow: one round is as many answers as the limit. */
  #roundLeft: number
  /** Whether the limit was ever the bottleneck in this round: an idle upstream proves nothing. */
  #pressed = false
  #sums = { in_flight: 0, latency_ms: 0 }
  /** Where growth is measured from: the limit, and the answers per ms it brought. */
  #base: { limit: number; throughput: number } | null = null
  #restUntil = 0
  /** Failures of calls sent before this moment were punished already. */
  #punishedUntil = Number.NEGATIVE_INFINITY

  constructor(options: ConcurrencyOptions) {
    this.#max = Math.max(1, options.max)
    this.#limit = Math.min(this.#max, options.start ?? START)
    // Nothing is known yet, so nothing is risked: doubled in every round, until there is a complaint.
    this.#step = this.#limit
    this.#roundLeft = this.#limit
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

  /** Each call that is acquired ends in exactly one of the methods below. */
  acquire(now: number): Sent {
    this.#inFlight++
    if (this.#inFlight >= this.#limit) this.#pressed = true
    return { at: now, in_flight: this.#inFlight }
  }

  /** The call was answered, or refused for what it asked: either way the upstream kept up. */
  onAnswered(sent: Sent, now: number): void {
    this.#inFlight--
    this.#sums.in_flight += sent.in_flight
    this.#sums.latency_ms += Math.max(LATENCY_MS_MIN, now - sent.at)
    if (--this.#roundLeft === 0) this.#endRound(now)
  }

  /** The upstream has no room for more than what is still in flight. */
  onThrottled(): void {
    this.#inFlight--
    this.#fall(Math.min(this.#limit, this.#inFlight))
  }

  /** The call broke. */
  onFailed(sent: Sent, now: number): void {
    this.#inFlight--
    if (sent.at < this.#punishedUntil) return
    this.#punishedUntil = now
    this.#fall(Math.floor(this.#limit * FAILURE_FACTOR))
  }

  /** The call was aborted by us: it says nothing of the upstream. */
  onAborted(): void {
    this.#inFlight--
  }

  #fall(to: number): void {
    this.#limit = Math.max(1, to)
    this.#step = 1
    this.#base = null
    this.#startRound()
  }

  #endRound(now: number): void {
    const throughput = this.#sums.in_flight / this.#sums.latency_ms
    const mayGrow = this.#pressed && now >= this.#restUntil
    if (mayGrow && this.#pays(throughput)) {
      this.#limit = Math.min(this.#max, this.#limit + this.#step)
      this.#step = Math.min(this.#step * 2, this.#limit)
    } else if (mayGrow && this.#base) {
      this.#restUntil = now + PLATEAU_REST_MS
      this.#fall(this.#base.limit)
    }
    this.#startRound()
  }

  /** Whether the growth so far has brought anything; too little growth to tell is given credit. */
  #pays(throughput: number): boolean {
    this.#base ??= { limit: this.#limit, throughput }
    if (this.#limit < this.#base.limit * STRETCH) return true
    if (throughput < this.#base.throughput * GAIN_MIN) return false
    this.#base = { limit: this.#limit, throughput }
    return true
  }

  #startRound(): void {
    this.#roundLeft = this.#limit
    this.#pressed = this.#inFlight >= this.#limit
    this.#sums = { in_flight: 0, latency_ms: 0 }
  }
}
