// What consoles cost that are open while a batch is dispatched at full speed: the same batch with and without ten live
// streams (GET /v1/live), in turn, by CPU and by lines/s, and how long GET /v1/batches/{id} takes meanwhile.
//
//   node bench/console.ts [--lines 30000] [--rounds 3] [--streams 10] [--every-ms 5]
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { Agent, Pool } from 'undici'
import { writeLines } from './batch-client.ts'
import { median } from './median.ts'
import { start } from './processes.ts'
import { startService } from './service.ts'

const { values } = parseArgs({
  options: {
    lines: { type: 'string', default: '30000' },
    rounds: { type: 'string', default: '3' },
    streams: { type: 'string', default: '10' },
    'every-ms': { type: 'string', default: '5' },
  },
})
const lines = Number(values.lines)
const streams = Number(values.streams)
const everyMs = Number(values['every-ms'])

const folder = mkdtempSync(join(tmpdir(), 'offpeak-bench-'))
const input = join(folder, 'input.jsonl')
await writeLines(input, lines, 1024)

const here = (file: string): string => new URL(file, import.meta.url).pathname
const upstream = await start(here('./fast-upstream.ts'), [])
const service = await startService(
  folder,
  `
models: [{id: bench, upstreams: [{type: openai, base_url: "${upstream.first}", concurrency_max: 64}]}]
`,
)
const { url, key, client } = service
const headers = { authorization: `Bearer ${key}` }
const pool = new Pool(url, { connections: 1 })
const agent = new Agent({ bodyTimeout: 0 })
const file = await client.upload(input, 50)

interface Round {
  lines_per_s: number
  cpu_us_per_line: number
  p50_ms: number
  p99_ms: number
  events: number
}

// The first batch finds the concurrency and warms the code up.
await round(0)
const without: Round[] = []
const beside: Round[] = []
for (let i = 0; i < Number(values.rounds); i++) {
  // Each goes first in turn.
  const order = i % 2 === 0 ? [0, streams] : [streams, 0]
  for (const count of order) (count === 0 ? without : beside).push(await round(count))
}

const rows = { 'no console': medians(without), [`${streams} consoles`]: medians(beside) }
const cost = (of: (round: Round) => number): number =>
  Math.round((median(beside.map(of)) / median(without.map(of)) - 1) * 1000) / 10
console.table(rows)
const lost = -cost((round) => round.lines_per_s)
const cpu = cost((round) => round.cpu_us_per_line)
console.log(`${streams} consoles cost ${lost} % of lines/s and ${cpu} % more CPU of the service`)
console.log(
  JSON.stringify({ bench: 'console', lines, streams, lost_percent: lost, cpu_percent: cpu, ...rows }),
)
await pool.close()
await agent.close()
await service.stop()
await upstream.stop()
rmSync(folder, { recursive: true })

/** One batch beside `count` streams. */
async function round(count: number): Promise<Round> {
  const leave = new AbortController()
  let events = 0
  const open = await Promise.all(
    Array.from({ length: count }, () =>
      agent.request({
        origin: url,
        method: 'GET',
        path: '/v1/live',
        headers: { ...headers, accept: 'text/event-stream' },
        signal: leave.signal,
      }),
    ),
  )
  const read = open.map(async ({ body }) => {
    try {
      for await (const piece of body) events += String(piece).split('event: update').length - 1
    } catch (error) {
      if (!leave.signal.aborted) throw error
    }
  })
  const cpu = service.cpu_us()
  const begun = performance.now()
  const { id } = await client.create(file)
  const times: number[] = []
  for (let done = false; !done; ) {
    await setTimeout(everyMs)
    const sent = performance.now()
    const response = await pool.request({ method: 'GET', path: `/v1/batches/${id}`, headers })
    const body = await response.body.text()
    times.push(performance.now() - sent)
    done = body.includes('"status":"completed"')
  }
  const seconds = (performance.now() - begun) / 1000
  leave.abort()
  await Promise.all(read)
  times.sort((a, b) => a - b)
  const at = (share: number): number =>
    times[Math.min(times.length - 1, Math.floor(times.length * share))] ?? 0
  return {
    lines_per_s: lines / seconds,
    cpu_us_per_line: (service.cpu_us() - cpu) / lines,
    p50_ms: at(0.5),
    p99_ms: at(0.99),
    events,
  }
}

function medians(rounds: readonly Round[]): Round {
  const of = (name: keyof Round): number => Math.round(median(rounds.map((one) => one[name])) * 100) / 100
  return {
    lines_per_s: of('lines_per_s'),
    cpu_us_per_line: of('cpu_us_per_line'),
    p50_ms: of('p50_ms'),
    p99_ms: of('p99_ms'),
    events: of('events'),
  }
}
