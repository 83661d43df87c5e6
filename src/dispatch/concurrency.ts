// How many lines an upstream gets at once, found by itself. The limit grows while the upstream keeps up:
// the step doubles with each round that passes without complaint, so a doubled capacity is found in a few
// round trips. A refusal for lack of room (429, 503) says exactly how much room there is: what is still in
// flight after it. A failure (5xx, timeout) only says "less". Growth also pauses where more in flight no
// longer brings more answers, as with servers that queue instead of refusing.

const START = 32
const FAILURE_FACTOR = 0.7
/** A round of growth must bring this much more throughput for the next to start. */
const GAIN_MIN = 1.03
/** How long growth rests on a plateau before it probes again. */
const PLATEAU_REST_MS = 5_000
/** Below this, a measurement of throughput says little. */
const MEASURE_MS_MIN = 100

export interface ConcurrencyOptions {
  max: number
  start?: number
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
  #measureStart: number | null = null
  #answered = 0
  #bestThroughput = 0
  #restUntil = 0
  /** Failures of calls sent before this moment were punished already. */
  #punishedUntil = 0

  constructor(options: ConcurrencyOptions) {
    this.#max = Math.max(1, options.max)
    this.#limit = Math.min(this.#max, options.start ?? START)
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

  acquire(now: number): void {
    this.#inFlight++
    this.#measureStart ??= now
    if (this.#inFlight >= this.#limit) this.#pressed = true
  }

  /** The call was answered, or refused for what it asked: either way the upstream kept up. */
  onAnswered(now: number): void {
    this.#inFlight--
    this.#answered++
    if (--this.#roundLeft > 0) return
    this.#endRound(now)
  }

  /** The upstream has no room for more than what is still in flight. */
  onThrottled(): void {
    this.#inFlight--
    this.#limit = Math.max(1, Math.min(this.#limit, this.#inFlight))
    this.#step = 1
    this.#bestThroughput = 0
    this.#startRound()
  }

  /** The call broke. `sent_at` and `now` in ms on one clock. */
  onFailed(sent_at: number, now: number): void {
    this.#inFlight--
    if (sent_at < this.#punishedUntil) return
    this.#punishedUntil = now
    this.#limit = Math.max(1, Math.floor(this.#limit * FAILURE_FACTOR))
    this.#step = 1
    this.#bestThroughput = 0
    this.#startRound()
  }

  /** The call was aborted by us: it says nothing of the upstream. */
  onAborted(): void {
    this.#inFlight--
  }

  #endRound(now: number): void {
    const elapsed_ms = now - (this.#measureStart ?? now)
    if (elapsed_ms < MEASURE_MS_MIN) {
      // Too fast to measure: grow by trust, and go on measuring.
      this.#roundLeft = this.#limit
      if (this.#pressed) this.#grow()
      return
    }
    const throughput = this.#answered / elapsed_ms
    const pressed = this.#pressed
    this.#startRound()
    this.#measureStart = now
    if (!pressed || now < this.#restUntil) return
    if (throughput < this.#bestThroughput * GAIN_MIN) {
      this.#restUntil = now + PLATEAU_REST_MS
      this.#bestThroughput = 0
      this.#step = 1
      return
    }
    this.#bestThroughput = throughput
    this.#grow()
  }

  #grow(): void {
    this.#limit = Math.min(this.#max, this.#limit + this.#step)
    this.#step = Math.min(this.#step * 2, this.#limit)
    this.#pressed = false
    this.#roundLeft = this.#limit
  }

  #startRound(): void {
    this.#roundLeft = this.#limit
    this.#measureStart = null
    this.#answered = 0
    this.#pressed = false
  }
}
