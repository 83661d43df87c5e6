// How often a model server's prefix cache has the document that a line asks about, by the order in which the file has its
// lines: document by document, question by question, and shuffled. The server, in this process, keeps the documents that were
// used last. Beside it, the best possible order: each document is computed once.
//
// With `--workers 3`, so many workers send to it, by PostgreSQL and a bucket.
//
//   node bench/orders.ts [--documents 8000] [--questions 4] [--bytes 1024] [--cached 800] [--concurrency 64] [--workers 1]
//     [--replicas 1] [--orders document,question,shuffled]
import { createWriteStream, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { join } from 'node:path'
import { buffer } from 'node:stream/consumers'
import { setTimeout as wait } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { sharedStorage } from '../test/fakes/shared-storage.ts'
import { completion } from '../test/fakes/upstream.ts'
import type { BatchClient } from './batch-client.ts'
import { Bench, option, reached, runBatch } from './harness.ts'

const documents = option('documents', 8000)
const questions = option('questions', 4)
const bytes = option('bytes', 1024)
const cached = option('cached', 800)
const concurrency = option('concurrency', 64)
const workers = option('workers', 1)
const replicas = option('replicas', 1)
const orders = option('orders', 'document,question,shuffled').split(',')
await using bench = new Bench('orders')
const GOALS: Readonly<Record<string, number>> = { document: 0.99, question: 0.95, shuffled: 0.9 }
const OFFPEAK = fileURLToPath(new URL('../bin/offpeak.js', import.meta.url))
const WORDS = 'the quick brown fox jumps over a lazy dog while engineers argue about tokens and prices'.split(
  ' ',
)
/** A line takes about so long, so that many are in flight. */
const LATENCY_MS = 2

let hits = 0
const answer = completion('noted')
const base_urls = await Promise.all(Array.from({ length: replicas }, replica))
const upstreams = base_urls.map(
  (base_url) => `{type: openai, base_url: "${base_url}", concurrency_max: ${concurrency}}`,
)
const models = `models: [{id: bench, context_window: 8192, upstreams: [${upstreams.join(', ')}]}]`
const served = workers === 1 ? await bench.service(models) : await byWorkers(workers)
for (const order of orders) {
  const input = join(bench.folder, `${order}.jsonl`)
  await writeInput(input, order)
  hits = 0
  await runBatch(served, await served.client.upload(input, 50))
  bench.figure(`${order}: hits ÷ the best possible`, hits / (documents * (questions - 1)), {
    atLeast: GOALS[order] ?? 0,
  })
}

async function replica(): Promise<string> {
  /** In the order of their last use. */
  const cache = new Set<string>()
  const server = createServer(async (request, response) => {
    const body = await buffer(request)
    if (request.method !== 'POST') return response.writeHead(404).end()
    const document = /Document \d+/.exec(body.toString('latin1'))?.[0] ?? ''
    if (cache.delete(document)) hits++
    cache.add(document)
    if (cache.size > cached) for (const oldest of cache.keys().take(1)) cache.delete(oldest)
    await wait(LATENCY_MS)
    return response.setHeader('content-type', 'application/json').end(answer)
  })
  return await bench.listen(server)
}

async function byWorkers(count: number): Promise<{ client: BatchClient; cpu_us: () => number }> {
  const storage = await sharedStorage({ fsync: false })
  bench.defer(() => storage[Symbol.asyncDispose]())
  const { yaml, env } = await storage.make()
  const config = join(bench.folder, 'offpeak.yaml')
  writeFileSync(config, `${yaml}\nrate_limit: {requests_per_minute: 0}\nlog: {level: warn}\n${models}`)
  const args = (role: string, data: string): string[] => [
    ...[role, '--config', config, '--data', join(bench.folder, data)],
  ]
  const api = await bench.start(OFFPEAK, [...args('api', 'api'), '--port', '0'], env)
  const names = Array.from({ length: count }, (_, i) => `worker-${i}`)
  await Promise.all(names.map((name) => bench.start(OFFPEAK, args('worker', name), env)))
  return { client: reached(api, join(bench.folder, 'api')).client, cpu_us: api.cpu_us }
}

async function writeInput(path: string, order: string): Promise<void> {
  const all = Array.from({ length: documents * questions }, (_, i) =>
    order === 'question'
      ? [i % documents, Math.floor(i / documents)]
      : [Math.floor(i / questions), i % questions],
  )
  if (order === 'shuffled')
    for (let i = all.length - 1; i > 0; i--) {
      const other = drawn(i) % (i + 1)
      ;[all[i], all[other]] = [all[other]!, all[i]!]
    }
  const file = createWriteStream(path)
  for (const [i, [document = 0, question = 0]] of all.entries()) {
    const content = `${textOf(document)}Question ${question}: what does it say, and why?`
    const body = { model: 'bench', messages: [{ role: 'user', content }], max_tokens: 16 }
    const line = { custom_id: `line-${i}`, method: 'POST', url: '/v1/chat/completions', body }
    if (!file.write(`${JSON.stringify(line)}\n`)) await new Promise((resolve) => file.once('drain', resolve))
  }
  await new Promise((resolve) => file.end(resolve))
}

function textOf(document: number): string {
  let text = `Document ${document}: `
  for (let at = document; text.length < bytes; at++) text += `${WORDS[drawn(at) % WORDS.length]} `
  return text.slice(0, bytes)
}

/** The same in every run, and without an order. */
function drawn(i: number): number {
  let x = Math.imul(i + 1, 0x9e3779b1) >>> 0
  x ^= x >>> 16
  x = Math.imul(x, 0x85ebca6b) >>> 0
  return (x ^ (x >>> 13)) >>> 0
}
