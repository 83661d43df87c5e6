// How many lines may be in flight at a model server that answers other requests too, such that those do not wait. What
// the server says of itself is read twice a second; from it follow the requests that it may work on in all:
//
// - no more than its seats and its cache have room for, with some left for requests that arrive until the next reading;
// - no more than make its steps so long that further requests bring little, unless the others alone usually make it
//   as full as that: then as many as they do.
//
// What the others leave of that is the share. It shrinks at once and grows step by step, since a burst of prompts
// delays others by itself. Several workers adjust what they have by equal parts of the room that each of them sees.
// A server that says nothing is judged by how long its answers take for each token.
import type { ServerTraffic } from '../../backends/backend.ts'
import { Changes } from './changes.ts'
import { StepModel } from './step-model.ts'
import { UsualLevel } from './usual-level.ts'

export interface LiveTerms {
  /** How many requests may wait at the server. */
  waiting_max: number
  /** How much of its KV cache may be in use, 0 to 1. */
  cache_max: number
}

/** Lines in flight at the server when it was read, and who sends them. */
export interface OwnLoad {
  inFlight: number
  /** Those of the other workers. */
  others: number
  /** Workers that may send there, this one included. */
  workers: number
}

/** So many lines may start at once. */
const START = 2
/** The share rises by so much of the requests that the server ends in a second. */
const RISE = 0.1
const RISE_MIN_PER_S = 1
/** The time of a request before the first of ours was answered. */
const RESIDENCE_MS = 5_000
/** While too little is known of the server's speed, it may work on so many times as many requests, and so many more. */
const UNKNOWN_FACTOR = 1.3
const UNKNOWN_MORE = 2
/** At least so much of a step's time must be what a step takes with next to no requests. */
const EMPTY_STEP_MIN = 0.35
/** How much of the throughput of a full server is used, unless its steps at full are hardly longer than then. */
const THROUGHPUT_SHARE = 0.86
const FULL_STEP_MAX = 1.25
/** The others' usual level is the one that they stay below for so much of the time. */
const USUAL_SHARE = 0.85
/** Over how long the others' requests are averaged. */
const SMOOTHING_MS = 3_000
/** Seats left free for what the others may add, in standard deviations of what they did. */
const HEADROOM_DEVIATIONS = 2
/** Without metrics, tokens may take so many times as long as at best. */
const SLOWER_MAX = 1.8
const LOWER_FACTOR = 0.7
/** A server that has shown metrics and shows none now gets no more lines than it has, for so long. */
const SILENT_MS = 10_000
/** How much slower the fastest is thought each time, so that a change of the server is noticed. */
const FORGETTING = 1.0003
/** How long the number of seats is believed, at first and after it was found again and again; then it is thought larger. */
const BELIEF_MS_MIN = 10_000
const BELIEF_MS_MAX = 600_000
const SEATS_RISE = 0.05
/** A server is full when as many run as have run without others waiting, about, of late. */
const PROVEN_SHARE = 0.9
const PROVEN_HALF_LIFE_MS = 600_000

export class LiveShare {
  readonly #terms: LiveTerms
  readonly #steps = new StepModel()
  readonly #usual = new UsualLevel(USUAL_SHARE)
  readonly #changes = new Changes()
  /** Nothing is sent before the first reading. */
  #share = 0
  #target = 0
  #steppedAt: number | null = null
  #last: { load: ServerTraffic; others: number; at: number } | null = null
  /** Of the others' requests. */
  #othersMean = 0
  /** How many requests were worked on when some had to wait, at least. */
  #seats = Number.POSITIVE_INFINITY
  #beliefMs = BELIEF_MS_MIN
  /** The most that ran while none waited, of late. */
  #proven = 0
  #believedUntil = 0
  /** How long a request takes. */
  #residenceMs = RESIDENCE_MS
  /** To our lines, since the last reading. */
  #answers = { ms: 0, tokens: 0 }
  /** The least that a token of them took, of late. */
  #fastestMs = Number.POSITIVE_INFINITY

  constructor(terms: LiveTerms) {
    this.#terms = terms
  }

