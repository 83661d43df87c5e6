// What another Offpeak in between costs: lines per second of a batch at a cell, and of the same batch at a front whose
// only upstream is that cell, in pairs, so that what else the machine does falls on both. The cell's model server takes
// `--concurrency` lines at once, each for `--latency` ms. The front's part includes the upload of the lines to the cell;
// the upload of the caller's file is in neither. `cpu_s` is processor time per 1,000 lines: of the cell alone, and of
// cell and front when lines go through the front.
//
//   node bench/federation.ts [--lines 20000] [--pairs 5] [--latency 100] [--concurrency 256]
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { type BatchClient, writeLines } from './batch-client.ts'
import { median } from './median.ts'
import { type Service, startService } from './service.ts'

const { values } = parseArgs({
  options: {
    lines: { type: 'string', default: '20000' },
    bytes: { type: 'string', default: '1024' },
    latency: { type: 'string', default: '100' },
    concurrency: { type: 'string', default: '256' },
    pairs: { type: 'string', default: '5' },
  },
})
const ASK_MS = 50
const lines = Number(values.lines)
const capacity = (Number(values.concurrency) * 1000) / Math.max(1, Number(values.latency))

const folder = mkdtempSync(join(tmpdir(), 'offpeak-bench-'))
const input = join(folder, 'input.jsonl')
await writeLines(input, lines, Number(values.bytes))
const folderOf = (name: string): string => {
  const path = join(folder, name)
  mkdirSync(path)
  return path
}
const cell = await startService(
  folderOf('cell'),
  `models:
  - id: bench
    upstreams: [{type: sim, latency_ms: ${values.latency}, concurrency_max: ${values.concurrency}}]`,
)
process.env.CELL_KEY = cell.key
const front = await startService(
  folderOf('front'),
  `models:
  - id: bench
    upstreams:
      - {type: openai-batch, base_url: "${cell.url}/v1", api_key_env: CELL_KEY, line_metadata: true}`,
)

interface Run {
  /** Lines per second from the creation of a batch to its end. */
  lines_per_s: number
  /** Processor time of each service (s) per 1,000 lines. */
  cpu_s: number[]
}

async function run(client: BatchClient, services: readonly Service[]): Promise<Run> {
  const file = await client.upload(input, ASK_MS)
  const before = services.map((service) => service.cpu_us())
  const begun = performance.now()
  const { id } = await client.create(file)
  const { request_counts } = await client.completed(id, ASK_MS)
  const ms = performance.now() - begun
  if (request_counts.completed !== lines) throw new Error(`${request_counts.completed} of ${lines} lines`)
  const cpu_s = services.map((service, i) => rounded((service.cpu_us() - before[i]!) / lines / 1000, 3))
  return { lines_per_s: Math.round((lines * 1000) / ms), cpu_s }
}

function rounded(value: number, digits: number): number {
  return Number(value.toFixed(digits))
}

try {
  const runs: { direct: number; through: number; ratio: number; cpu_s: Record<string, number> }[] = []
  for (let pair = 1; pair <= Number(values.pairs); pair++) {
    const direct = await run(cell.client, [cell])
    const through = await run(front.client, [cell, front])
    const cpu_s = { direct: direct.cpu_s[0]!, cell: through.cpu_s[0]!, front: through.cpu_s[1]! }
    const ratio = rounded(through.lines_per_s / direct.lines_per_s, 2)
    runs.push({ direct: direct.lines_per_s, through: through.lines_per_s, ratio, cpu_s })
    console.log(JSON.stringify({ bench: 'federation', pair, ...runs.at(-1) }))
  }
  const ratios = runs.map(({ ratio }) => ratio)
  const cpuOf = (name: string): number => median(runs.map(({ cpu_s }) => cpu_s[name]!))
  const result = {
    bench: 'federation',
    lines,
    capacity: Math.round(capacity),
    direct: median(runs.map(({ direct }) => direct)),
    through: median(runs.map(({ through }) => through)),
    ratio: median(ratios),
    ratio_min: Math.min(...ratios),
    ratio_max: Math.max(...ratios),
    cpu_s: { direct: cpuOf('direct'), cell: cpuOf('cell'), front: cpuOf('front') },
  }
  console.log(JSON.stringify(result))
} finally {
  await front.stop()
  await cell.stop()
  rmSync(folder, { recursive: true })
}
