// The cost of limits: lines per second with no limit, one, and twenty that all match every line, turn by turn in
// one run over the same service. The upstream is another process and answers at once.
//
//   node bench/limits.ts [--lines 50000] [--bytes 1024] [--rounds 3]
import { Bench, inTurns, median, modelAt, option, type Run, rounded, runBatch } from './harness.ts'

const ENTITY = 'user:1'
const COUNTS = [0, 1, 20]

const lines = option('lines', 50_000)
const bytes = option('bytes', 1024)
const rounds = option('rounds', 3)
await using bench = new Bench('limits')
const service = await bench.service(modelAt(await bench.upstream()))
const file = await service.client.upload(await bench.lines(lines, bytes), 50)

await measure(0)
const found = await inTurns(
  rounds,
  COUNTS.map((count) => () => measure(count)),
)
const [none = 0, ...others] = found.map((runs) => median(runs.map(({ lines_per_s }) => lines_per_s)))
console.table(
  found.map((runs, i) => ({
    limits: COUNTS[i],
    'lines/s (median)': rounded(median(runs.map(({ lines_per_s }) => lines_per_s))),
    'CPU µs/line (median)': rounded(median(runs.map(({ cpu_us_per_line }) => cpu_us_per_line))),
  })),
)
for (const [i, value] of others.entries())
  bench.figure(`lines/s with ${COUNTS[i + 1]} limits ÷ with none`, value / none, { atLeast: 0.95 })

/** A batch under so many limits. */
async function measure(count: number): Promise<Run> {
  const made: string[] = []
  for (let i = 0; i < count; i++) made.push((await service.client.call('POST', '/v1/limits', limitOf(i))).id)
  const run = await runBatch(service, file, { more: { metadata: { entity: ENTITY } }, askMs: 10 })
  for (const id of made) await service.client.call('DELETE', `/v1/limits/${id}`)
  return run
}

/** One that matches every line and refuses none: of each scope, metric and window in turn. */
function limitOf(i: number): object {
  const scopes = [
    { scope: 'entity', entity: ENTITY },
    { scope: 'entity_type', entity_type: 'user' },
    { scope: 'project' },
  ]
  return {
    ...scopes[i % scopes.length],
    metric: i % 2 === 0 ? 'cost_usd' : 'tokens',
    amount: i % 2 === 0 ? 1_000_000 : 1e15,
    window: i % 4 < 2 ? 'day' : 'month',
    notify_at: [0.5, 0.8],
  }
}
