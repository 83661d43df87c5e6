// How many lines may be in flight at a model server that answers other requests too, such that those do not wait. What
// the server says of itself is read about once a second; from it follow the requests that it may work on in all:
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
/** While too little is known of the server's speed, it may work on so many times as many requests. */
const UNKNOWN_FACTOR = 1.3
const UNKNOWN_MIN = 4
/** At least so much of a step's time must be what a step takes with next to no requests. */
const EMPTY_STEP_MIN = 0.4
/** How much of the throughput of a full server is used, and how much longer steps may then be. */
const THROUGHPUT_SHARE = 0.86
const STEP_SLACK = 1.03
/** The others' usual level is the one that they stay below for so much of the time. */
const USUAL_SHARE = 0.8
/** How much of the mean of the others' requests the last reading is. */
const SMOOTHING = 0.3
/** Seats left free for what the others may add, in standard deviations of what they did. */
const HEADROOM_DEVIATIONS = 1.5
/** Without metrics, tokens may take so many times as long as at best. */
const SLOWER_MAX = 1.8
const LOWER_FACTOR = 0.7
/** A server that has shown metrics and shows none now gets no more lines than it has, for so long. */
const SILENT_MS = 10_000
/** How much slower the fastest is thought each time, so that a change of the server is noticed. */
const FORGETTING = 1.0003
/** After so long, the number of seats is looked for anew. */
const SEATS_KNOWN_MS = 300_000

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
  #seatsSeenAt = 0
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
    const room = this.#ours(load, ours, others) - ours
    const part = room > 0 ? room / own.workers : ours === 0 ? 0 : (room * own.inFlight) / ours
    this.#target = Math.max(0, own.inFlight + part)
    this.#share = Math.min(this.#target, Math.max(this.#share, START))
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
    this.#share = Math.min(this.#target, Math.max(this.#share, START))
  }

  /** One of our lines was answered. */
  answered(tookMs: number, tokens: number): void {
    this.#residenceMs += 0.05 * (tookMs - this.#residenceMs)
    this.#answers.ms += tookMs
    this.#answers.tokens += tokens
  }

  #step(now: number): void {
    const s = Math.min(1, (now - (this.#steppedAt ?? now)) / 1_000)
    this.#steppedAt = now
    if (this.#share >= this.#target) return
    const { running = 0 } = this.#last?.load ?? {}
    const rise = Math.max(RISE_MIN_PER_S, (RISE * running * 1_000) / this.#residenceMs) * s
    this.#share = Math.min(this.#target, this.#share + rise)
  }

  #learn(load: ServerTraffic, others: number, now: number): void {
    const { running, waiting, tokens } = load
    const last = this.#last
    this.#changes.add(others, now)
    if (last === null) this.#othersMean = others
    else if (now > last.at) {
      const ms = now - last.at
      this.#usual.add(others, ms)
      this.#othersMean += SMOOTHING * (others - this.#othersMean)
      const generated = tokens === null || last.load.tokens === null ? 0 : tokens - last.load.tokens
      const mean = (running + last.load.running) / 2
      if (generated > 0 && Math.abs(running - last.load.running) < 0.3 * mean)
        this.#steps.add(mean, (ms * mean) / generated)
    }
    if (waiting > this.#terms.waiting_max) {
      this.#seats = Math.max(1, running)
      this.#seatsSeenAt = now
    } else if (running > this.#seats) this.#seats = running
    else if (now - this.#seatsSeenAt > SEATS_KNOWN_MS) this.#seats = Number.POSITIVE_INFINITY
  }

  /** How many lines of all workers together the server may work on. */
  #ours({ running, waiting, cache }: ServerTraffic, ours: number, others: number): number {
    const { waiting_max, cache_max } = this.#terms
    let most = Math.min(this.#comfort() - this.#othersMean, this.#bySeats(others))
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
  #comfort(): number {
    return Math.max(this.#efficient(), this.#usual.value)
  }

  #efficient(): number {
    const line = this.#steps.line
    if (line === null) return Math.max(UNKNOWN_MIN, (this.#last?.load.running ?? 0) * UNKNOWN_FACTOR)
    const { baseMs, perRequestMs } = line
    const lone = (baseMs * (1 / EMPTY_STEP_MIN - 1)) / perRequestMs
    const full = this.#full()
    if (full === Number.POSITIVE_INFINITY) return lone
    const goal = (THROUGHPUT_SHARE * full) / (baseMs + perRequestMs * full)
    const used = (goal * baseMs) / (1 - goal * perRequestMs)
    const bySlack = (STEP_SLACK * (baseMs + perRequestMs * used) - baseMs) / perRequestMs
    return Math.min(lone, Math.max(used, bySlack))
  }

  /** How many requests the server can work on at once, as far as that is known. */
  #full(): number {
    const { cache = null, running = 0 } = this.#last?.load ?? {}
    const byCache = cache !== null && cache > 0.05 ? running / cache : Number.POSITIVE_INFINITY
    return Math.min(this.#seats, byCache)
  }

  /** For tests and benchmarks. */
  get state() {
    const seen = this.#changes.all.map(({ ms, deviation }) => [ms, deviation])
    const usual = this.#usual.value
    return { share: this.#share, seats: this.#seats, usual, line: this.#steps.line, seen }
  }
}
