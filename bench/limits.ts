// What limits cost: lines per second with no limit, one, and twenty that all match every line, turn by turn in
// one run over the same service. The upstream is another process and answers at once.
//
//   node bench/limits.ts [--lines 50000] [--bytes 1024] [--rounds 3]
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { writeLines } from './batch-client.ts'
import { median } from './median.ts'
import { start } from './processes.ts'
import { startService } from './service.ts'

const { values } = parseArgs({
  options: {
    lines: { type: 'string', default: '50000' },
    bytes: { type: 'string', default: '1024' },
    rounds: { type: 'string', default: '3' },
  },
})
const lines = Number(values.lines)
const ENTITY = 'user:1'
const COUNTS = [0, 1, 20]
const ASK_EVERY_MS = 10

const folder = mkdtempSync(join(tmpdir(), 'offpeak-bench-'))
const input = join(folder, 'input.jsonl')
await writeLines(input, lines, Number(values.bytes))
const here = (file: string): string => new URL(file, import.meta.url).pathname
const upstream = await start(here('./fast-upstream.ts'), [])
const service = await startService(
  folder,
  `
models:
  - id: bench
    price: {input_per_mtok: 0.1, output_per_mtok: 0.4}
    upstreams: [{type: openai, base_url: "${upstream.first}", concurrency_max: 64}]
`,
)
const { url, key, client } = service
const fileId = await client.upload(input, ASK_EVERY_MS)

const found = new Map<number, { lines_per_s: number[]; cpu_us_per_line: number[] }>(
  COUNTS.map((count) => [count, { lines_per_s: [], cpu_us_per_line: [] }]),
)
await measure()
for (let round = 0; round < Number(values.rounds); round++) {
  for (const count of COUNTS) {
    const made = []
    for (let i = 0; i < count; i++) made.push(await makeLimit(i))
    const { seconds, cpu_us } = await measure()
    found.get(count)?.lines_per_s.push(Math.round(lines / seconds))
    found.get(count)?.cpu_us_per_line.push(Math.round((cpu_us / lines) * 10) / 10)
    for (const id of made) await ask('DELETE', `/v1/limits/${id}`)
  }
}

const none = found.get(0)?.lines_per_s ?? []
const rows = [...found].map(([limits, { lines_per_s, cpu_us_per_line }]) => ({
  limits,
  'lines/s (median)': median(lines_per_s),
  'against none': ratio(median(lines_per_s), median(none)),
  'lines/s (best)': Math.max(...lines_per_s),
  'best against none': ratio(Math.max(...lines_per_s), Math.max(...none)),
  'CPU µs/line (median)': median(cpu_us_per_line),
}))
console.table(rows)
console.log(JSON.stringify({ bench: 'limits', lines, found: Object.fromEntries(found) }))
await service.stop()
await upstream.stop()
rmSync(folder, { recursive: true })

/** One batch, from its creation to `completed`. */
async function measure(): Promise<{ seconds: number; cpu_us: number }> {
  const cpu = service.cpu_us()
  const begun = performance.now()
  const order = {
    input_file_id: fileId,
    endpoint: '/v1/chat/completions',
    completion_window: '24h',
    metadata: { entity: ENTITY },
  }
  const batch = await client.completed(await ask('POST', '/v1/batches', order), ASK_EVERY_MS)
  if (batch.request_counts.completed !== lines)
    throw new Error(`only ${batch.request_counts.completed} lines were answered`)
  return { seconds: (performance.now() - begun) / 1000, cpu_us: service.cpu_us() - cpu }
}

/** One that matches every line and refuses none: of each scope, metric and window in turn. */
async function makeLimit(i: number): Promise<string> {
  const scopes = [
    { scope: 'entity', entity: ENTITY },
    { scope: 'entity_type', entity_type: 'user' },
    { scope: 'project' },
  ]
  return await ask('POST', '/v1/limits', {
    ...scopes[i % scopes.length],
    metric: i % 2 === 0 ? 'cost_usd' : 'tokens',
    amount: i % 2 === 0 ? 1_000_000 : 1e15,
    window: i % 4 < 2 ? 'day' : 'month',
    notify_at: [0.5, 0.8],
  })
}

/** The ID in the answer. */
async function ask(method: string, path: string, body?: object): Promise<string> {
  const response = await fetch(url + path, {
    method,
    headers: {
      authorization: `Bearer ${key}`,
      ...(body === undefined ? {} : { 'content-type': 'application/json' }),
    },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  })
  const text = await response.text()
  if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`)
  const answer: { id: string } = JSON.parse(text)
  return answer.id
}

function ratio(one: number, other: number): number {
  return Math.round((one / other) * 1000) / 1000
}
