// Lines per second end to end, beside a bare undici loop that sends the same bodies at the same concurrency to
// the same upstream, one after the other in one run. The upstream is another process and answers at once.
//
//   node bench/dispatch.ts [--lines 100000] [--bytes 1024] [--concurrency 64] [--rounds 3] [--workers 1]
import { execFileSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { writeLines } from './batch-client.ts'
import { start } from './processes.ts'
import { startService } from './service.ts'
import { lineCosts } from './worker-counts.ts'

const { values } = parseArgs({
  options: {
    lines: { type: 'string', default: '100000' },
    bytes: { type: 'string', default: '1024' },
    concurrency: { type: 'string', default: '64' },
    rounds: { type: 'string', default: '3' },
    workers: { type: 'string', default: '1' },
  },
})
/** Rarely enough that asking is no part of what is measured. */
const POLL_MS = 50
const lines = Number(values.lines)
const folder = mkdtempSync(join(tmpdir(), 'offpeak-bench-'))
const input = join(folder, 'input.jsonl')
await writeLines(input, lines, Number(values.bytes))

const here = (file: string): string => new URL(file, import.meta.url).pathname
const upstream = await start(here('./fast-upstream.ts'), [])

interface Row {
  lines_per_s: number
  cpu_us_per_line: number
}

const pairs: { bare: Row; offpeak: Row; ratio: number }[] = []
const service = await startService(
  folder,
  `
models:
  - id: bench
    price: {input_per_mtok: 0.1, output_per_mtok: 0.4}
    upstreams: [{type: openai, base_url: "${upstream.first}", concurrency_max: ${values.concurrency}}]
`,
  ['--workers', values.workers],
)
const { client } = service

for (let round = 0; round < Number(values.rounds); round++) {
  const bare: Row = JSON.parse(
    execFileSync(process.execPath, [here('./bare-loop.ts'), upstream.first, input, values.concurrency], {
      encoding: 'utf8',
    }),
  )
  const offpeak = await runBatch()
  pairs.push({ bare, offpeak, ratio: Math.round((offpeak.lines_per_s / bare.lines_per_s) * 1000) / 1000 })
}

console.table(
  pairs.map(({ bare, offpeak, ratio }) => ({
    'bare lines/s': bare.lines_per_s,
    'offpeak lines/s': offpeak.lines_per_s,
    ratio,
    'bare CPU µs/line': bare.cpu_us_per_line,
    'offpeak CPU µs/line (API and worker)': offpeak.cpu_us_per_line,
  })),
)
const [api, ...workers] = service.peak_mib()
console.log(`peak memory: API ${api} MiB, worker ${workers.join(' and ')} MiB`)
await service.stop()
const counted = join(folder, 'counted')
mkdirSync(counted)
const line = await lineCosts(counted, upstream.first, Number(values.bytes))
console.log(
  `per line: ${Math.round(line.heapBytes)} bytes on the worker's heap (goal for 1 KiB: 8192), ` +
    `${(line.statements * 1_000).toFixed(1)} statements per 1,000 lines`,
)
console.log(
  JSON.stringify({
    bench: 'dispatch',
    lines,
    bytes: Number(values.bytes),
    concurrency: Number(values.concurrency),
    pairs,
    peak_mib: { api, workers },
    line,
  }),
)
await upstream.stop()
rmSync(folder, { recursive: true })

/** From the creation of the batch to `completed`; the upload is not part of it. */
async function runBatch(): Promise<Row> {
  const file = await client.upload(input, 20)
  const cpu = service.cpu_us()
  const begun = performance.now()
  const batch = await client.completed((await client.create(file)).id, POLL_MS)
  const seconds = (performance.now() - begun) / 1000
  if (batch.request_counts.completed !== lines)
    throw new Error(`only ${batch.request_counts.completed} lines were answered`)
  return {
    lines_per_s: Math.round(lines / seconds),
    cpu_us_per_line: Math.round(((service.cpu_us() - cpu) / lines) * 10) / 10,
  }
}
