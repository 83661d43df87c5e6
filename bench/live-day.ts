// A day of live traffic on the simulated engine, in virtual time, with batch work beside it: Poisson arrivals whose rate
// goes from a share of what the engine can answer to a larger one and back, as a day's does.

import { Engine, type EngineOptions, engineSettings } from './engine/engine.ts'

export interface Workload {
  /** Tokens of a request: prompt and answer, each from half to one and a half of the mean. */
  live: { prompt: number; output: number; priority: number }
  batch: { prompt: number; output: number; priority: number }
}

/** The scheduler of the batch work: its readings and its actions. */
export interface BatchSide {
  /** Called first, and once. */
  start(day: Day): void
  /** A line was answered. */
  answered(sentAt: number, tokens: number, now: number): void
}

export interface DayResult {
  /** Tokens of answers to lines that were answered within the day. */
  batchTokens: number
  preemptions: number
  /** Times to the first token of live requests, in ms. */
  p50: number
  p99: number
  /** How many live requests were in the engine, every 10 ms. */
  liveInFlight: Uint16Array
}

export const SAMPLE_MS = 10

export class Day {
  readonly engine: Engine
  readonly lengthMs: number
  now = 0
  liveInFlight = 0
  inFlight = 0
  readonly #work: Workload
  readonly #random: () => number
  readonly #batchRandom: () => number
  readonly #timers: { at: number; fn: () => void }[] = []
  readonly #rate: (now: number) => number
  readonly #nextArrival: (from: number) => number
  readonly #batch: BatchSide | null
  readonly #ttfts: number[] = []
  #batchTokens = 0
  readonly #samples: Uint16Array

  constructor(options: {
    engine: EngineOptions
    work: Workload
    lengthMs: number
    /** Live requests a second at 100 % load. */
    capacity: number
    seed: number
    batch: BatchSide | null
    /** The least and the most of the day, 0 to 1. */
    load?: readonly [number, number]
  }) {
    const { lengthMs, capacity, seed } = options
    const load = options.load ?? [0.2, 0.9]
    this.engine = new Engine(engineSettings(options.engine))
    this.lengthMs = lengthMs
    this.#work = options.work
    this.#random = randomOf(seed)
    this.#batchRandom = randomOf(seed + 7)
    this.#batch = options.batch
    this.#rate = (now) => rateAt(now, load, capacity, lengthMs)
    this.#nextArrival = arrivals(this.#rate, (capacity / 1000) * load[1], this.#random)
    this.#samples = new Uint16Array(Math.ceil(lengthMs / SAMPLE_MS) + 1)
  }

  /** Live requests that arrive in a second just now, on average. */
  get arrivalsPerS(): number {
    return 1000 * this.#rate(this.now)
  }

  after(ms: number, fn: () => void): void {
    const at = this.now + ms
    let i = this.#timers.length
    while (i > 0 && this.#timers[i - 1]!.at < at) i--
    this.#timers.splice(i, 0, { at, fn })
  }

  /** Sends a line of the batch. */
  send(): void {
    const { prompt, output, priority } = this.#work.batch
    const sentAt = this.now
    const tokens = around(output, this.#batchRandom)
    this.inFlight++
    this.engine.submit(
      {
        prompt_tokens: around(prompt, this.#batchRandom),
        output_tokens: tokens,
        priority,
        keys: [],
        onDone: (now) => {
          this.now = now
          this.inFlight--
          if (now <= this.lengthMs) this.#batchTokens += tokens
          this.#batch?.answered(sentAt, tokens, now)
        },
      },
      this.now,
    )
  }

  run(): DayResult {
    this.#batch?.start(this)
    let arrival = this.#nextArrival(0)
    let sampled = 0
    while (this.now < this.lengthMs) {
      const timer = this.#timers.at(-1)?.at ?? Number.POSITIVE_INFINITY
      const step = this.engine.nextAt ?? Number.POSITIVE_INFINITY
      const next = Math.min(arrival, timer, step)
      while (sampled * SAMPLE_MS <= Math.min(next, this.lengthMs))
        this.#samples[sampled++] = this.liveInFlight
      this.now = next
      if (step <= next) this.engine.advance(next)
      else if (timer <= next) this.#timers.pop()!.fn()
      else {
        this.#arrive()
        arrival = this.#nextArrival(this.now)
      }
    }
    return {
      batchTokens: this.#batchTokens,
      preemptions: this.engine.stats.preemptions,
      p50: quantile(this.#ttfts, 0.5),
      p99: quantile(this.#ttfts, 0.99),
      liveInFlight: this.#samples,
    }
  }

  #arrive(): void {
    const { prompt, output, priority } = this.#work.live
    const at = this.now
    const output_tokens = around(output, this.#random)
    this.liveInFlight++
    this.engine.submit(
      {
        prompt_tokens: around(prompt, this.#random),
        output_tokens,
        priority,
        keys: [],
        onToken: (count, now) => {
          if (count === 1) this.#ttfts.push(now - at)
        },
        onDone: () => {
          this.liveInFlight--
        },
      },
      at,
    )
  }
}

/** Live requests that arrive in a millisecond: the load goes from its least to its most at noon, and back. */
export function rateAt(
  now: number,
  [low, high]: readonly [number, number],
  capacity: number,
  lengthMs: number,
): number {
  return (capacity / 1000) * (low + ((high - low) * (1 - Math.cos((2 * Math.PI * now) / lengthMs))) / 2)
}

/** The time of the next arrival after one, by thinning: candidates at the highest rate, of which the rate's share counts. */
export function arrivals(
  rate: (now: number) => number,
  rateMax: number,
  random: () => number,
): (from: number) => number {
  return (from) => {
    let at = from
    do at -= Math.log(1 - random()) / rateMax
    while (random() * rateMax > rate(at))
    return at
  }
}

/** Live requests a second that the engine answers when it never runs out of them. */
export function capacityOf(engine: EngineOptions, work: Workload): number {
  const seats = engine.max_num_seqs ?? 256
  const warm = 3 * seats
  const measured = 6 * seats
  let answered = 0
  let since = 0
  let rate: number | null = null
  const side: BatchSide = {
    start: (day) => {
      const fill = (): void => {
        while (day.inFlight < 2 * seats) day.send()
      }
      fill()
      side.answered = (_, __, now) => {
        answered++
        if (answered === warm) since = now
        if (answered < warm + measured) fill()
        else rate ??= (1000 * measured) / (now - since)
      }
    },
    answered: () => {},
  }
  const options = { engine, work: { ...work, batch: work.live }, capacity: 1e-9, seed: 3, batch: side }
  for (let lengthMs = 60_000; rate === null; lengthMs *= 4) {
    answered = 0
    new Day({ ...options, lengthMs }).run()
  }
  return rate
}

export function quantile(values: ArrayLike<number>, q: number): number {
  const sorted = Float64Array.from(values).sort()
  return sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))] ?? 0
}

export function around(mean: number, random: () => number): number {
  return Math.max(1, Math.round(mean * (0.5 + random())))
}

/** mulberry32, in [0, 1). */
export function randomOf(seed: number): () => number {
  let state = seed | 0
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}
