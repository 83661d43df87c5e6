// Lines per second end to end, beside a bare undici loop that sends the same bodies at the same concurrency to the same
// upstream, in turn in one run; and what a line costs the worker whatever the load: bytes on its heap, statements, writes
// to sockets. The upstream is another process and answers at once.
//
//   node bench/dispatch.ts [--lines 100000] [--bytes 1024] [--concurrency 64] [--rounds 3] [--workers 1]
import { execFileSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { Bench, modelAt, option, rounded, runBatch } from './harness.ts'
import { lineCosts } from './worker-counts.ts'

/** The goals of a service that has just started, and of one whose code is compiled; by the bytes of a line. */
const GOALS: Readonly<Record<number, readonly [cold: number, warm: number]>> = {
  1024: [0.7, 0.85],
  8192: [0.5, 0.6],
}
const HEAP_BYTES_MAX = 6_500

const bytes = option('bytes', 1024)
const lines = option('lines', 100_000)
const concurrency = option('concurrency', 64)
const rounds = option('rounds', 3)
const workers = option('workers', 1)
await using bench = new Bench('dispatch')
const input = await bench.lines(lines, bytes)
const upstream = await bench.upstream()
const service = await bench.service(modelAt(upstream, concurrency), { flags: ['--workers', String(workers)] })

interface Row {
  lines_per_s: number
  cpu_us_per_line: number
  main_us_per_line: number
}

const table: Record<string, number>[] = []
for (let round = 0; round < rounds; round++) {
  const loop = fileURLToPath(new URL('./bare-loop.ts', import.meta.url))
  const args = [loop, upstream, input, String(concurrency)]
  const bare: Row = JSON.parse(execFileSync(process.execPath, args, { encoding: 'utf8' }))
  const file = await service.client.upload(input, 20)
  const mainBefore = service.child_main_us()
  const offpeak = await runBatch(service, file)
  const mainUs = (service.child_main_us() - mainBefore) / lines
  const ratio = offpeak.lines_per_s / bare.lines_per_s
  table.push({
    'bare lines/s': bare.lines_per_s,
    'offpeak lines/s': rounded(offpeak.lines_per_s),
    ratio: rounded(ratio),
    'bare CPU µs/line': bare.cpu_us_per_line,
    'offpeak CPU µs/line (API and worker)': rounded(offpeak.cpu_us_per_line),
    'bare main thread µs/line': rounded(bare.main_us_per_line),
    "workers' main threads µs/line": rounded(mainUs),
  })
  const [cold, warm] = GOALS[bytes] ?? []
  const goal = round === 0 ? cold : warm
  const what = `lines/s ÷ a bare loop, ${round === 0 ? 'cold' : 'warm'}`
  bench.figure(what, ratio, goal === undefined ? undefined : { atLeast: goal })
}
console.table(table)
const [api, ...peaks] = service.peak_mib()
console.log(`peak memory: API ${api} MiB, worker ${peaks.join(' and ')} MiB`)
await service.stop()

const line = await lineCosts(bench, bytes)
const isGoal = bytes === 1024
bench.figure('bytes on the heap per line', line.heapBytes, isGoal ? { atMost: HEAP_BYTES_MAX } : undefined)
bench.figure('statements per 1,000 lines', line.statements * 1000)
bench.figure('writes to sockets per line', line.socketWrites)
