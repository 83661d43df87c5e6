// Upload and validation through the whole service, against JSON.parse alone on the same lines; and meanwhile how
// long a call that needs nothing but the API's event loop takes.
//
//   node bench/upload.ts [--megabytes 200] [--bytes 1024]
import { createReadStream, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { BatchClient, writeLines } from './batch-client.ts'
import { start } from './processes.ts'

const { values } = parseArgs({
  options: { megabytes: { type: 'string', default: '200' }, bytes: { type: 'string', default: '1024' } },
})
const GOAL = 0.5
const ASK_EVERY_MS = 10
const NEWLINE = 0x0a

const folder = mkdtempSync(join(tmpdir(), 'offpeak-bench-'))
const input = join(folder, 'input.jsonl')
const line_bytes = Number(values.bytes)
await writeLines(input, Math.round((Number(values.megabytes) * 1e6) / line_bytes), line_bytes)
const bytes = statSync(input).size

const parse_s = await timed(parseAll)
const config = join(folder, 'offpeak.yaml')
writeFileSync(config, 'rate_limit: {requests_per_minute: 0}\nlog: {level: error}\n')
const data = join(folder, 'data')
const main = fileURLToPath(new URL('../src/main.ts', import.meta.url))
const service = await start(main, ['serve', '--port', '0', '--data', data, '--config', config])
const url = service.first.replace('offpeak listening on ', '')
const client = new BatchClient(url, readFileSync(join(data, 'api-key'), 'utf8').trim())

const idle = await pings(setTimeout(1_000))
let ingest_s = 0
const busy = await pings(
  timed(() => client.upload(input, 20)).then((seconds) => {
    ingest_s = seconds
  }),
)

const speed = (seconds: number): number => Math.round(bytes / 1e6 / seconds)
const row = {
  'upload + validation, MB/s': speed(ingest_s),
  'JSON.parse alone, MB/s': speed(parse_s),
  ratio: Math.round((parse_s / ingest_s) * 100) / 100,
  goal: GOAL,
}
console.table([row])
console.table({ 'health, idle': summary(idle), 'health, meanwhile': summary(busy) })
const [api, worker] = service.peak_mib()
console.log(
  JSON.stringify({
    bench: 'upload',
    bytes,
    ...row,
    idle: summary(idle),
    meanwhile: summary(busy),
    peak_mib: { api, worker },
  }),
)
await service.stop()
rmSync(folder, { recursive: true })

/** How long calls take until `end` resolves, in ms. */
async function pings(end: Promise<unknown>): Promise<number[]> {
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

function summary(times: readonly number[]): Record<string, number> {
  const sorted = times.toSorted((a, b) => a - b)
  const at = (share: number): number =>
    Math.round((sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? 0) * 10) / 10
  return { calls: times.length, p50_ms: at(0.5), p99_ms: at(0.99), max_ms: at(1) }
}

async function timed(run: () => Promise<unknown>): Promise<number> {
  const begun = performance.now()
  await run()
  return (performance.now() - begun) / 1000
}

/** Every line of the file, read in blocks and parsed. */
async function parseAll(): Promise<void> {
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
