// Batch work beside live traffic on one model server, in virtual time: days of Poisson arrivals at 20 to 90 % of what the
// simulated engine can answer, without batch work, with it as it is without `live`, with the share that a worker
// keeps to (`live`), with and without metrics, and with some that have the best bound of all that were tried:
//
// - `knowing all`: sees each arrival and each end at once, and what live traffic will do while its lines are under way;
// - `knowing all, median kept`: the same, if it delays the median of first tokens no more than the share does;
// - `knowing the server`: knows the best bound and the rate of arrivals, but sees no more than a worker does.
//
// A bound counts a line as many times as the lengths of its prompt and answer make it heavier than a live request.
//
//   node bench/live.ts [--day-s 600] [--days 2] [--engine h100,seats,cache,slow] [--draws 20] [--seed 1] [--seeds 4]
//                      [--policy fcfs] [--trace 30]

import { LiveShare } from '../src/servers/live/live-share.ts'
import type { EngineOptions } from './engine/engine.ts'
import { Bench, option, rounded } from './harness.ts'
import {
  type BatchSide,
  capacityOf,
  Day,
  type DayResult,
  quantile,
  randomOf,
  type Workload,
} from './live-day.ts'
import { asWithoutLive, bestKnowingAll, bestKnowingServer, keepingToShare } from './live-sides.ts'

interface LiveCase {
  engine: EngineOptions
  work: Workload
  /** The least and the most of the server's capacity that live traffic takes in a day. */
  load: readonly [number, number]
}

const WORK: Workload = {
  live: { prompt: 512, output: 200, priority: 0 },
  batch: { prompt: 512, output: 200, priority: 10 },
}
const usual = (engine: EngineOptions): LiveCase => ({ engine, work: WORK, load: [0.2, 0.9] })

/** The bound of each case: the time of a step; seats; the KV cache; a large model on one server. */
const CASES: Readonly<Record<string, LiveCase>> = {
  h100: usual({}),
  seats: usual({ max_num_seqs: 64 }),
  cache: usual({ kv_blocks: 6_000 }),
  slow: usual({ step_ms: 25, seq_ms: 0.1, prefill_token_ms: 0.15, kv_blocks: 15_000 }),
}

/** Seats, speed, cache, and lengths of prompts and answers, each over an order of magnitude. */
function drawnCase(seed: number): LiveCase {
  const random = randomOf(seed * 7919)
  const over = (low: number, high: number): number => low * (high / low) ** random()
  const requestOf = (priority: number) => ({
    prompt: Math.round(over(64, 1500)),
    output: Math.round(over(50, 400)),
    priority,
  })
  const max_num_seqs = Math.round(over(24, 384))
  const step_ms = rounded(over(4, 30))
  const seq_ms = rounded(step_ms * over(0.0005, 0.02))
  const prefill_token_ms = rounded(step_ms * over(0.0005, 0.006))
  const work = { live: requestOf(0), batch: requestOf(10) }
  const longest = Math.max(...Object.values(work).map(({ prompt, output }) => prompt + output))
  const kv_blocks = Math.round((max_num_seqs * longest * over(0.4, 3)) / 16)
  const max_num_batched_tokens = random() < 0.5 ? 2048 : 8192
  return {
    engine: { max_num_seqs, max_num_batched_tokens, kv_blocks, step_ms, seq_ms, prefill_token_ms },
    work,
    load: [0.2, 0.9],
  }
}

const GOAL = { p99: 1.1, tokens: 0.85 }
/** The goals for the p99 at these quantiles of all servers that are drawn. */
const DRAWN_GOALS = [
  { name: 'median', share: 0.5, atMost: 1.08 },
  { name: 'upper quartile', share: 0.75, atMost: 1.15 },
  { name: 'worst', share: 1, atMost: 1.3 },
]
const lengthMs = option('day-s', 600) * 1000
const days = option('days', 2)
const engines = option('engine', Object.keys(CASES).join())
const draws = option('draws', 20)
const policy = option('policy', 'fcfs')
const seed = option('seed', 1)
/** So often each engine is measured, with other days: the p99 of one is of chance. The drawn ones are many already. */
const seeds = option('seeds', 4)
const SEEDS_APART = 10
/** How often a day is told. */
const traces = option('trace', 0)
let shownAt = Number.NEGATIVE_INFINITY
await using bench = new Bench('live')
/** The ratios of each engine and day: live p99 ÷ alone, tokens ÷ knowing all, tokens ÷ knowing the server. */
const found = new Map<string, number[][]>()