  /** Lines that may be in flight now. */
  places(now: number): number {
    this.#step(now)
    return Math.max(0, Math.floor(this.#share))
  }

  /** As `places`, at the last look. */
  get current(): number {
    return Math.floor(this.#share)
  }

  /** The server was read. */
  read(load: ServerTraffic, own: OwnLoad, now: number): void {
    this.#step(now)
    const ours = own.inFlight + own.others
    const others = Math.max(0, load.running + load.waiting - ours)
    this.#learn(load, others, now)
    this.#last = { load, others, at: now }
    const room = this.#ours(load, ours, others, own.workers) - ours
    const part = room > 0 ? room / own.workers : ours === 0 ? 0 : (room * own.inFlight) / ours
    this.#target = Math.max(0, own.inFlight + part)
    this.#setShare(own)
  }

  /** The server said nothing: how long tokens of our lines take has to tell. */
  unread(own: OwnLoad, now: number): void {
    this.#step(now)
    const { ms, tokens } = this.#answers
    this.#answers = { ms: 0, tokens: 0 }
    const isBriefly = this.#last !== null && now - this.#last.at < SILENT_MS
    if (!isBriefly) this.#last = null
    if (tokens === 0 || isBriefly) {
      this.#target = Math.max(1, own.inFlight)
      this.#share = Math.min(this.#target, Math.max(this.#share, 1))
      return
    }
    const tokenMs = ms / tokens
    this.#fastestMs = Math.min(tokenMs, this.#fastestMs * FORGETTING)
    if (tokenMs > SLOWER_MAX * this.#fastestMs) this.#target = Math.max(1, own.inFlight * LOWER_FACTOR)
    else this.#target = own.inFlight * UNKNOWN_FACTOR + 1
    this.#setShare(own)
  }

  /** One of our lines was answered. */
  answered(tookMs: number, tokens: number): void {
    this.#residenceMs += 0.05 * (tookMs - this.#residenceMs)
    this.#answers.ms += tookMs
    this.#answers.tokens += tokens
  }

  /** What of the share was not used does not come at once later: that would be a burst. */
  #setShare(own: OwnLoad): void {
    const most = own.inFlight + Math.max(START, this.#risePerS)
    this.#share = Math.min(this.#target, Math.max(START, Math.min(this.#share, most)))
  }

  #step(now: number): void {
    const s = Math.min(1, (now - (this.#steppedAt ?? now)) / 1_000)
    this.#steppedAt = now
    if (this.#share < this.#target) this.#share = Math.min(this.#target, this.#share + this.#risePerS * s)
  }

  get #risePerS(): number {
    const { running = 0 } = this.#last?.load ?? {}
    return Math.max(RISE_MIN_PER_S, (RISE * running * 1_000) / this.#residenceMs)
  }

  #learn(load: ServerTraffic, others: number, now: number): void {
    const { running, waiting, tokens } = load
    const last = this.#last
    this.#changes.add(others, now)
    if (last === null) this.#othersMean = others
    else if (now > last.at) {
      const ms = now - last.at
      this.#usual.add(others, ms)
      this.#proven *= 2 ** (-ms / PROVEN_HALF_LIFE_MS)
      this.#othersMean += (1 - Math.exp(-ms / SMOOTHING_MS)) * (others - this.#othersMean)
      const generated = tokens === null || last.load.tokens === null ? 0 : tokens - last.load.tokens
      const mean = (running + last.load.running) / 2
      if (generated > 0 && Math.abs(running - last.load.running) < 0.3 * mean)
        this.#steps.add(mean, (ms * mean) / generated)
    }
    if (waiting <= this.#terms.waiting_max) this.#proven = Math.max(this.#proven, running)
    if (waiting > this.#terms.waiting_max) {
      // Fewer than ran without anybody waiting: long prompts have just come, and wait for a step.
      if (running >= PROVEN_SHARE * this.#proven) this.#foundFull(Math.max(1, running), now)
    } else if (running > this.#seats) this.#seats = running
    else if (now >= this.#believedUntil) {
      this.#seats += Math.max(1, SEATS_RISE * this.#seats)
      this.#believedUntil = now + this.#beliefMs / 4
    }
  }

  /** The number may be right, or what was waiting had just come: it is right if it is found again. */
  #foundFull(seats: number, now: number): void {
    const isAlike = Math.abs(seats - this.#seats) <= Math.max(1, 2 * SEATS_RISE * seats)
    this.#beliefMs = isAlike ? Math.min(BELIEF_MS_MAX, this.#beliefMs * 2) : BELIEF_MS_MIN
    this.#believedUntil = now + this.#beliefMs
    this.#seats = seats
  }

  /** How many lines of all workers together the server may work on. */
  #ours(load: ServerTraffic, ours: number, others: number, workers: number): number {
    const { running, waiting, cache } = load
    const { waiting_max, cache_max } = this.#terms
    let most = Math.min(this.#comfort(workers) - this.#othersMean, this.#bySeats(others))
    if (cache !== null && cache > 0 && running > 0)
      most = Math.min(most, ours + ((cache_max - cache) * running) / cache)
    if (waiting > waiting_max) most = Math.min(most, ours - 2 * (waiting - waiting_max))
    // Where nobody else has anything, one line does no harm.
    const least = this.#othersMean < 0.5 && waiting <= waiting_max ? 1 : 0
    return Math.max(least, most)
  }

  /** Such that our lines that end make room as fast as the others may need it. */
  #bySeats(others: number): number {
    let most = this.#seats - others - 1
    for (const { ms, deviation } of this.#changes.all) {
      const staying = 1 - ms / this.#residenceMs
      if (staying <= 0) break
      most = Math.min(most, (this.#seats - others - HEADROOM_DEVIATIONS * deviation) / staying)
    }
    return most
  }

  /** The requests in all that do not make steps too long. */
  #comfort(workers: number): number {
    return Math.max(this.#efficient(workers), this.#usual.value)
  }

  #efficient(workers: number): number {
    const line = this.#steps.line
    if (line === null) return (this.#last?.load.running ?? 0) * UNKNOWN_FACTOR + UNKNOWN_MORE * workers
    const { baseMs, perRequestMs } = line
    const lone = (baseMs * (1 / EMPTY_STEP_MIN - 1)) / perRequestMs
    const full = this.#full()
    if (full === Number.POSITIVE_INFINITY) return lone
    const goal = (THROUGHPUT_SHARE * full) / (baseMs + perRequestMs * full)
    const used = (goal * baseMs) / (1 - goal * perRequestMs)
    const stepMs = (requests: number): number => baseMs + perRequestMs * requests
    return Math.min(lone, stepMs(full) <= FULL_STEP_MAX * stepMs(used) ? full : used)
  }

  /** How many requests the server can work on at once, as far as that is known. */
  #full(): number {
    const { cache = null, running = 0 } = this.#last?.load ?? {}
    const byCache =
      cache !== null && cache > 0.05 ? (this.#terms.cache_max * running) / cache : Number.POSITIVE_INFINITY
    return Math.min(this.#seats, byCache)
  }

  /** For tests and benchmarks. */
  get state() {
    const seen = this.#changes.all.map(({ ms, deviation }) => [ms, deviation])
    const usual = this.#usual.value
    return { share: this.#share, seats: this.#seats, usual, line: this.#steps.line, seen }
  }
}
