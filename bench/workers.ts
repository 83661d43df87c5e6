// How throughput grows with workers: the same latency-bound work on one PostgreSQL and one bucket, by 1, 2 and 4
// worker processes, each of which may have so many lines in flight. The upstream, in this process, takes a second
// for every line and any number at once, so a worker has little to do but to wait, as before a real model. Each
// worker gets as many lines as one has alone.
//
//   node bench/workers.ts [--lines 12000] [--concurrency 256] [--latency-ms 1000] [--workers 1,2,4]
import { readFileSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { withoutPostgres } from '../test/fakes/postgres-server.ts'
import { sharedStorage } from '../test/fakes/shared-storage.ts'
import { completion } from '../test/fakes/upstream.ts'
import { BatchClient } from './batch-client.ts'
import { Bench, modelAt, option, rounded, runBatch } from './harness.ts'

if (withoutPostgres) throw new Error(withoutPostgres)

/** Growth over one worker. */
const GOALS: Readonly<Record<number, number>> = { 2: 1.97, 4: 3.9 }
const OFFPEAK = fileURLToPath(new URL('../bin/offpeak.js', import.meta.url))

const lines = option('lines', 12_000)
const concurrency = option('concurrency', 256)
const latencyMs = option('latency-ms', 1000)
const counts = option('workers', '1,2,4').split(',').map(Number)
await using bench = new Bench('workers')
const answer = completion('as quickly as it can')
const upstream = createServer((request, response) => {
  request.resume()
  request.once('end', () => {
    setTimeout(() => response.setHeader('content-type', 'application/json').end(answer), latencyMs)
  })
})
const storage = await sharedStorage({ fsync: true })
bench.defer(() => storage[Symbol.asyncDispose]())
const { yaml, env } = await storage.make()
const config = join(bench.folder, 'offpeak.yaml')
writeFileSync(
  config,
  `${yaml}
rate_limit: {requests_per_minute: 0}
log: {level: warn}
${modelAt(await bench.listen(upstream), concurrency)}`,
)
const args = (role: string, data: string): string[] => [
  ...[role, '--config', config, '--data', join(bench.folder, data)],
]
const api = await bench.start(OFFPEAK, [...args('api', 'api'), '--port', '0'], env)
const url = api.first.replace('offpeak listening on ', '')
const client = new BatchClient(url, readFileSync(join(bench.folder, 'api', 'api-key'), 'utf8').trim())

const rows: { workers: number; 'lines/s': number; growth: number; 'lines/s without any loss': number }[] = []
for (const count of counts) {
  const names = Array.from({ length: count }, (_, i) => `worker-${count}-${i}`)
  const workers = await Promise.all(names.map((name) => bench.start(OFFPEAK, args('worker', name), env)))
  const file = await client.upload(await bench.lines(lines * count, 250), 50)
  const { lines_per_s } = await runBatch({ client, cpu_us: api.cpu_us }, file)
  const growth = lines_per_s / (rows[0]?.['lines/s'] ?? lines_per_s)
  const ideal = rounded((count * concurrency * 1000) / latencyMs)
  rows.push({
    workers: count,
    'lines/s': rounded(lines_per_s),
    growth: rounded(growth),
    'lines/s without any loss': ideal,
  })
  await Promise.all(workers.map((worker) => worker.stop()))
  const goal = GOALS[count]
  if (goal !== undefined) bench.figure(`growth from 1 worker to ${count}`, growth, { atLeast: goal })
}
console.table(rows)
