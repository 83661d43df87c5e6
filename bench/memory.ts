// Memory of API and worker, each a process, for batches of growing size against the simulator in a third: the peak of
// each, and what both together take at rest, before and after. Every size has a service of its own.
//
//   node bench/memory.ts [--lines 10000,200000] [--bytes 500]
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { writeLines } from './batch-client.ts'
import { type Started, start } from './processes.ts'
import { startService } from './service.ts'

const { values } = parseArgs({
  options: {
    lines: { type: 'string', default: '10000,200000' },
    bytes: { type: 'string', default: '500' },
  },
})
const GOAL_MIB = 300
/** After it, a service has released what it needs no longer. */
const REST_MS = 15_000
const main = fileURLToPath(new URL('../bin/offpeak.js', import.meta.url))

interface Row {
  lines: number
  seconds: number
  'API, MiB': number
  'worker, MiB': number
  'both idle, MiB': number
  'both afterwards, MiB': number
  'goal, MiB': number
}

const simulator = await start(main, ['sim', '--port', '0', '--latency-ms', '0'])
const rows: Row[] = []
for (const lines of values.lines.split(',')) rows.push(await measure(Number(lines), simulator))
console.table(rows)
console.log(JSON.stringify({ bench: 'memory', bytes: Number(values.bytes), rows }))
await simulator.stop()

async function measure(lines: number, upstream: Started): Promise<Row> {
  const folder = mkdtempSync(join(tmpdir(), 'offpeak-bench-'))
  const base_url = `${upstream.first.replace('offpeak sim listening on ', '')}/v1`
  const service = await startService(
    folder,
    `
models:
  - {id: bench, price: {input_per_mtok: 0.1, output_per_mtok: 0.4}, upstreams: [{type: openai, base_url: "${base_url}"}]}
`,
  )
  try {
    const { client } = service
    const idle = await atRest(service)
    const input = join(folder, 'input.jsonl')
    await writeLines(input, lines, Number(values.bytes))
    const begun = performance.now()
    const { id } = await client.create(await client.upload(input, 50))
    const batch = await client.completed(id, 50)
    const seconds = Math.round((performance.now() - begun) / 100) / 10
    if (batch.request_counts.completed !== lines)
      throw new Error(`only ${batch.request_counts.completed} of ${lines} lines were answered`)
    const [api = 0, worker = 0] = service.peak_mib()
    const afterwards = await atRest(service)
    return {
      lines,
      seconds,
      'API, MiB': api,
      'worker, MiB': worker,
      'both idle, MiB': idle,
      'both afterwards, MiB': afterwards,
      'goal, MiB': GOAL_MIB,
    }
  } finally {
    await service.stop()
    rmSync(folder, { recursive: true })
  }
}

async function atRest(service: Started): Promise<number> {
  await setTimeout(REST_MS)
  return service.resident_mib().reduce((sum, mib) => sum + mib, 0)
}
