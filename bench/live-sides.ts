// How batch work may be sent beside live traffic (bench/live.ts): as without `live`, with the worker's share, by a
// scheduler that knows everything, and by one that knows the server but sees no more of it than the worker does.

import { ConcurrencyLimit, type Sent } from '../src/servers/concurrency.ts'
import type { LiveShare } from '../src/servers/live/live-share.ts'
import { sentAt } from '../test/fakes/slotted-server.ts'
import type { EngineOptions } from './engine/engine.ts'
import { type BatchSide, type Day, type DayResult, SAMPLE_MS, type Workload } from './live-day.ts'

/** The periods of the worker's loops. */
const RISE_MS = 200
export const READ_MS = 500

/** The real adaptive limit, which does not know of others. */
export function asWithoutLive(): BatchSide {
  const limit = new ConcurrencyLimit({ max: 1024 })
  const sent: Sent[] = []
  const send = (day: Day): void => {
    while (limit.inFlight < limit.limit) {
      const call = sentAt(day.now)
      limit.acquire(call)
      sent.push(call)
      day.send()
    }
  }
  const side: BatchSide = {
    start(day) {
      send(day)
      side.answered = (sentAt, _, now) => {
        const at = sent.findIndex((one) => one.sentAt === sentAt)
        limit.onAnswered(sent.splice(at, 1)[0]!, now)
        send(day)
      }
    },
    answered() {},
  }
  return side
}

/** The real share, with the worker's loops. `metrics`: whether the server shows any. */
export function keepingToShare(
  share: LiveShare,
  offsetMs: number,
  metrics: boolean,
  look: (day: Day) => void = () => {},
): BatchSide {
  const side: BatchSide = {
    start(day) {
      const now = (): number => offsetMs + day.now
      const send = (): void => {
        while (day.inFlight < share.places(now())) day.send()
      }
      const read = (): void => {
        const { running, waiting, kv_usage, generation_tokens } = day.engine.stats
        const own = { inFlight: day.inFlight, others: 0, workers: 1 }
        const load = { running, waiting, cache: kv_usage, tokens: generation_tokens, steps: null }
        if (metrics) share.read(load, own, now())
        else share.unread(own, now())
        send()
        look(day)
        day.after(READ_MS, read)
      }
      const rise = (): void => {
        send()
        day.after(RISE_MS, rise)
      }
      read()
      rise()
      side.answered = (sentAt, count, at) => {
        share.answered(at - sentAt, count)
        send()
      }
    },
    answered() {},
  }
  return side
}

/** Requests in all, where a line counts as so many. */
interface Bound {
  bound: number
  weight: number
}

/** Fills up to the bound whatever live traffic will leave within the next so many milliseconds. */
function knowingAll(
  { bound, weight }: Bound,
  aheadMs: number,
  capacity: number,
  alone: DayResult,
): BatchSide {
  const peaks = slidingMax(alone.liveInFlight, Math.floor(aheadMs / SAMPLE_MS))
  return {
    start(day) {
      const look = (): void => {
        const live = Math.max(day.liveInFlight, peaks[Math.floor(day.now / SAMPLE_MS)] ?? 0)
        if (weight * day.inFlight + live < bound && day.engine.stats.kv_usage < 0.9) day.send()
        day.after(1000 / capacity, look)
      }
      look()
    },
    answered() {},
  }
}

/**
 * Fills up to the bound what live traffic had left at the last reading, less `deviations` times what it may have come to
 * since: arrivals less ends are about twice the arrivals' variance.
 */
function knowingServer({ bound, weight }: Bound, deviations: number, capacity: number): BatchSide {
  return {
    start(day) {
      let live = 0
      let spare = 0
      const read = (): void => {
        const { running, waiting } = day.engine.stats
        live = Math.max(0, running + waiting - day.inFlight)
        spare = deviations * Math.sqrt((2 * day.arrivalsPerS * READ_MS) / 1000)
        day.after(READ_MS, read)
      }
      const look = (): void => {
        if (weight * day.inFlight + live + spare < bound && day.engine.stats.kv_usage < 0.9) day.send()
        day.after(1000 / capacity, look)
      }
      read()
      look()
    },
    answered() {},
  }
}

const AHEAD_MS = [0, 1_000, 3_000]
const DEVIATIONS = [0, 1.5, 3]
const HALVINGS = 6

export interface KnownDay {
  engine: EngineOptions
  work: Workload
  capacity: number
  /** The same day without batch work. */
  alone: DayResult
  /** How many times as long as that day's the p99 to the first token may be. */
  p99Most: number
  /** The same of the median; absent: any number. */
  p50Most?: number
  run(batch: BatchSide): DayResult
}

/** The most batch tokens of a scheduler that knows all, over weights, seconds ahead and bounds. */
export function bestKnowingAll(day: KnownDay): DayResult {
  const { capacity, alone } = day
  return bestOf(day, AHEAD_MS, (bound, ms) => knowingAll(bound, ms, capacity, alone))
}

/** The same of one that knows the server. */
export function bestKnowingServer(day: KnownDay): DayResult {
  return bestOf(day, DEVIATIONS, (bound, of) => knowingServer(bound, of, day.capacity))
}

function bestOf(
  day: KnownDay,
  choices: readonly number[],
  way: (bound: Bound, choice: number) => BatchSide,
): DayResult {
  let best = day.run(way({ bound: 0, weight: 1 }, choices[0]!))
  for (const weight of weightsOf(day))
    for (const choice of choices) {
      let low = 0
      let high = (day.engine.max_num_seqs ?? 256) * 1.2
      for (let i = 0; i < HALVINGS; i++) {
        const bound = (low + high) / 2
        const result = day.run(way({ bound, weight }, choice))
        const { alone, p99Most, p50Most = Number.POSITIVE_INFINITY } = day
        if (result.p99 > p99Most * alone.p99 || result.p50 > p50Most * alone.p50) high = bound
        else {
          low = bound
          if (result.batchTokens >= best.batchTokens) best = result
        }
      }
    }
  return best
}

/** A line like a live request, and by what it adds to a step. */
function weightsOf({ engine, work }: KnownDay): number[] {
  const perToken = ({ prompt, output }: { prompt: number; output: number }): number =>
    (engine.seq_ms ?? 0.03) + (prompt * (engine.prefill_token_ms ?? 0.02)) / output
  return [...new Set([1, Number((perToken(work.batch) / perToken(work.live)).toFixed(2))])]
}

/** The greatest of the values from each place to so many further. */
function slidingMax(values: Uint16Array, ahead: number): Uint16Array {
  const most = new Uint16Array(values.length)
  const queue: number[] = []
  for (let i = values.length - 1; i >= 0; i--) {
    while (queue.length > 0 && values[queue.at(-1)!]! <= values[i]!) queue.pop()
    queue.push(i)
    if (queue[0]! > i + ahead) queue.shift()
    most[i] = values[queue[0]!]!
  }
  return most
}
