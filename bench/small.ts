// Three lines on an idle service, from the start of the upload to `completed`; the same in one call; and the same while a big batch of
// another project keeps the model server busy. Before that, `offpeak --version` and `--help`, and the first three lines of
// new services, from `serve` typed to the results read. `--program`: the bin/offpeak.js of an installed package.
//
//   node bench/small.ts [--rounds 10] [--big 200000] [--starts 5] [--program bin/offpeak.js]
import { execFileSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { BatchClient, makeKey } from './batch-client.ts'
import { Bench, median, modelAt, option, quantile, runBatch, type Service } from './harness.ts'

const ASK_MS = 5
const CLONE = fileURLToPath(new URL('../bin/offpeak.js', import.meta.url))
/** From `serve` typed to the results read, in ms: a clone looks for changed sources before. */
const COLD_MS = { clone: 700, package: 450 }

const rounds = option('rounds', 10)
const big = option('big', 200_000)
const starts = option('starts', 5)
const program = resolve(option('program', CLONE))
const place = existsSync(join(dirname(program), '../src')) ? 'clone' : 'package'
await using bench = new Bench('small')
const config = modelAt(await bench.upstream())
const input = await bench.lines(3, 400)

const commands = Object.fromEntries(
  ['--version', '--help'].map((flag) => [flag, Array.from({ length: starts + 1 }, () => commandMs(flag))]),
)
const cold: Awaited<ReturnType<typeof coldStart>>[] = []
for (let i = 0; i < starts; i++) cold.push(await coldStart())
console.log('ms from `serve` typed')
console.table(cold)

const service = await bench.service(config, { program })
const first = await threeLines(service)
const idle = await many(threeLines)
const inOneCall = await many(oneCall)
const other = new BatchClient({ url: service.url, key: makeKey(program, 'big', service.flags) })
const { id } = await other.create(await other.upload(await bench.lines(big, 400), 50))
while ((await other.get(id)).request_counts.completed === 0) await setTimeout(ASK_MS)
const busy = await many(threeLines)
const busyInOneCall = await many(oneCall)
const { status, request_counts } = await other.get(id)
console.log(`the big batch was ${status} then, with ${request_counts.completed} lines of ${big} done`)
console.table({
  idle: spread(idle),
  'idle, one call': spread(inOneCall),
  'beside a big batch': spread(busy),
  'beside a big batch, one call': spread(busyInOneCall),
})
bench.figure('three lines, idle, median ms', median(idle), { atMost: 45 })
bench.figure('three lines in one call, idle, median ms', median(inOneCall), { atMost: 100 })
bench.figure('three lines beside a big batch, median ms', median(busy), { atMost: 70 })
bench.figure('the very first three lines of a running service, ms', first, { atMost: 80 })
for (const [flag, times] of Object.entries(commands))
  bench.figure(`offpeak ${flag}, median ms`, median(times.slice(1)), { atMost: 150 })
const read = median(cold.map((one) => one.read))
bench.figure(`\`serve\` typed to the results read, ${place}, median ms`, read, { atMost: COLD_MS[place] })

/** The first call fills the cache of compiled code. */
function commandMs(flag: string): number {
  const typed = performance.now()
  execFileSync(process.execPath, [program, flag])
  return performance.now() - typed
}

/** Milliseconds, each from the moment in which `serve` is typed, on an empty data folder. */
async function coldStart() {
  const typed = performance.now()
  const sinceTyped = (): number => Math.round(performance.now() - typed)
  const started = await bench.service(config, { program })
  const listening = sinceTyped()
  const file = await started.client.upload(input, ASK_MS)
  const uploaded = sinceTyped()
  const { id } = await runBatch(started, file, { askMs: ASK_MS })
  const completed = sinceTyped()
  const { output_file_id } = await started.client.get(id)
  const headers = { authorization: `Bearer ${started.key}` }
  const answers = await fetch(`${started.url}/v1/files/${output_file_id}/content`, { headers })
  const count = (await answers.text()).trim().split('\n').length
  const read = sinceTyped()
  await started.stop()
  if (count !== 3) throw new Error(`${count} answers instead of three`)
  return { listening, uploaded, completed, read }
}

async function threeLines(to: Service): Promise<number> {
  const begun = performance.now()
  await runBatch(to, await to.client.upload(input, ASK_MS), { askMs: ASK_MS })
  return performance.now() - begun
}

/** With its results. */
async function oneCall(to: Service): Promise<number> {
  const requests = readFileSync(input, 'utf8')
    .trim()
    .split('\n')
    .map((line): unknown => JSON.parse(line))
  const order = { endpoint: '/v1/chat/completions', completion_window: '24h', requests, wait: '30s' }
  const begun = performance.now()
  const { status, results } = await to.client.call('POST', '/v1/batches', order)
  if (results?.length !== requests.length) throw new Error(`the batch is ${status}`)
  return performance.now() - begun
}

async function many(job: (to: Service) => Promise<number>): Promise<number[]> {
  const times: number[] = []
  for (let i = 0; i < rounds; i++) {
    times.push(await job(service))
    // Idle again, and at another moment of every interval.
    await setTimeout(137)
  }
  return times
}

function spread(times: readonly number[]): object {
  return { 'median ms': Math.round(median(times)), 'worst ms': Math.round(quantile(times, 1)) }
}
