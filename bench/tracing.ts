// What traces cost while a batch is dispatched at full speed: CPU of the service per line, and lines/s. Services without
// traces, with 1 % and with 100 % of the lines sampled take the same batch in turn, each round in another order; every
// batch is part of a sampled trace, so each chunk has all its spans. Two services without traces show what is noise; in
// place of the second, `--before` takes bin/offpeak.js of another checkout, such as one from before there were traces.
//
//   node bench/tracing.ts [--lines 30000] [--rounds 5] [--before PATH]
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { createServer } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { setTimeout } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { writeLines } from './batch-client.ts'
import { median } from './median.ts'
import { start } from './processes.ts'
import { type Service, startService } from './service.ts'

const { values } = parseArgs({
  options: {
    lines: { type: 'string', default: '30000' },
    rounds: { type: 'string', default: '5' },
    before: { type: 'string' },
  },
})
/** Spans of a batch are exported within this time after it, and count as its cost. */
const EXPORT_MS = 1_000
const lines = Number(values.lines)
const rounds = Number(values.rounds)

const folder = mkdtempSync(join(tmpdir(), 'offpeak-bench-'))
const input = join(folder, 'input.jsonl')
await writeLines(input, lines, 1024)

let exported = 0
const collector = createServer(async (request, response) => {
  exported += (await text(request)).split('"spanId"').length - 1
  response.writeHead(200, { 'content-type': 'application/json' }).end('{}')
})
collector.listen(0, '127.0.0.1')
await once(collector, 'listening')
const address = collector.address()
const port = typeof address === 'object' ? address?.port : null
const sampled = (share: string): NodeJS.ProcessEnv => ({
  OTEL_EXPORTER_OTLP_ENDPOINT: `http://127.0.0.1:${port}`,
  OTEL_TRACES_SAMPLER: 'parentbased_traceidratio',
  OTEL_TRACES_SAMPLER_ARG: share,
  OTEL_BSP_SCHEDULE_DELAY: String(EXPORT_MS / 2),
})

const second = values.before === undefined ? 'off again' : 'before'
const KINDS: readonly { name: string; env?: NodeJS.ProcessEnv; program?: string | undefined }[] = [
  { name: 'off' },
  { name: second, program: values.before },
  { name: '1 %', env: sampled('0.01') },
  { name: '100 %', env: sampled('1') },
]

interface Taken {
  cpu_us_per_line: number
  lines_per_s: number
  spans: number
}

const upstream = await start(new URL('./fast-upstream.ts', import.meta.url).pathname, [])
const models = `models: [{id: bench, upstreams: [{type: openai, base_url: "${upstream.first}", concurrency_max: 64}]}]`
const services: { name: string; service: Service; file: string; taken: Taken[] }[] = []
for (const { name, env, program } of KINDS) {
  const own = join(folder, String(services.length))
  mkdirSync(own)
  const service = await startService(own, models, [], { ...(env && { env }), ...(program && { program }) })
  services.push({ name, service, file: await service.client.upload(input, 50), taken: [] })
}

// The first batch of each finds the concurrency and warms the code up.
for (const one of services) await batch(one)
for (let round = 0; round < rounds; round++)
  for (let i = 0; i < services.length; i++) {
    const one = services[(i + round) % services.length]!
    one.taken.push(await batch(one))
  }

const [off, ...others] = services
/** Percent, by the round of each that took the least: other work on the machine only adds to CPU. */
const least = (taken: readonly Taken[]): number => Math.min(...taken.map((one) => one.cpu_us_per_line))
const table = Object.fromEntries(
  services.map(({ name, taken }) => [
    name,
    {
      cpu_us_per_line: round1(median(taken.map((one) => one.cpu_us_per_line))),
      least: round1(least(taken)),
      lines_per_s: Math.round(median(taken.map((one) => one.lines_per_s))),
      spans: median(taken.map((one) => one.spans)),
    },
  ]),
)
console.table(table)
const costs = Object.fromEntries(
  others.map(({ name, taken }) => [name, round1((least(taken) / least(off!.taken) - 1) * 100)]),
)
for (const [name, percent] of Object.entries(costs))
  console.log(`${name}: ${percent} % CPU per line beside off`)
console.log(JSON.stringify({ bench: 'tracing', lines, rounds, cpu_percent: costs, ...table }))
for (const { service } of services) await service.stop()
await upstream.stop()
collector.closeAllConnections()
collector.close()
rmSync(folder, { recursive: true })

async function batch({ service, file }: { service: Service; file: string }): Promise<Taken> {
  const { client } = service
  const spans = exported
  const cpu = service.cpu_us()
  const begun = performance.now()
  const traceparent = `00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01`
  const { id } = await client.create(file, undefined, { traceparent })
  await client.completed(id, 5)
  const seconds = (performance.now() - begun) / 1000
  await setTimeout(EXPORT_MS)
  return {
    cpu_us_per_line: (service.cpu_us() - cpu) / lines,
    lines_per_s: lines / seconds,
    spans: exported - spans,
  }
}

function round1(value: number): number {
  return Math.round(value * 10) / 10
}
