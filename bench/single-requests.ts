// Requests that come one at a time: how many are accepted a second over 200 connections, with full durability, and how soon;
// one request on an idle service, from the call to the readable answer; statements and memory per request. And a program that
// makes a number of calls at once, below `offpeak gather` and before the model server itself, in turns.
//
//   node bench/single-requests.ts [--requests 20000] [--connections 200] [--rounds 20] [--calls 1000] [--at-once 16,64]
import { existsSync, readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { Pool } from 'undici'
import { Bench, familyOf, inTurns, median, modelAt, OFFPEAK, option, quantile } from './harness.ts'

const requests = option('requests', 20_000)
const connections = option('connections', 200)
const rounds = option('rounds', 20)
const calls = option('calls', 1_000)
const atOnce = option('at-once', '16,64').split(',').map(Number)
/** Of a request. */
const BYTES = 1024
/** How long the model server of the program takes for an answer. */
const ANSWER_MS = { least: 300, most: 2_000 }

await using bench = new Bench('single-requests')
const counted = join(bench.folder, 'counts')
const preload = fileURLToPath(new URL('./count-process.ts', import.meta.url))
const { least, most } = ANSWER_MS
let answers = 0
// Evenly spread, so that both ways wait for the same.
const slow = await bench.waitingUpstream(() => least + (most - least) * ((answers++ * 0.618) % 1))
const slowModel = `  - {id: slow, upstreams: [{type: openai, base_url: "${slow}", concurrency_max: 512}]}\n`
const service = await bench.service(modelAt(await bench.upstream()) + slowModel, {
  env: { NODE_OPTIONS: `--import ${preload}`, COUNTS_FILE: counted },
})
const pool = new Pool(service.url, { connections })
bench.defer(() => pool.close())
const headers = { authorization: `Bearer ${service.key}`, 'content-type': 'application/json' }

const alone: number[] = []
for (let i = 0; i < rounds; i++) {
  const begun = performance.now()
  const { id } = await send(i)
  const { status } = await call('GET', `/v1/requests/${id}?wait=30s`)
  if (status !== 'completed') throw new Error(`a request is ${status}`)
  alone.push(performance.now() - begun)
}

await sendMany(2_000)
await allEnded()
const before = await statements()
const restingMib = service.resident_mib('Pss')[0] ?? 0
const times = await sendMany(requests)
await allEnded()
const perThousand = ((await statements()) - before) / (requests / 1000)
const heldMib = (service.resident_mib('Pss')[0] ?? 0) - restingMib
bench.figure('accepted a second', requests / times.seconds, { atLeast: 2000 })
bench.figure('time of a call, 99 of 100, ms', quantile(times.ms, 0.99), { atMost: 150 })
bench.figure('one request, idle, to the readable answer, median ms', median(alone), { atMost: 60 })
bench.figure('statements for 1,000 requests, accepted and answered', perThousand, { atMost: 120 })
bench.figure('memory of the API afterwards, above that at rest, MiB', heldMib, { atMost: 60 })

const gathered = await bench.start(OFFPEAK, ['gather', '--fresh', '--port', '0'], {
  ...{ OFFPEAK_BASE_URL: service.url, OFFPEAK_API_KEY: service.key, XDG_STATE_HOME: bench.folder },
})
const gather = gathered.first.split(' ').at(-1) ?? ''
for (const count of atOnce) {
  const [direct = [], below = []] = await inTurns(1, [
    () => program(slow, count),
    () => program(gather, count),
  ])
  const ratio = (below[0] ?? 0) / (direct[0] ?? 1)
  bench.figure(`a program of ${count} calls at once below gather, times of direct calls`, ratio, {
    atMost: 1.15,
  })
}

/** Runs a program that makes so many calls at once, and `calls` in all with 64 or more; returns its seconds. */
async function program(base: string, count: number): Promise<number> {
  const { origin, pathname } = new URL(`${base}/chat/completions`)
  const server = new Pool(origin, { connections: count })
  let sent = 0
  const begun = performance.now()
  const caller = async (): Promise<void> => {
    while (sent < Math.min(calls, (calls * count) / 64)) {
      const messages = [
        { role: 'user', content: `${base} ${count} ${sent++} `.padEnd(BYTES, 'as they came ') },
      ]
      const body = JSON.stringify({ model: 'slow', messages, max_tokens: 50 })
      const answer = await server.request({ method: 'POST', path: pathname, headers, body })
      const text = await answer.body.text()
      if (answer.statusCode !== 200) throw new Error(`${base}: ${answer.statusCode} ${text}`)
    }
  }
  await Promise.all(Array.from({ length: count }, caller))
  await server.close()
  return (performance.now() - begun) / 1000
}

async function sendMany(count: number): Promise<{ seconds: number; ms: number[] }> {
  const ms: number[] = []
  let sent = 0
  const begun = performance.now()
  const sender = async (): Promise<void> => {
    while (sent < count) {
      const at = performance.now()
      await send(sent++)
      ms.push(performance.now() - at)
    }
  }
  await Promise.all(Array.from({ length: connections }, sender))
  return { seconds: (performance.now() - begun) / 1000, ms }
}

async function send(number: number): Promise<{ id: string }> {
  const messages = [{ role: 'user', content: `${number} `.padEnd(BYTES, 'as they came ') }]
  const order = { endpoint: '/v1/chat/completions', body: { model: 'bench', messages, max_tokens: 50 } }
  return await call('POST', '/v1/requests', JSON.stringify(order))
}

async function call(method: 'GET' | 'POST', path: string, body?: string) {
  const answer = await pool.request({ method, path, headers, ...(body && { body }) })
  const text = await answer.body.text()
  if (answer.statusCode > 202) throw new Error(`${method} ${path}: ${answer.statusCode} ${text}`)
  return JSON.parse(text)
}

async function allEnded(): Promise<void> {
  for (;;) {
    const { data } = await call('GET', '/v1/batches?kind=requests&limit=100')
    const open = data.filter(({ request_counts: { total, completed } }: Gathered) => completed < total)
    if (open.length === 0) return
    await setTimeout(50)
  }
}

interface Gathered {
  request_counts: { total: number; completed: number }
}

/** Of all processes of the service. */
async function statements(): Promise<number> {
  const processes = familyOf(service.process.pid!)
  let sum = 0
  for (const id of processes) {
    const path = `${counted}-${id}`
    rmSync(path, { force: true })
    process.kill(id, 'SIGUSR2')
    while (!existsSync(path) || readFileSync(path, 'utf8') === '') await setTimeout(10)
    sum += JSON.parse(readFileSync(path, 'utf8')).statements
  }
  return sum
}