for (const name of engines.split(',').filter(Boolean)) {
  const one = CASES[name]
  if (one === undefined) throw new Error(`no engine is called ${name}; there are ${Object.keys(CASES)}`)
  const each = Array.from({ length: seeds }, (_, i) => measure(name, one, seed + SEEDS_APART * i))
  const mean = (at: number): number => each.reduce((sum, ratios) => sum + ratios[at]!, 0) / seeds
  bench.figure(`${name}: live p99 to the first token ÷ alone`, mean(0), { atMost: GOAL.p99 })
  bench.figure(`${name}: batch tokens ÷ knowing all`, mean(1), { atLeast: GOAL.tokens })
  bench.figure(`${name}: batch tokens ÷ knowing all, median kept`, mean(3))
}
const drawn = Array.from({ length: draws }, (_, i) => measure(`drawn ${seed + i}`, drawnCase(seed + i), seed))
if (drawn.length > 0) {
  console.table(
    drawn.map(([p99, all, server], i) => ({
      '': `drawn ${seed + i}`,
      'p99 ÷ alone': p99,
      '÷ knowing all': all,
      '÷ knowing the server': server,
    })),
  )
  const p99s = drawn.map(([p99 = 0]) => p99)
  for (const { name, share, atMost } of DRAWN_GOALS)
    bench.figure(`${draws} drawn servers: live p99 ÷ alone, ${name}`, quantile(p99s, share), { atMost })
  const tokens = drawn.map(([, all = 0]) => all)
  bench.figure(`${draws} drawn servers: batch tokens ÷ knowing all, median`, quantile(tokens, 0.5))
}
for (const [row, all] of found) {
  const columns = ['p99 ÷ alone', '÷ knowing all', '÷ knowing the server']
  const within = all.filter(([p99]) => p99! <= GOAL.p99).length
  console.log(`${row}: ${all.length} measured, p99 within the goal on ${within}`)
  console.table(
    columns.map((column, at) => {
      const of = (q: number): number =>
        round(
          quantile(
            all.map((one) => one[at]!),
            q,
          ),
          3,
        )
      return {
        '': column,
        least: of(0),
        quarter: of(0.25),
        half: of(0.5),
        'three quarters': of(0.75),
        most: of(1),
      }
    }),
  )
}

/** The ratios of the last day: live p99 ÷ alone, batch tokens ÷ knowing all and ÷ knowing the server. */
function measure(name: string, { engine: options, work, load }: LiveCase, seed: number): number[] {
  const engine = {
    ...options,
    scheduling_policy: policy === 'priority' ? ('priority' as const) : ('fcfs' as const),
  }
  const capacity = capacityOf(engine, work)
  const run = (batch: BatchSide | null, day = days): DayResult =>
    new Day({ engine, work, load, lengthMs, capacity, seed: seed + day, batch }).run()
  const alone = Array.from({ length: days }, (_, at) => run(null, at + 1))
  const last = alone.at(-1)!
  const share = (metrics: boolean): DayResult[] => {
    const kept = new LiveShare({ waiting_max: 0, cache_max: 0.85 })
    const look = (day: Day): void => trace(kept, day)
    return alone.map((_, at) =>
      run(keepingToShare(kept, at * lengthMs, metrics, metrics ? look : undefined), at + 1),
    )
  }
  const known = { engine, work, capacity, alone: last, p99Most: GOAL.p99, run }
  const all = bestKnowingAll(known)
  const shared = share(true)
  const p50Most = shared.at(-1)!.p50 / last.p50
  const kept = name in CASES ? bestKnowingAll({ ...known, p50Most }) : all
  const server = bestKnowingServer(known)
  const silent = share(false)
  const rows: [string, DayResult, DayResult][] = [
    ['live traffic alone', last, last],
    ['as without live', run(asWithoutLive()), last],
    ...shared.map((of, at): [string, DayResult, DayResult] => [`live, day ${at + 1}`, of, alone[at]!]),
    ['live without metrics', silent.at(-1)!, last],
    ['knowing the server', server, last],
    ['knowing all, median kept', kept, last],
    ['knowing all', all, last],
  ]
  for (const [at, of] of shared.entries()) {
    const row = `live, day ${at + 1}`
    const ratios = [
      of.p99 / alone[at]!.p99,
      of.batchTokens / all.batchTokens,
      of.batchTokens / server.batchTokens,
      of.batchTokens / kept.batchTokens,
    ]
    found.set(row, [...(found.get(row) ?? []), ratios])
  }
  console.log(
    `\n${name}: ${JSON.stringify({ ...engine, ...work, load })}, ${capacity.toFixed(1)} live requests/s at 100 %`,
  )
  const table = rows.map(([row, of, beside]) => ({
    '': row,
    'live p50 ms': round(of.p50, 1),
    'p50 ÷ alone': round(of.p50 / beside.p50, 2),
    'p99 ms': round(of.p99, 1),
    'p99 ÷ alone': round(of.p99 / beside.p99, 3),
    'batch tokens': of.batchTokens,
    '÷ knowing all': round(of.batchTokens / all.batchTokens, 3),
    '÷ knowing the server': round(of.batchTokens / server.batchTokens, 3),
    preemptions: of.preemptions,
  }))
  console.table(table)
  return found
    .get(`live, day ${days}`)!
    .at(-1)!
    .map((ratio) => round(ratio, 3))
}

function trace(share: LiveShare, day: Day): void {
  if (traces === 0 || (day.now >= shownAt && day.now - shownAt < lengthMs / traces)) return
  shownAt = day.now
  const { running, waiting, kv_usage } = day.engine.stats
  console.log(
    `${(day.now / 1000).toFixed(0)} s: live ${day.liveInFlight}, own ${day.inFlight} of ${share.current}; running ${running}, ` +
      `waiting ${waiting}, cache ${kv_usage.toFixed(2)}; ${JSON.stringify(share.state)}`,
  )
}

function round(value: number, digits: number): number {
  return Number(value.toFixed(digits))
}
