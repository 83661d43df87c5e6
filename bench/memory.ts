// Memory of API and worker, each a process, for batches of growing size against the simulator in a third: the peak of
// each and of both, and what both take at rest, before and after (PSS counts pages that they share once). Every size has
// a service of its own. `--program`: the bin/offpeak.js of an installed package, which takes less than a clone.
//
//   node bench/memory.ts [--lines 10000,200000] [--bytes 500] [--program bin/offpeak.js]
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
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
    program: { type: 'string', default: fileURLToPath(new URL('../bin/offpeak.js', import.meta.url)) },
  },
})
/** Of both processes. */
const GOALS_MIB = { idle: 160, peak: 350 }
/** After it, a service has released what it needs no longer. */
const REST_MS = 15_000
const program = resolve(values.program)

interface Row {
  lines: number
  seconds: number
  'API, MiB': number
  'worker, MiB': number
  'both, MiB': number
  'both idle, MiB': number
  'idle, PSS': number
  'afterwards, MiB': number
}

const simulator = await start(program, ['sim', '--port', '0', '--latency-ms', '0'])
const rows: Row[] = []
for (const lines of values.lines.split(',')) rows.push(await measure(Number(lines), simulator))
console.table(rows)
console.log(JSON.stringify({ bench: 'memory', bytes: Number(values.bytes), goals: GOALS_MIB, rows }))
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
    [],
    { program },
  )
  try {
    const { client } = service
    await setTimeout(REST_MS)
    const idle = sum(service.resident_mib())
    const idlePss = sum(service.resident_mib('Pss'))
    const input = join(folder, 'input.jsonl')
    await writeLines(input, lines, Number(values.bytes))
    const begun = performance.now()
    const { id } = await client.create(await client.upload(input, 50))
    const batch = await client.completed(id, 50)
    const seconds = Math.round((performance.now() - begun) / 100) / 10
    if (batch.request_counts.completed !== lines)
      throw new Error(`only ${batch.request_counts.completed} of ${lines} lines were answered`)
    const [api = 0, worker = 0] = service.peak_mib()
    await setTimeout(REST_MS)
    return {
      lines,
      seconds,
      'API, MiB': api,
      'worker, MiB': worker,
      'both, MiB': api + worker,
      'both idle, MiB': idle,
      'idle, PSS': idlePss,
      'afterwards, MiB': sum(service.resident_mib()),
    }
  } finally {
    await service.stop()
    rmSync(folder, { recursive: true })
  }
}

function sum(sizes: readonly number[]): number {
  return sizes.reduce((total, size) => total + size, 0)
}
