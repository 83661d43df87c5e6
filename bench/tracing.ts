// The cost of traces while a batch is dispatched at full speed: CPU of the service per line, and lines/s. Services without
// traces, with 1 % and with 100 % of the lines sampled take the same batch in turn, each round in another order; every
// batch is part of a sampled trace, so each chunk has all its spans. Two services without traces show what is noise; in
// place of the second, `--before` takes bin/offpeak.js of another checkout, such as one from before there were traces.
//
//   node bench/tracing.ts [--lines 30000] [--rounds 5] [--before PATH]
import { createServer } from 'node:http'
import { text } from 'node:stream/consumers'
import { setTimeout } from 'node:timers/promises'
import { Bench, inTurns, median, modelAt, option, rounded, runBatch } from './harness.ts'

/** Spans of a batch are exported within this time after it, and count as its cost. */
const EXPORT_MS = 1_000
const TRACEPARENT = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'

const lines = option('lines', 30_000)
const rounds = option('rounds', 5)
const before = option('before', '')
await using bench = new Bench('tracing')
let exported = 0
const collector = createServer(async (request, response) => {
  exported += (await text(request)).split('"spanId"').length - 1
  response.writeHead(200, { 'content-type': 'application/json' }).end('{}')
})
const { origin } = new URL(await bench.listen(collector))
const sampled = (share: string): NodeJS.ProcessEnv => ({
  OTEL_EXPORTER_OTLP_ENDPOINT: origin,
  OTEL_TRACES_SAMPLER: 'parentbased_traceidratio',
  OTEL_TRACES_SAMPLER_ARG: share,
  OTEL_BSP_SCHEDULE_DELAY: String(EXPORT_MS / 2),
})
const KINDS: readonly { name: string; env?: NodeJS.ProcessEnv; program?: string }[] = [
  { name: 'off' },
  before === '' ? { name: 'off again' } : { name: 'before', program: before },
  { name: '1 %', env: sampled('0.01') },
  { name: '100 %', env: sampled('1') },
]

const config = modelAt(await bench.upstream())
const input = await bench.lines(lines, 1024)
const ways = await Promise.all(
  KINDS.map(async (kind) => {
    const service = await bench.service(config, kind)
    const file = await service.client.upload(input, 50)
    return async () => {
      const spans = exported
      const cpu = service.cpu_us()
      const { lines_per_s } = await runBatch(service, file, {
        headers: { traceparent: TRACEPARENT },
        askMs: 5,
      })
      await setTimeout(EXPORT_MS)
      return { lines_per_s, cpu_us_per_line: (service.cpu_us() - cpu) / lines, spans: exported - spans }
    }
  }),
)
// The first batch of each finds the concurrency and warms the code up.
for (const run of ways) await run()
const found = await inTurns(rounds, ways)
/** The round that took the least: other work on the machine only adds to CPU. */
const least = found.map((runs) => Math.min(...runs.map((one) => one.cpu_us_per_line)))
console.table(
  found.map((runs, i) => ({
    traces: KINDS[i]?.name,
    'CPU µs/line (median)': rounded(median(runs.map((one) => one.cpu_us_per_line))),
    least: rounded(least[i]!),
    'lines/s (median)': rounded(median(runs.map((one) => one.lines_per_s))),
    spans: median(runs.map((one) => one.spans)),
  })),
)
for (const [i, { name }] of KINDS.entries())
  if (i > 0) bench.figure(`CPU a line, traces ${name} ÷ off`, least[i]! / least[0]!)
