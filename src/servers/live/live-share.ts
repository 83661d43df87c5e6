// Computes the live share: how many lines may be in flight at a model server with live traffic without delaying live
// requests. The server's metrics are read twice a second. They bound the requests that it may run in all:
//
// - by its concurrency slots and its cache. Some of both stay free: as much as live requests have lately taken within
//   the time that lines take to make room, by the deviation of their number over that time;
// - by the length of its steps at the usual peak of live traffic, since longer steps delay every first token. A line
//   counts for as many live requests as it lengthens a step more. Before the first peak, most of the server's capacity
//   counts as the peak; a server with little live traffic gets a modest number.
//
// The live share is what live requests leave of that bound. It shrinks at once and grows step by step, since a burst of
// prompts delays live requests too. Several workers each adjust by equal parts of the room that they see. A server
// without metrics is judged by the time that its answers take for each token.
import type { ServerTraffic } from '../../backends/backend.ts'
import type { LiveConfig } from '../../config/config.ts'
import { Changes, LiveLevel, Slots, type StepLine, StepModel } from './server-model.ts'

export type LiveTerms = Pick<LiveConfig, 'waiting_max' | 'cache_max'>

/** The lines in flight at the server at the time of a reading, and their senders. */
interface OwnLoad {
  inFlight: number
  /** The lines of the other workers. */
  others: number
  /** Workers that may send there, this one included. */
  workers: number
}

/** The number of lines that may start at once. */
const START = 2
/** The rise of the share per second: this part of the requests that the server ends, and at least so many lines. */
const RISE = 0.25
const RISE_MIN_PER_S = 1
/** The assumed time of a request until one of our lines was answered. */
const RESIDENCE_MS = 5_000
/** The bound of requests at a server of unknown speed: this multiple of the running requests, and so many more. */
const UNKNOWN_FACTOR = 1.3
const UNKNOWN_MORE = 2
/** The share of time for which live traffic stays below its usual peak. */
const PEAK_SHARE = 0.84
/** The capacity assumed before the first peak: a peak at this share of full throughput, and so many slots. */
const PEAK_THROUGHPUT = 0.85
const SLOTS_ASSUMED = 256
/** The multiple of an empty step that lines may always reach, on half of the slots. */
const STEP_FACTOR = 1.6
/**
 * The share of the time from which on a server is crowded: live requests alone want more than all slots, and their first
 * tokens wait for slots as it is.
 */
const CROWDED_SHARE = 0.02
/** The value of `PEAK_SHARE` at a crowded server. */
const CROWDED_PEAK_SHARE = 0.99
/** The slots left free for more live requests, in standard deviations of their changes. */
const HEADROOM_DEVIATIONS = 4
/** The value of `HEADROOM_DEVIATIONS` at a crowded server, where live requests wait for slots already. */
const CROWDED_HEADROOM_DEVIATIONS = 2
/** The factor of the headroom where live requests alone nearly fill the server: there, a queue lasts. */
const NEARLY_FULL_FACTOR = 1.7
/** The shares of the server that live requests fill between which that factor grows from one. */
const NEARLY_FULL = [0.5, 0.8] as const
/** The limit of an expected fall of live traffic, in deviations: a burst looks like chance at first. */
const FALL_DEVIATIONS_MAX = 0.5
/** The share of the cache that requests may fill before some are preempted, as they grow. */
const CACHE_FULL = 0.95
/** The ignored difference between a line's and a live request's effect, as a part of an empty step at the peak. */
const STEP_TOLERANCE = 0.1
/** The most live requests that a line counts for; its inverse is the least. */
const WEIGHT_MAX = 4
/** The age in ms of a reading when lines act on it: half the interval between readings, and the time to react. */
const STALE_MS = 300
/** The share of the cache in use below which it does not show the size of a request. */
const CACHE_KNOWN = 0.05
/** The greatest difference of the requests at two readings that are compared, as a part of their mean. */
const STEADY = 0.3
/** The longest time of a token on a server without metrics, as a multiple of the fastest. */
const SLOWER_MAX = 1.8
/** The part of the lines in flight to which the share shrinks when they take longer. */
const LOWER_FACTOR = 0.7
/** The time in ms for which a server that has shown metrics, and shows none now, gets no more lines than it has. */
const SILENT_MS = 10_000
/** The factor by which the fastest time of a token grows at each reading, so that a change of the server is noticed. */
const FORGETTING = 1.0003
/** The longest time of an answer, and the most tokens per millisecond, that a server can reach. */
const ANSWER_MS_MAX = 24 * 3_600_000
const TOKENS_PER_MS_MAX = 20

