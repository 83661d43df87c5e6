// How throughput grows with workers: the same latency-bound work on one PostgreSQL and one bucket, by 1, 2 and 4
// worker processes, each of which may have so many lines in flight. The upstream, in this process, takes a second
// for every line and any number at once, so a worker has little to do but to wait, as before a real model. Each
// worker gets as many lines as one has alone.
//
// With `--latency-ms 0` a server that answers at once, in a process of its own, leaves nothing to wait for: what grows then
// is bounded by the cores of the machine, on which the server, PostgreSQL and the API run as well.
//
//   node bench/workers.ts [--lines 12000] [--concurrency 256] [--latency-ms 1000] [--workers 1,2,4]
import { writeFileSync } from 'node:fs'
import { cpus } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { withoutPostgres } from '../test/fakes/postgres-server.ts'
import { sharedStorage } from '../test/fakes/shared-storage.ts'
import { Bench, modelAt, option, reached, rounded, runBatch } from './harness.ts'

if (withoutPostgres) throw new Error(withoutPostgres)

/** Growth over one worker: of lines that wait, and of lines that do not. */
const GOALS: Readonly<Record<number, number>> = { 2: 1.97, 4: 3.9 }
const BUSY_GOALS: Readonly<Record<number, number>> = { 2: 1.1 }
const OFFPEAK = fileURLToPath(new URL('../bin/offpeak.js', import.meta.url))

const lines = option('lines', 12_000)
const concurrency = option('concurrency', 256)
const latencyMs = option('latency-ms', 1000)
const counts = option('workers', '1,2,4').split(',').map(Number)
await using bench = new Bench('workers')
const upstream = await (latencyMs === 0 ? bench.upstream() : bench.waitingUpstream(() => latencyMs))
const storage = await sharedStorage({ fsync: true })
bench.defer(() => storage[Symbol.asyncDispose]())
const { yaml, env } = await storage.make()
const config = join(bench.folder, 'offpeak.yaml')
writeFileSync(
  config,
  `${yaml}
rate_limit: {requests_per_minute: 0}
log: {level: warn}
${modelAt(upstream, concurrency)}`,
)
const args = (role: string, data: string): string[] => [
  ...[role, '--config', config, '--data', join(bench.folder, data)],
]
const api = await bench.start(OFFPEAK, [...args('api', 'api'), '--port', '0'], env)
const { client } = reached(api, join(bench.folder, 'api'))

const rows: Record<string, number>[] = []
for (const count of counts) {
  const names = Array.from({ length: count }, (_, i) => `worker-${count}-${i}`)
  const workers = await Promise.all(names.map((name) => bench.start(OFFPEAK, args('worker', name), env)))
  const file = await client.upload(await bench.lines(lines * count, 250), 50)
  // A worker that has just started compiles its code, which says nothing of how work is shared.
  if (latencyMs === 0) await runBatch({ client, cpu_us: api.cpu_us }, file)
  const cpuOfAll = (): number => workers.reduce((sum, { cpu_us }) => sum + cpu_us(), 0)
  const [before, idle] = [cpuOfAll(), idleShare()]
  const { lines_per_s } = await runBatch({ client, cpu_us: api.cpu_us }, file)
  const cpu = cpuOfAll() - before
  const growth = lines_per_s / (rows[0]?.['lines/s'] ?? lines_per_s)
  rows.push({
    workers: count,
    'lines/s': rounded(lines_per_s),
    growth: rounded(growth),
    ...(latencyMs > 0 && { 'lines/s without any loss': rounded((count * concurrency * 1000) / latencyMs) }),
    'CPU µs/line of the workers': rounded(cpu / (lines * count)),
    'idle share of the cores': rounded(idle()),
  })
  await Promise.all(workers.map((worker) => worker.stop()))
  const goal = (latencyMs === 0 ? BUSY_GOALS : GOALS)[count]
  if (goal !== undefined) bench.figure(`growth from 1 worker to ${count}`, growth, { atLeast: goal })
}
console.table(rows)

/** From this call to that of the result, over all cores. */
function idleShare(): () => number {
  const times = (): { idle: number; all: number } => {
    const each = cpus().map((core) => core.times)
    return {
      idle: each.reduce((sum, { idle }) => sum + idle, 0),
      all: each.reduce((sum, { idle, irq, nice, sys, user }) => sum + idle + irq + nice + sys + user, 0),
    }
  }
  const begun = times()
  return () => {
    const ended = times()
    return (ended.idle - begun.idle) / (ended.all - begun.all)
  }
}
