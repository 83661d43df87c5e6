// How long `GET /v1/batches/{id}` takes while a batch runs at full speed: the same calls while the service is
// idle, then while it dispatches to an upstream that answers at once.
//
//   node bench/reads.ts [--lines 200000] [--every-ms 10]
import { once } from 'node:events'
import { createWriteStream, mkdtempSync, openAsBlob, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { FormData, Pool } from 'undici'
import { start } from './processes.ts'

const { values } = parseArgs({
  options: { lines: { type: 'string', default: '200000' }, 'every-ms': { type: 'string', default: '10' } },
})
const lines = Number(values.lines)
const every_ms = Number(values['every-ms'])
const IDLE_CALLS = 300

const folder = mkdtempSync(join(tmpdir(), 'offpeak-bench-'))
const input = join(folder, 'input.jsonl')
await writeInput()

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
const pool = new Pool(service.first.replace('offpeak listening on ', ''), { connections: 1 })
const headers = { authorization: `Bearer ${readFileSync(join(data, 'api-key'), 'utf8').trim()}` }

const form = new FormData()
form.set('purpose', 'batch')
form.set('file', await openAsBlob(input), 'input.jsonl')
let file = await call('POST', '/v1/files', form)
while (file.status === 'pending') {
  await setTimeout(50)
  file = await call('GET', `/v1/files/${file.id}`)
}
const order = { input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h' }

const idle: number[] = []
for (let i = 0; i < IDLE_CALLS; i++) idle.push((await timed(`/v1/files/${file.id}`)).ms)

const batch = await call('POST', '/v1/batches', JSON.stringify(order))
const begun = performance.now()
const running: number[] = []
for (;;) {
  const { ms, answer } = await timed(`/v1/batches/${batch.id}`)
  if (answer.status === 'completed') break
  if (answer.status === 'in_progress') running.push(ms)
}
const seconds = (performance.now() - begun) / 1000

const rows = { idle: summary(idle), 'while dispatching': summary(running) }
console.table(rows)
console.log(JSON.stringify({ bench: 'reads', lines, lines_per_s: Math.round(lines / seconds), ...rows }))
await pool.close()
await service.stop()
await upstream.stop()
rmSync(folder, { recursive: true })

async function timed(path: string): Promise<{ ms: number; answer: Answer }> {
  await setTimeout(every_ms)
  const sent = performance.now()
  const answer = await call('GET', path)
  return { ms: performance.now() - sent, answer }
}

function summary(times: number[]): Record<string, number> {
  const sorted = times.toSorted((a, b) => a - b)
  const at = (share: number): number =>
    Math.round((sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? 0) * 100) / 100
  return { calls: times.length, p50_ms: at(0.5), p90_ms: at(0.9), p99_ms: at(0.99), max_ms: at(1) }
}

interface Answer {
  id: string
  status: string
}

async function call(method: 'GET' | 'POST', path: string, body?: string | FormData): Promise<Answer> {
  const json = typeof body === 'string' ? { 'content-type': 'application/json' } : {}
  const response = await pool.request({ method, path, headers: { ...headers, ...json }, body: body ?? null })
  const text = await response.body.text()
  if (response.statusCode !== 200) throw new Error(`${method} ${path}: ${response.statusCode} ${text}`)
  const answer: Answer = JSON.parse(text)
  return answer
}

async function writeInput(): Promise<void> {
  const out = createWriteStream(input)
  const content = 'lorem ipsum dolor sit amet '.repeat(30)
  for (let i = 0; i < lines; i++) {
    const body = { model: 'bench', messages: [{ role: 'user', content: `${i} ${content}` }], max_tokens: 64 }
    const line = { custom_id: `line-${i}`, method: 'POST', url: '/v1/chat/completions', body }
    if (!out.write(`${JSON.stringify(line)}\n`)) await once(out, 'drain')
  }
  out.end()
  await once(out, 'finish')
}
