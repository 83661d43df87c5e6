// How long `GET /v1/batches/{id}` takes while a batch runs at full speed: the same calls while the service is
// idle, then while it dispatches to an upstream that answers at once.
//
//   node bench/reads.ts [--lines 100000] [--every-ms 10]
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { Pool } from 'undici'
import { BatchClient, writeLines } from './batch-client.ts'
import { start } from './processes.ts'

const { values } = parseArgs({
  options: { lines: { type: 'string', default: '100000' }, 'every-ms': { type: 'string', default: '10' } },
})
const lines = Number(values.lines)
const every_ms = Number(values['every-ms'])
const IDLE_CALLS = 300

const folder = mkdtempSync(join(tmpdir(), 'offpeak-bench-'))
const input = join(folder, 'input.jsonl')
await writeLines(input, lines, 1024)

const here = (file: string): string => new URL(file, import.meta.url).pathname
const upstream = await start(here('./fast-upstream.ts'), [])
const config = join(folder, 'offpeak.yaml')
writeFileSync(
  config,
  `
rate_limit: {requests_per_minute: 0}
log: {level: warn}
models: [{id: bench, upstreams: [{type: openai, base_url: "${upstream.first}", concurrency_max: 64}]}]
`,
)
const data = join(folder, 'data')
const service = await start(here('../src/main.ts'), [
  'serve',
  '--port',
  '0',
  '--data',
  data,
  '--config',
  config,
])
const url = service.first.replace('offpeak listening on ', '')
const key = readFileSync(join(data, 'api-key'), 'utf8').trim()
const client = new BatchClient(url, key)
// One connection of its own for the calls that are timed.
const pool = new Pool(url, { connections: 1 })
const file = await client.upload(input, 50)

const idle: number[] = []
for (let i = 0; i < IDLE_CALLS; i++) idle.push((await timed(`/v1/files/${file}`)).ms)

const batch = await client.create(file)
const begun = performance.now()
const running: number[] = []
for (;;) {
  const { ms, status } = await timed(`/v1/batches/${batch.id}`)
  if (status === 'completed') break
  if (status === 'in_progress') running.push(ms)
}
const seconds = (performance.now() - begun) / 1000

const rows = { idle: summary(idle), 'while dispatching': summary(running) }
console.table(rows)
console.log(JSON.stringify({ bench: 'reads', lines, lines_per_s: Math.round(lines / seconds), ...rows }))
await pool.close()
await service.stop()
await upstream.stop()
rmSync(folder, { recursive: true })

async function timed(path: string): Promise<{ ms: number; status: string }> {
  await setTimeout(every_ms)
  const sent = performance.now()
  const response = await pool.request({ method: 'GET', path, headers: { authorization: `Bearer ${key}` } })
  const text = await response.body.text()
  const ms = performance.now() - sent
  if (response.statusCode !== 200) throw new Error(`GET ${path}: ${response.statusCode} ${text}`)
  const { status }: { status: string } = JSON.parse(text)
  return { ms, status }
}

function summary(times: number[]): Record<string, number> {
  const sorted = times.toSorted((a, b) => a - b)
  const at = (share: number): number =>
    Math.round((sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? 0) * 100) / 100
  return { calls: times.length, p50_ms: at(0.5), p90_ms: at(0.9), p99_ms: at(0.99), max_ms: at(1) }
}
