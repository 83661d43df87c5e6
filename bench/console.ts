// The cost of consoles that are open while a batch is dispatched at full speed: the same batch with and without ten live
// streams (GET /v1/live), in turn, by CPU and by lines/s, and how long GET /v1/batches/{id} takes meanwhile.
//
//   node bench/console.ts [--lines 30000] [--rounds 3] [--streams 10] [--every-ms 5]
import { setTimeout } from 'node:timers/promises'
import { Agent, Pool } from 'undici'
import { Bench, inTurns, median, modelAt, option, quantile, rounded } from './harness.ts'

const lines = option('lines', 30_000)
const rounds = option('rounds', 3)
const streams = option('streams', 10)
const everyMs = option('every-ms', 5)
await using bench = new Bench('console')
const service = await bench.service(modelAt(await bench.upstream()))
const { url, key, client } = service
const headers = { authorization: `Bearer ${key}` }
const pool = new Pool(url, { connections: 1 })
const agent = new Agent({ bodyTimeout: 0 })
bench.defer(() => Promise.all([pool.close(), agent.close()]))
const file = await client.upload(await bench.lines(lines, 1024), 50)

interface Round {
  lines_per_s: number
  cpu_us_per_line: number
  p50_ms: number
  p99_ms: number
  events: number
}

// The first batch finds the concurrency and warms the code up.
await round(0)
const [without = [], beside = []] = await inTurns(rounds, [() => round(0), () => round(streams)])
console.table({ 'no console': medians(without), [`${streams} consoles`]: medians(beside) })
const ratio = (of: (round: Round) => number): number => median(beside.map(of)) / median(without.map(of))
bench.figure(
  `lines/s beside ${streams} consoles ÷ without`,
  ratio((one) => one.lines_per_s),
  { atLeast: 0.97 },
)
bench.figure(
  `CPU a line beside ${streams} consoles ÷ without`,
  ratio((one) => one.cpu_us_per_line),
)
bench.figure('a status call beside them, p99 ms', median(beside.map(({ p99_ms }) => p99_ms)), { atMost: 10 })

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
  return {
    lines_per_s: lines / seconds,
    cpu_us_per_line: (service.cpu_us() - cpu) / lines,
    p50_ms: quantile(times, 0.5),
    p99_ms: quantile(times, 0.99),
    events,
  }
}

function medians(all: readonly Round[]): Round {
  const of = (name: keyof Round): number => rounded(median(all.map((one) => one[name])))
  return {
    lines_per_s: of('lines_per_s'),
    cpu_us_per_line: of('cpu_us_per_line'),
    p50_ms: of('p50_ms'),
    p99_ms: of('p99_ms'),
    events: of('events'),
  }
}
