// Requests that come one at a time: how many are accepted a second over 200 connections, with full durability, and how soon;
// one request on an idle service, from the call to the readable answer; statements and memory per request.
//
//   node bench/single-requests.ts [--requests 20000] [--connections 200] [--rounds 20]
import { existsSync, readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { Pool } from 'undici'
import { Bench, familyOf, median, modelAt, option, quantile } from './harness.ts'

const requests = option('requests', 20_000)
const connections = option('connections', 200)
const rounds = option('rounds', 20)
/** Of a request. */
const BYTES = 1024

await using bench = new Bench('single-requests')
const counted = join(bench.folder, 'counts')
const preload = fileURLToPath(new URL('./count-process.ts', import.meta.url))
const service = await bench.service(modelAt(await bench.upstream()), {
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
