// How throughput grows with workers: the same latency-bound work on one PostgreSQL and one bucket, by 1, 2 and 4
// worker processes, each of which may have so many lines in flight. The upstream, in this process, takes a second
// for every line and any number at once, so a worker has little to do but to wait, as before a real model. Each
// worker gets as many lines as one has alone.
//
//   node bench/workers.ts [--lines 12000] [--concurrency 256] [--latency-ms 1000] [--workers 1,2,4]
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as wait } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { withoutPostgres } from '../test/fakes/postgres-server.ts'
import { sharedStorage } from '../test/fakes/shared-storage.ts'
import { completion } from '../test/fakes/upstream.ts'
import { start } from './processes.ts'

if (withoutPostgres) throw new Error(withoutPostgres)

const { values } = parseArgs({
  options: {
    lines: { type: 'string', default: '12000' },
    concurrency: { type: 'string', default: '256' },
    'latency-ms': { type: 'string', default: '1000' },
    workers: { type: 'string', default: '1,2,4' },
  },
})
const answer = completion('as quickly as it can')
const upstream = createServer((request, response) => {
  request.resume()
  request.once('end', () => {
    setTimeout(
      () => response.setHeader('content-type', 'application/json').end(answer),
      Number(values['latency-ms']),
    )
  })
}).listen(0, '127.0.0.1')
await once(upstream, 'listening')
const address = upstream.address()
if (address === null || typeof address === 'string') throw new Error('no port was given')

const main = new URL('../bin/offpeak.js', import.meta.url).pathname
const folder = mkdtempSync(join(tmpdir(), 'offpeak-bench-'))
const storage = await sharedStorage({ fsync: true })
const { yaml, env } = await storage.make()
const config = join(folder, 'offpeak.yaml')
writeFileSync(
  config,
  `${yaml}
rate_limit: {requests_per_minute: 0}
log: {level: warn}
models:
  - id: bench
    upstreams: [{type: openai, base_url: "http://127.0.0.1:${address.port}/v1", concurrency_max: ${values.concurrency}}]
`,
)
const args = (half: string, data: string): string[] => [
  half,
  '--config',
  config,
  '--data',
  join(folder, data),
]
const api = await start(main, [...args('api', 'api'), '--port', '0'], env)
const url = api.first.replace('offpeak listening on ', '')
const headers = { authorization: `Bearer ${readFileSync(join(folder, 'api', 'api-key'), 'utf8').trim()}` }

const rows: { workers: number; lines_per_s: number; growth: number; ideal: number }[] = []
for (const count of values.workers.split(',').map(Number)) {
  const names = Array.from({ length: count }, (_, i) => `worker-${count}-${i}`)
  const workers = await Promise.all(names.map((name) => start(main, args('worker', name), env)))
  const lines_per_s = await run(Number(values.lines) * count)
  const first = rows[0]
  const growth = first ? Math.round((lines_per_s / first.lines_per_s) * 100) / 100 : 1
  const ideal = Math.round((count * Number(values.concurrency) * 1000) / Number(values['latency-ms']))
  rows.push({ workers: count, lines_per_s, growth, ideal })
  await Promise.all(workers.map((worker) => worker.stop()))
}
console.table(rows)
console.log(JSON.stringify({ bench: 'workers', rows }))
await api.stop()
await storage[Symbol.asyncDispose]()
upstream.closeAllConnections()
upstream.close()
rmSync(folder, { recursive: true })

/** Lines per second from the creation of a batch to its end. */
async function run(lines: number): Promise<number> {
  const content = Array.from({ length: lines }, (_, i) => JSON.stringify(lineOf(i))).join('\n')
  const form = new FormData()
  form.set('purpose', 'batch')
  form.set('file', new Blob([content]), 'input.jsonl')
  let file = await call('POST', '/v1/files', form)
  while (file.status === 'pending') {
    await wait(50)
    file = await call('GET', `/v1/files/${file.id}`)
  }
  const begun = performance.now()
  const order = { input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h' }
  let batch = await call('POST', '/v1/batches', JSON.stringify(order))
  while (batch.status !== 'completed') {
    await wait(50)
    batch = await call('GET', `/v1/batches/${batch.id}`)
  }
  return Math.round(lines / ((performance.now() - begun) / 1000))
}

async function call(method: string, path: string, body?: string | FormData) {
  const json = typeof body === 'string' ? { 'content-type': 'application/json' } : {}
  const init = { method, headers: { ...headers, ...json }, ...(body === undefined ? {} : { body }) }
  const response = await fetch(url + path, init)
  if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${await response.text()}`)
  return (await response.json()) as { id: string; status: string }
}

function lineOf(i: number): object {
  const messages = [{ role: 'user', content: `question ${i}` }]
  return {
    custom_id: `line-${i}`,
    method: 'POST',
    url: '/v1/chat/completions',
    body: { model: 'bench', messages, max_tokens: 64 },
  }
}
