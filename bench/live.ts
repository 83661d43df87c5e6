// Batch work beside live traffic on one model server, in virtual time: days of Poisson arrivals at 20 to 90 % of what the
// simulated engine can answer, without batch work, with it as it is without `live`, with the share that a worker
// keeps to (`live`), with and without metrics, and with two that have the best bound of all that were tried:
//
// - `knowing all`: sees each arrival and each end at once, and what live traffic will do while its lines are under way;
// - `knowing the server`: knows the best bound and the rate of arrivals, but sees no more than a worker does.
//
// A bound counts a line as many times as the lengths of its prompt and answer make it heavier than a live request.
//
//   node bench/live.ts [--day-s 600] [--days 2] [--engine h100,seats,cache,slow] [--draws 12] [--seed 1]
//                      [--policy fcfs] [--trace]
import { parseArgs } from 'node:util'
import { LiveShare } from '../src/dispatch/live/live-share.ts'
import { type BatchSide, capacityOf, Day, type DayResult, quantile } from './live-day.ts'
import { CASES, drawnCase, type LiveCase } from './live-engines.ts'
import { asWithoutLive, keepingToShare, knowingAll, knowingServer } from './live-sides.ts'

const { values } = parseArgs({
  options: {
    'day-s': { type: 'string', default: '600' },
    days: { type: 'string', default: '2' },
    engine: { type: 'string', default: Object.keys(CASES).join() },
    draws: { type: 'string', default: '0' },
    policy: { type: 'string', default: 'fcfs' },
    seed: { type: 'string', default: '1' },
    trace: { type: 'boolean', default: false },
  },
})

const GOAL = { p99: 1.1, tokens: 0.85 }
const AHEAD_MS = [0, 1_000, 3_000]
const DEVIATIONS = [0, 1.5, 3]
const HALVINGS = 6
const lengthMs = Number(values['day-s']) * 1000
const days = Number(values.days)
const seed = Number(values.seed)
/** Of each engine and day: live p99 ÷ alone, tokens ÷ knowing all, tokens ÷ knowing the server. */
const found = new Map<string, number[][]>()

for (const name of values.engine.split(',').filter(Boolean)) {
  const one = CASES[name]
  if (one === undefined) throw new Error(`no engine is called ${name}; there are ${Object.keys(CASES)}`)
  measure(name, one)
}
for (let i = 0; i < Number(values.draws); i++) measure(`drawn ${seed + i}`, drawnCase(seed + i))
for (const [row, all] of found) {
  const columns = ['p99 ÷ alone', '÷ knowing all', '÷ knowing the server']
  const within = all.filter(([p99]) => p99! <= GOAL.p99).length
  console.log(`${row}: ${all.length} engines, p99 within the goal on ${within}`)
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

function measure(name: string, { engine: options, work, load }: LiveCase): void {
  const engine = {
    ...options,
    scheduling_policy: values.policy === 'priority' ? ('priority' as const) : ('fcfs' as const),
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
  const perToken = ({ prompt, output }: { prompt: number; output: number }): number =>
    (engine.seq_ms ?? 0.03) + (prompt * (engine.prefill_token_ms ?? 0.02)) / output
  const weights = [...new Set([1, round(perToken(work.batch) / perToken(work.live), 2)])]
  const most = engine.max_num_seqs ?? 256
  const bestOf = (ways: readonly ((bound: number) => BatchSide)[]): DayResult =>
    ways.reduce((best, way) => better(best, boundedBest(way, most, run, last)), run(ways[0]!(0)))
  const all = bestOf(
    weights.flatMap((weight) =>
      AHEAD_MS.map((ms) => (bound: number) => knowingAll({ bound, weight }, ms, capacity, last)),
    ),
  )
  const server = bestOf(
    weights.flatMap((weight) =>
      DEVIATIONS.map((of) => (bound: number) => knowingServer({ bound, weight }, of, capacity)),
    ),
  )
  const shared = share(true)
  const silent = share(false)
  const rows: [string, DayResult, DayResult][] = [
    ['live traffic alone', last, last],
    ['as without live', run(asWithoutLive()), last],
    ...shared.map((of, at): [string, DayResult, DayResult] => [`live, day ${at + 1}`, of, alone[at]!]),
    ['live without metrics', silent.at(-1)!, last],
    ['knowing the server', server, last],
    ['knowing all', all, last],
  ]
  for (const [at, of] of shared.entries()) {
    const row = `live, day ${at + 1}`
    const ratios = [
      of.p99 / alone[at]!.p99,
      of.batchTokens / all.batchTokens,
      of.batchTokens / server.batchTokens,
    ]
    found.set(row, [...(found.get(row) ?? []), ratios])
  }
  console.log(
    `\n${name}: ${JSON.stringify({ ...engine, ...work, load })}, ${capacity.toFixed(1)} live requests/s at 100 %`,
  )
  const table = rows.map(([row, of, beside]) => ({
    '': row,
    'live p50 ms': round(of.p50, 1),
    'p99 ms': round(of.p99, 1),
    'p99 ÷ alone': round(of.p99 / beside.p99, 3),
    'batch tokens': of.batchTokens,
    '÷ knowing all': round(of.batchTokens / all.batchTokens, 3),
    '÷ knowing the server': round(of.batchTokens / server.batchTokens, 3),
    preemptions: of.preemptions,
  }))
  console.table(table)
  console.log(
    JSON.stringify({ bench: 'live', engine: name, goal: GOAL, day_s: lengthMs / 1000, rows: table }),
  )
}

/** The most batch tokens that any bound of requests in all allows with a p99 within the goal. */
function boundedBest(
  way: (bound: number) => BatchSide,
  most: number,
  run: (batch: BatchSide) => DayResult,
  alone: DayResult,
): DayResult | null {
  let best: DayResult | null = null
  let low = 0
  let high = most * 1.2
  for (let i = 0; i < HALVINGS; i++) {
    const bound = (low + high) / 2
    const result = run(way(bound))
    if (result.p99 > GOAL.p99 * alone.p99) high = bound
    else {
      low = bound
      best = better(result, best)
    }
  }
  return best
}

function better(one: DayResult, other: DayResult | null): DayResult {
  return other !== null && other.batchTokens > one.batchTokens ? other : one
}

let shownAt = Number.NEGATIVE_INFINITY
function trace(share: LiveShare, day: Day): void {
  if (!values.trace || (day.now >= shownAt && day.now - shownAt < lengthMs / 30)) return
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
