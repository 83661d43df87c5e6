// Three lines on an idle service, from the start of the upload to `completed`; and the same while a big batch of
// another project keeps the model server busy. Before that, the first three lines of new services, from `serve` typed to
// the results read.
//
//   node bench/small.ts [--rounds 10] [--big 200000] [--starts 3]
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { BatchClient, makeKey, writeLines } from './batch-client.ts'
import { start } from './processes.ts'
import { startService } from './service.ts'

const { values } = parseArgs({
  options: {
    rounds: { type: 'string', default: '10' },
    big: { type: 'string', default: '200000' },
    starts: { type: 'string', default: '3' },
  },
})
const GOAL_MS = 500
const COLD_GOAL_MS = 700
const ASK_EVERY_MS = 5

const here = (file: string): string => fileURLToPath(new URL(file, import.meta.url))
const main = here('../bin/offpeak.js')
const folder = mkdtempSync(join(tmpdir(), 'offpeak-bench-'))
const upstream = await start(here('./fast-upstream.ts'), [])
const models = `
models:
  - {id: bench, upstreams: [{type: openai, base_url: "${upstream.first}", concurrency_max: 64}]}
`
const input = join(folder, 'three.jsonl')
await writeLines(input, 3, 400)
const cold: ColdStart[] = []
for (let i = 0; i < Number(values.starts); i++) cold.push(await coldStart())
const service = await startService(folder, models)
const { flags, url, client: small } = service

interface ColdStart {
  'listening, ms': number
  'uploaded, ms': number
  'completed, ms': number
  'results there, ms': number
  'goal ms': number
}

/** Each from the moment in which `serve` is typed, on an empty data folder. */
async function coldStart(): Promise<ColdStart> {
  const own = mkdtempSync(join(tmpdir(), 'offpeak-bench-'))
  const typed = performance.now()
  const sinceTyped = (): number => Math.round(performance.now() - typed)
  const started = await startService(own, models)
  const listening = sinceTyped()
  const file = await started.client.upload(input, ASK_EVERY_MS)
  const uploaded = sinceTyped()
  const { id } = await started.client.create(file)
  const { output_file_id } = await started.client.completed(id, ASK_EVERY_MS)
  const completed = sinceTyped()
  const headers = { authorization: `Bearer ${started.key}` }
  const answers = await fetch(`${started.url}/v1/files/${output_file_id}/content`, { headers })
  const count = (await answers.text()).trim().split('\n').length
  const there = sinceTyped()
  await started.stop()
  rmSync(own, { recursive: true })
  if (count !== 3) throw new Error(`${count} answers instead of three`)
  return {
    'listening, ms': listening,
    'uploaded, ms': uploaded,
    'completed, ms': completed,
    'results there, ms': there,
    'goal ms': COLD_GOAL_MS,
  }
}

interface Timing {
  upload_ms: number
  total_ms: number
}

async function round(): Promise<Timing> {
  const begun = performance.now()
  const file = await small.upload(input, ASK_EVERY_MS)
  const upload_ms = performance.now() - begun
  const { id } = await small.create(file)
  await small.completed(id, ASK_EVERY_MS)
  return { upload_ms, total_ms: performance.now() - begun }
}

async function rounds(): Promise<Timing[]> {
  const timings: Timing[] = []
  for (let i = 0; i < Number(values.rounds); i++) {
    timings.push(await round())
    // Idle again, and at another moment of every interval.
    await setTimeout(137)
  }
  return timings
}

function summary(timings: readonly Timing[]): object {
  const sorted = timings.map(({ total_ms }) => total_ms).sort((a, b) => a - b)
  const uploads = timings.map(({ upload_ms }) => upload_ms).sort((a, b) => a - b)
  const at = (list: readonly number[], share: number): number =>
    Math.round(list[Math.min(list.length - 1, Math.floor(share * list.length))] ?? 0)
  return {
    'upload and validation, median ms': at(uploads, 0.5),
    'median ms': at(sorted, 0.5),
    'worst ms': at(sorted, 1),
    'goal ms': GOAL_MS,
  }
}

const first = await round()
const idle = await rounds()
const big = join(folder, 'big.jsonl')
await writeLines(big, Number(values.big), 400)
const other = new BatchClient(url, makeKey(main, 'big', flags))
const { id } = await other.create(await other.upload(big, 50))
while ((await other.get(id)).request_counts.completed === 0) await setTimeout(ASK_EVERY_MS)
const busy = await rounds()
const meanwhile = await other.get(id)
const table = { idle: summary(idle), 'beside a big batch': summary(busy) }
console.table(table)
console.log('the first job after a cold start, from `serve` typed')
console.table(cold)
console.log(`the very first of a running service: ${Math.round(first.total_ms)} ms`)
const { completed, total } = meanwhile.request_counts
console.log(`the big batch was still ${meanwhile.status} then, with ${completed} of ${total} lines done`)
console.log(JSON.stringify({ bench: 'small', cold, first, idle, busy }))
await service.stop()
await upstream.stop()
rmSync(folder, { recursive: true })
