// Batch work beside live traffic on one model server, in virtual time: a day of Poisson arrivals at 20 to 90 % of what
// the simulated engine can answer, without batch work, with it as it is without `live`, with the share that a
// worker keeps to, and with a scheduler that knows everything. That one sees each arrival and each end at
// once, knows what live traffic will do while its lines are under way, and has the best bound of all that were tried.
//
//   node bench/live.ts [--day-s 600] [--days 2] [--engine h100,seats,cache,slow] [--policy fcfs] [--seed 1] [--trace]
import { parseArgs } from 'node:util'
import type { EngineOptions } from '../src/backends/sim/engine/engine-settings.ts'
import { ConcurrencyLimit, type Sent } from '../src/dispatch/send/concurrency.ts'
import { LiveShare } from '../src/dispatch/send/live-share.ts'
import { type BatchSide, capacityOf, Day, type DayResult, SAMPLE_MS, type Workload } from './live-day.ts'

const { values } = parseArgs({
  options: {
    'day-s': { type: 'string', default: '600' },
    days: { type: 'string', default: '2' },
    engine: { type: 'string', default: 'h100,seats,cache,slow' },
    policy: { type: 'string', default: 'fcfs' },
    seed: { type: 'string', default: '1' },
    'poll-ms': { type: 'string', default: '500' },
    trace: { type: 'boolean', default: false },
  },
})

const GOAL = { p99: 1.1, tokens: 0.85 }
/** As the worker's loops. */
const RISE_MS = 200
const READ_MS = Number(values['poll-ms'])

/** What bounds each: the time of a step; seats; the KV cache; a large model on one server. */
const ENGINES: Record<string, EngineOptions> = {
  h100: {},
  seats: { max_num_seqs: 64 },
  cache: { kv_blocks: 6_000 },
  slow: { step_ms: 25, seq_ms: 0.1, prefill_token_ms: 0.15, kv_blocks: 15_000 },
  flat: { max_num_seqs: 48, step_ms: 20, seq_ms: 0.01, prefill_token_ms: 0.002 },
}
const WORK: Workload = {
  live: { prompt: 512, output: 200, priority: 0 },
  batch: { prompt: 512, output: 200, priority: 10 },
}
const lengthMs = Number(values['day-s']) * 1000
const days = Number(values.days)

for (const name of values.engine.split(',')) {
  const options = ENGINES[name]
  if (options === undefined) throw new Error(`no engine is called ${name}; there are ${Object.keys(ENGINES)}`)
  measure(name, { ...options, scheduling_policy: values.policy === 'priority' ? 'priority' : 'fcfs' })
}

function measure(name: string, engine: EngineOptions): void {
  const capacity = capacityOf(engine, WORK)
  const run = (batch: BatchSide | null, day = days): DayResult =>
    new Day({ engine, work: WORK, lengthMs, capacity, seed: Number(values.seed) + day, batch }).run()
  const alone = run(null)
  const p99 = (of: DayResult): number => of.p99 / alone.p99
  const best = omniscient(engine, capacity, alone, run)
  const share = new LiveShare({ waiting_max: 0, cache_max: 0.85 })
  const shared: DayResult[] = []
  for (let day = 1; day <= days; day++) shared.push(run(keepingToShare(share, (day - 1) * lengthMs), day))
  const first = days === 1 ? alone : run(null, 1)
  const rows = {
    'live traffic alone': alone,
    'as without live': run(asWithoutLive()),
    'live, first day': shared[0]!,
    [`live, day ${days}`]: shared.at(-1)!,
    omniscient: best,
  }
  const spare = (capacity * WORK.live.output * lengthMs) / 1000 - alone.liveTokens
  console.log(`\n${name}: ${JSON.stringify(engine)}, ${capacity.toFixed(1)} live requests/s at 100 %`)
  const table = Object.entries(rows).map(([row, of]) => ({
    '': row,
    'live p50 ms': round(of.p50, 1),
    'p99 ms': round(of.p99, 1),
    'p99 ÷ alone': round(of === shared[0] ? of.p99 / first.p99 : p99(of), 3),
    'batch tokens': of.batchTokens,
    '÷ omniscient': round(of.batchTokens / best.batchTokens, 3),
    '÷ all that is spare': round(of.batchTokens / spare, 3),
    preemptions: of.preemptions,
  }))
  console.table(table)
  const result = { bench: 'live', engine: name, goal: GOAL, day_s: lengthMs / 1000, rows: table }
  console.log(JSON.stringify(result))
  if (values.trace)
    for (const [row, of] of Object.entries(rows))
      console.log(
        row.padEnd(20),
        of.parts
          .map((p) => `${p.live.toFixed(0)}+${p.own.toFixed(0)}:${p.p50.toFixed(0)}/${p.p99.toFixed(0)}`)
          .join(' '),
      )
}