interface Reading {
  load: ServerTraffic
  /** Requests of others, and all workers' lines. */
  others: number
  ours: number
  at: number
  /** The age of the reading when lines act on it. */
  staleMs: number
}

export class LiveShare {
  readonly #terms: LiveTerms
  readonly #steps = new StepModel()
  #line: StepLine | null = null
  readonly #others = new LiveLevel()
  readonly #changes = new Changes()
  readonly #slots = new Slots()
  /** The live share; 0 before the first reading. */
  #share = 0
  #target = 0
  #steppedAt: number | null = null
  #last: Reading | null = null
  /** The time in ms that a request takes. */
  #residenceMs = RESIDENCE_MS
  /** The answers to our lines since the last reading. */
  #answers = { ms: 0, tokens: 0 }
  /** The fastest recent time of a token in those answers. */
  #fastestMs = Number.POSITIVE_INFINITY
  /** The times of a token at the last three readings, so that one wrong value is not taken for the fastest. */
  #tokenMs: readonly number[] = []

  constructor(terms: LiveTerms) {
    this.#terms = terms
  }

  /** The number of lines that may be in flight now. */
  places(now: number): number {
    this.#step(now)
    return Math.max(0, Math.floor(this.#share))
  }

  /** The result of the last call of `places`. */
  get current(): number {
    return Math.floor(this.#share)
  }

  /** The share of the server's requests that is left for lines; null without a reading. */
  get partForLines(): number | null {
    if (this.#last === null) return null
    const { others } = this.#last
    return others === 0 ? 1 : this.current / (this.current + others)
  }

  /** Applies a reading; an unconfirmed one is not learned. `then`: the lines in flight at the time of `load`. */
  read(
    load: ServerTraffic,
    own: OwnLoad,
    now: number,
    isConfirmed = true,
    then: Pick<OwnLoad, 'inFlight' | 'others'> = own,
  ): void {
    this.#step(now)
    const ours = then.inFlight + then.others
    const others = Math.max(0, load.running + load.waiting + (load.deferred ?? 0) - ours)
    const at = load.at ?? now
    // Until the next one comes, it grows older by the time between two.
    const staleMs = load.at === undefined ? STALE_MS : now - at + Math.max(0, at - (this.#last?.at ?? at))
    const reading = { load, others, ours, at, staleMs }
    if (isConfirmed) {
      this.#learn(reading)
      this.#last = reading
    }
    // A burst that is not learned yet counts as it was read.
    const mean = Math.max(this.#others.mean, isConfirmed ? 0 : others)
    const room = this.#most(reading, own.workers, mean) - ours
    const part = room > 0 ? room / own.workers : ours === 0 ? 0 : (room * then.inFlight) / ours
    this.#target = Math.max(0, then.inFlight + part)
    this.#setShare(own)
  }

  /** Adjusts the share without a reading, by the time of tokens of our lines. */
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
    this.#tokenMs = [...this.#tokenMs.slice(-2), tokenMs]
    this.#fastestMs = Math.min(medianOf(this.#tokenMs), this.#fastestMs * FORGETTING)
    if (tokenMs > SLOWER_MAX * this.#fastestMs) this.#target = Math.max(1, own.inFlight * LOWER_FACTOR)
    else this.#target = own.inFlight * UNKNOWN_FACTOR + 1
    this.#setShare(own)
  }

  /** Records the answer to one of our lines, unless no server could have given it. */
  answered(tookMs: number, tokens: number): void {
    if (tookMs < 0 || tookMs > ANSWER_MS_MAX || tokens > TOKENS_PER_MS_MAX * (tookMs + 1)) return
    this.#residenceMs += 0.05 * (tookMs - this.#residenceMs)
    this.#answers.ms += tookMs
    this.#answers.tokens += tokens
  }

  /** Bounds the rise of the share: unused slots do not add up. */
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

  #learn(reading: Reading): void {
    const { load, others, at } = reading
    const last = this.#last
    this.#others.add(others, last === null ? 0 : at - last.at)
    this.#changes.add(others, this.#others.mean, at)
    this.#slots.add(load.running, load.waiting > this.#terms.waiting_max, at)
    if (last === null) return
    const ms = at - last.at
    const mean = (load.running + last.load.running) / 2
    const steps = stepsBetween(last.load, load, mean)
    if (steps <= 0 || Math.abs(load.running - last.load.running) >= STEADY * mean) return
    const ours = (runningOurs(reading) + runningOurs(last)) / 2
    this.#steps.add(mean - ours, ours, ms / steps, ms)
    this.#line = this.#steps.line
  }

  /** The number of lines of all workers that the server may work on. */
  #most(reading: Reading, workers: number, mean: number): number {
    const { load, ours } = reading
    const { running, waiting, cache } = load
    const { waiting_max, cache_max } = this.#terms
    let most = Math.min(this.#bySteps(running, workers, mean), this.#byRoom(reading, mean))
    if (cache !== null && cache > 0 && running > 0)
      most = Math.min(most, ours + ((cache_max - cache) * running) / cache)
    if (waiting > waiting_max) most = Math.min(most, ours - 2 * (waiting - waiting_max))
    // Where nobody else has anything, one line does no harm.
    const least = mean < 0.5 && waiting <= waiting_max ? 1 : 0
    return Math.max(least, most)
  }

  /** The most lines that can make room, by ending, as fast as live traffic may need it. */
  #byRoom({ load: { cache, running }, others, staleMs }: Reading, mean: number): number {
    const byCache =
      cache !== null && cache > CACHE_KNOWN ? (CACHE_FULL * running) / cache : Number.POSITIVE_INFINITY
    const full = Math.min(this.#slots.count, byCache)
    const room = full - others
    const usual = this.#isCrowded ? CROWDED_HEADROOM_DEVIATIONS : HEADROOM_DEVIATIONS
    const [least, all] = NEARLY_FULL
    const nearness = Math.min(1, Math.max(0, (mean / full - least) / (all - least)))
    const deviations = usual * (1 + (NEARLY_FULL_FACTOR - 1) * nearness)
    let most = room - 1
    for (const { ms, rise, deviation } of this.#changes.ahead(others, mean)) {
      const staying = 1 - Math.max(0, ms - staleMs) / this.#residenceMs
      if (staying <= 0) break
      const ahead = Math.max(rise, -FALL_DEVIATIONS_MAX * deviation) + deviations * deviation
      most = Math.min(most, (room - ahead) / staying)
    }
    return most
  }

  /** The most lines at which steps do not get too long. */
  #bySteps(running: number, workers: number, mean: number): number {
    if (this.#line === null) return running * UNKNOWN_FACTOR + UNKNOWN_MORE * workers - mean
    const peak = this.#others.quantile(this.#isCrowded ? CROWDED_PEAK_SHARE : PEAK_SHARE)
    return (Math.max(peak, this.#assumedPeak(this.#line)) - mean) / this.#weight(this.#line)
  }

  /** The lowest value that the peak of live traffic is assumed to have. */
  #assumedPeak({ baseMs, perOtherMs }: StepLine): number {
    if (this.#others.hasPassedPeak)
      return Math.min(((STEP_FACTOR - 1) * baseMs) / perOtherMs, this.#slots.count / 2)
    const full = this.#full()
    const perMs = (PEAK_THROUGHPUT * full) / (baseMs + perOtherMs * full)
    return (perMs * baseMs) / (1 - perMs * perOtherMs)
  }

  /** The number of live requests that lengthen a step as much as one line. */
  #weight({ baseMs, perOtherMs, perLineMs }: StepLine): number {
    const toleranceMs = (STEP_TOLERANCE * baseMs) / Math.max(1, this.#others.quantile(PEAK_SHARE))
    const weight = (perLineMs + toleranceMs) / (perOtherMs + toleranceMs)
    return Math.min(WEIGHT_MAX, Math.max(1 / WEIGHT_MAX, weight))
  }

  get #isCrowded(): boolean {
    return this.#others.shareAbove(this.#slots.count) > CROWDED_SHARE
  }

  /** The number of requests that the server can work on at once, as far as it is known. */
  #full(): number {
    const { cache = null, running = 0 } = this.#last?.load ?? {}
    const byCache =
      cache !== null && cache > CACHE_KNOWN
        ? (this.#terms.cache_max * running) / cache
        : Number.POSITIVE_INFINITY
    const { count } = this.#slots
    return Math.min(count === Number.POSITIVE_INFINITY ? Math.max(SLOTS_ASSUMED, running) : count, byCache)
  }

  /** The learned values, for benchmarks. */
  get state() {
    const peak = this.#others.quantile(PEAK_SHARE)
    const { hasPassedPeak } = this.#others
    return { share: this.#share, seats: this.#slots.count, peak, hasPassedPeak, line: this.#line }
  }
}

function medianOf(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[values.length >> 1]!
}

/** The steps between two readings with `running` requests on average, each with a token of all; 0: unknown. */
function stepsBetween(last: ServerTraffic, load: ServerTraffic, running: number): number {
  if (load.steps !== null && last.steps !== null) return load.steps - last.steps
  return load.tokens === null || last.tokens === null ? 0 : (load.tokens - last.tokens) / running
}

/** The number of running lines: their share of running requests is assumed to be their share of all requests. */
function runningOurs({ load: { running }, others, ours }: Reading): number {
  return ours === 0 ? 0 : (running * ours) / (others + ours)
}
