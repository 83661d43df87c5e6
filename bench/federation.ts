// What another Offpeak in between costs: lines per second of a batch at a cell, and of the same batch at a front whose
// only upstream is that cell. The cell's model server takes `--concurrency` lines at once, each for `--latency` ms.
//
//   node bench/federation.ts [--lines 20000] [--latency 100] [--concurrency 256] [--rounds 2]
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { type BatchClient, writeLines } from './batch-client.ts'
import { startService } from './service.ts'

const { values } = parseArgs({
  options: {
    lines: { type: 'string', default: '20000' },
    bytes: { type: 'string', default: '1024' },
    latency: { type: 'string', default: '100' },
    concurrency: { type: 'string', default: '256' },
    rounds: { type: 'string', default: '2' },
  },
})
const ASK_MS = 20
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

/** Lines per second from the creation of a batch to its end. */
async function rate(client: BatchClient): Promise<number> {
  const file = await client.upload(input, ASK_MS)
  const begun = performance.now()
  const { id } = await client.create(file)
  const { request_counts } = await client.completed(id, ASK_MS)
  if (request_counts.completed !== lines) throw new Error(`${request_counts.completed} of ${lines} lines`)
  return (lines * 1000) / (performance.now() - begun)
}

try {
  for (let round = 1; round <= Number(values.rounds); round++) {
    const direct = await rate(cell.client)
    const through = await rate(front.client)
    const result = {
      bench: 'federation',
      round,
      lines,
      capacity: Math.round(capacity),
      direct: Math.round(direct),
      through: Math.round(through),
      ratio: Number((through / direct).toFixed(2)),
    }
    console.log(JSON.stringify(result))
  }
} finally {
  await front.stop()
  await cell.stop()
  rmSync(folder, { recursive: true })
}
