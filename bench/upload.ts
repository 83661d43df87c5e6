// Upload and validation through the whole service, against JSON.parse alone on the same lines; and meanwhile how
// long other calls take, how late the API's event loop is, and what memory it takes. Repeated words compress to
// nothing; prose costs a compressor what real text does.
//
//   node bench/upload.ts [--megabytes 200] [--bytes 1024] [--text words,prose] [--at-once 1] [--stages]
import { createReadStream, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { availableParallelism, tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { BatchClient, writeLines } from './batch-client.ts'
import { start } from './processes.ts'
import { uploadStages } from './upload-stages.ts'
import { writeProse } from './write-prose.ts'

const { values } = parseArgs({
  options: {
    megabytes: { type: 'string', default: '200' },
    bytes: { type: 'string', default: '1024' },
    text: { type: 'string', default: 'words,prose' },
    'at-once': { type: 'string', default: '1' },
    stages: { type: 'boolean', default: false },
  },
})
const GOAL = 0.5
const ASK_EVERY_MS = 10
/** The service makes the page of its metrics at most so often. */
const PAGE_KEPT_MS = 1_000
let pageKeptUntil = 0
const NEWLINE = 0x0a
const CORES = availableParallelism()

for (const text of values.text.split(',')) {
  const folder = mkdtempSync(join(tmpdir(), 'offpeak-bench-'))
  const input = join(folder, 'input.jsonl')
  const line_bytes = Number(values.bytes)
  const lines = Math.round((Number(values.megabytes) * 1e6) / line_bytes)
  await (text === 'prose' ? writeProse : writeLines)(input, lines, line_bytes)
  if (values.stages) await uploadStages(text, input)
  await measure(text, folder, input)
  rmSync(folder, { recursive: true })
}

async function measure(text: string, folder: string, input: string): Promise<void> {
  const at_once = Number(values['at-once'])
  const bytes = statSync(input).size * at_once
  const mb = bytes / 1e6
  const config = join(folder, 'offpeak.yaml')
  writeFileSync(config, 'rate_limit: {requests_per_minute: 0}\nlog: {level: error}\n')
  const data = join(folder, 'data')
  const main = fileURLToPath(new URL('../bin/offpeak.js', import.meta.url))
  const service = await start(main, ['serve', '--port', '0', '--data', data, '--config', config])
  const url = service.first.replace('offpeak listening on ', '')
  const key = readFileSync(join(data, 'api-key'), 'utf8').trim()
  const client = new BatchClient(url, key)

  // Before and after, so that a neighbour who comes or goes meanwhile is seen.
  const parsed = [await spent(() => parseAll(input))]
  await loopDelay(url, key)
  const idle = await pings(url, setTimeout(1_000))
  const idle_mib = service.peak_mib()
  const idle_loop = await loopDelay(url, key)
  const serviceCpuUs = service.cpu_us()
  let sent = { wall_s: 0, cpu_s: 0 }
  const busy = await pings(
    url,
    spent(() => Promise.all(Array.from({ length: at_once }, () => client.upload(input, 20)))).then((all) => {
      sent = all
    }),
  )
  const loop = await loopDelay(url, key)
  const service_cpu_s = (service.cpu_us() - serviceCpuUs) / 1e6
  parsed.push(await spent(() => parseAll(input)))
  const [api = 0, worker = 0] = service.peak_mib()
  await service.stop()

  const parse_s = (parsed.reduce((sum, { wall_s }) => sum + wall_s, 0) / parsed.length) * at_once
  const parse_cpu_s = (parsed.reduce((sum, { cpu_s }) => sum + cpu_s, 0) / parsed.length) * at_once
  const cpu = (seconds: number): number => round((seconds * 1000) / mb)
  const row = {
    text,
    'upload + validation, MB/s': Math.round(mb / sent.wall_s),
    'JSON.parse alone, MB/s': Math.round(mb / parse_s),
    ratio: round(parse_s / sent.wall_s),
    goal: GOAL,
    'CPU, ms/MB: service': cpu(service_cpu_s),
    client: cpu(sent.cpu_s),
    'JSON.parse': cpu(parse_cpu_s),
    // With every core busy for nothing else.
    'limit of the ratio': round((parse_cpu_s * CORES) / (service_cpu_s + sent.cpu_s)),
  }
  console.table([row])
  const states = {
    idle: { ...summary(idle), ...idle_loop, 'API peak, MiB': idle_mib[0] },
    meanwhile: { ...summary(busy), ...loop, 'API peak, MiB': api },
  }
  console.table(states)
  console.log(JSON.stringify({ bench: 'upload', bytes, at_once, ...row, ...states, worker_mib: worker }))
}

/** How long calls take until `end` resolves, in ms. */
async function pings(url: string, end: Promise<unknown>): Promise<number[]> {
  const times: number[] = []
  let isOver = false
  const over = end.finally(() => {
    isOver = true
  })
  while (!isOver) {
    const sent = performance.now()
    await (await fetch(`${url}/healthz`)).arrayBuffer()
    times.push(performance.now() - sent)
    await setTimeout(ASK_EVERY_MS)
  }
  await over
  return times
}

/**
 * How late the API's event loop was since the last time this was asked, as it measures itself: with a timer of
 * 10 ms, which is part of the number.
 */
async function loopDelay(url: string, key: string): Promise<Record<string, number>> {
  await setTimeout(Math.max(0, pageKeptUntil - performance.now()))
  const page = await (await fetch(`${url}/metrics`, { headers: { authorization: `Bearer ${key}` } })).text()
  pageKeptUntil = performance.now() + PAGE_KEPT_MS
  const ms = (name: string): number =>
    round(
      1000 *
        Number(
          new RegExp(`^nodejs_eventloop_lag_${name}_seconds\\{process="api"\\} (.+)$`, 'm').exec(page)?.[1],
        ),
    )
  return { 'loop p50, ms': ms('p50'), 'loop p99, ms': ms('p99') }
}

function summary(times: readonly number[]): Record<string, number> {
  const sorted = times.toSorted((a, b) => a - b)
  const at = (share: number): number =>
    Math.round((sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? 0) * 10) / 10
  return { calls: times.length, 'p50, ms': at(0.5), 'p99, ms': at(0.99), 'max, ms': at(1) }
}

/** Seconds, on the clock and of this process's CPU. */
async function spent(run: () => Promise<unknown>): Promise<{ wall_s: number; cpu_s: number }> {
  const begun = performance.now()
  const cpu = process.cpuUsage()
  await run()
  const { user, system } = process.cpuUsage(cpu)
  return { wall_s: (performance.now() - begun) / 1000, cpu_s: (user + system) / 1e6 }
}

/** Every line of the file, read in blocks and parsed. */
async function parseAll(input: string): Promise<void> {
  let rest: Buffer = Buffer.alloc(0)
  for await (const block of createReadStream(input, { highWaterMark: 1 << 20 })) {
    const bytes: Buffer = Buffer.concat([rest, block])
    let at = 0
    for (let end = bytes.indexOf(NEWLINE); end !== -1; end = bytes.indexOf(NEWLINE, at)) {
      JSON.parse(bytes.toString('utf8', at, end))
      at = end + 1
    }
    rest = bytes.subarray(at)
  }
}

function round(value: number): number {
  return Math.round(value * 100) / 100
}