/** The real adaptive limit, which does not know of others. */
function asWithoutLive(): BatchSide {
  const limit = new ConcurrencyLimit({ max: 1024 })
  const sent: Sent[] = []
  const send = (day: Day): void => {
    while (limit.inFlight < limit.limit) {
      sent.push(limit.acquire(day.now))
      day.send()
    }
  }
  const side: BatchSide = {
    start(day) {
      send(day)
      side.answered = (sentAt, _, now) => {
        const at = sent.findIndex((one) => one.at === sentAt)
        limit.onAnswered(sent.splice(at, 1)[0]!, now)
        send(day)
      }
    },
    answered() {},
  }
  return side
}

/** The real share, with the worker's loops. */
function keepingToShare(share: LiveShare, offsetMs: number): BatchSide {
  const side: BatchSide = {
    start(day) {
      const now = (): number => offsetMs + day.now
      const send = (): void => {
        while (day.inFlight < share.places(now())) day.send()
      }
      let tokens = 0
      const read = (): void => {
        const { running, waiting, kv_usage, generation_tokens } = day.engine.stats
        tokens = generation_tokens
        share.read(
          { running, waiting, cache: kv_usage, tokens },
          { inFlight: day.inFlight, others: 0, workers: 1 },
          now(),
        )
        send()
        day.after(READ_MS, read)
      }
      const rise = (): void => {
        send()
        day.after(RISE_MS, rise)
      }
      read()
      rise()
      let shownAt = 0
      side.answered = (sentAt, count, at) => {
        share.answered(at - sentAt, count)
        send()
        if (!values.trace || at - shownAt < lengthMs / 40) return
        shownAt = at
        const { line, seats, usual } = share.state
        console.log(
          `${(at / 1000).toFixed(0)} s: live ${day.liveInFlight}, own ${day.inFlight} of ${share.current}, seats ${seats}, ` +
            `usual ${usual.toFixed(0)}, step ${line?.baseMs.toFixed(1)} + ${line?.perRequestMs.toFixed(3)}·n, ${tokens} tokens`,
        )
      }
    },
    answered() {},
  }
  return side
}

/** The most batch tokens that any bound of requests in all allows with a p99 within the goal. */
function omniscient(
  { max_num_seqs = 256 }: EngineOptions,
  capacity: number,
  alone: DayResult,
  run: (batch: BatchSide) => DayResult,
): DayResult {
  let best = run(knowingAll(0, 0, capacity, alone))
  const isAllowed = (of: DayResult): boolean => of.p99 <= GOAL.p99 * alone.p99
  for (const aheadMs of [0, 500, 1_000, 2_000, 4_000]) {
    let low = 0
    let high = max_num_seqs * 1.2
    while (high - low > max_num_seqs / 50) {
      const bound = (low + high) / 2
      const result = run(knowingAll(bound, aheadMs, capacity, alone))
      if (isAllowed(result)) low = bound
      else high = bound
      if (isAllowed(result) && result.batchTokens > best.batchTokens) best = result
    }
  }
  return best
}

/** Fills up to the bound whatever live traffic will leave within the next so many milliseconds. */
function knowingAll(bound: number, aheadMs: number, capacity: number, alone: DayResult): BatchSide {
  const ahead = Math.floor(aheadMs / SAMPLE_MS)
  const peaks = slidingMax(alone.liveInFlight, ahead)
  return {
    start(day) {
      const look = (): void => {
        const live = Math.max(day.liveInFlight, peaks[Math.floor(day.now / SAMPLE_MS)] ?? 0)
        if (day.inFlight + live < bound && day.engine.stats.kv_usage < 0.9) day.send()
        day.after(1000 / capacity, look)
      }
      look()
    },
    answered() {},
  }
}

/** Of the values from each place to so many further. */
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

function round(value: number, digits: number): number {
  return Number(value.toFixed(digits))
}
