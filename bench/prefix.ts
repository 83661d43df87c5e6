// How often model servers find the beginning of a prompt in their prefix caches: shuffled lines that share long
// beginnings, once in the order of the input, once as Offpeak really sends them, which the replicas of this run write
// down, and once by the best assignment, where each beginning goes to one replica, all its lines in a row. For
// comparison, what came of sorting the lines of each chunk and sending each to whichever replica was free. Each cache
// holds a fraction of the beginnings. Saturation is how many of the replicas' places were busy, the first and the last
// lines left out.
//
//   node bench/prefix.ts [--replicas 1] [--lines 6000] [--prefixes 50] [--cached 10] [--concurrency 32] [--latency-ms 0]
import { writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { join } from 'node:path'
import { buffer } from 'node:stream/consumers'
import { setTimeout as wait } from 'node:timers/promises'
import { completion } from '../test/fakes/upstream.ts'
import { Bench, option, rounded, runBatch } from './harness.ts'

const replicas = option('replicas', 1)
const lines = option('lines', 6000)
const prefixes = option('prefixes', 50)
const cached = option('cached', 10)
const concurrency = option('concurrency', 32)
const latencyMs = option('latency-ms', 0)
await using bench = new Bench('prefix')
/** Tokens per block, as vLLM has it by default. */
const BLOCK_TOKENS = 16
/** Bytes of English text per token, about. */
const TOKEN_BYTES = 4
const PREFIX_BYTES = 4096
const QUESTION_BYTES = 256
const CHUNK_LINES = 1000
/** The share of the lines at either end that saturation leaves out. */
const EDGE = 0.1

/**
 * A prefix cache as model servers keep it: prompts are cut into blocks of tokens, a block counts as cached only if every
 * block before it is, and the block that was not used for longest goes first when there is no room.
 * https://docs.vllm.ai/en/latest/design/prefix_caching/
 */
class PrefixCache {
  readonly #blocks_max: number
  /** In the order of their last use. */
  readonly #blocks = new Set<string>()
  hits = 0
  lookups = 0

  constructor(blocks_max: number) {
    this.#blocks_max = blocks_max
  }

  /** A prompt arrives; its blocks are cached afterwards. */
  serve(prompt: string): void {
    const blockBytes = BLOCK_TOKENS * TOKEN_BYTES
    let isHit = true
    let prefix = ''
    for (let end = blockBytes; end <= prompt.length; end += blockBytes) {
      // A block is known by all that comes before it and itself.
      prefix = prompt.slice(0, end)
      this.lookups++
      isHit &&= this.#blocks.has(prefix)
      if (isHit) this.hits++
      this.#blocks.delete(prefix)
      this.#blocks.add(prefix)
    }
    for (const oldest of this.#blocks) {
      if (this.#blocks.size <= this.#blocks_max) break
      this.#blocks.delete(oldest)
    }
  }
}

const prompts = Array.from({ length: lines }, (_, i) => promptOf(shuffled(i), i))
const input = join(bench.folder, 'input.jsonl')
writeFileSync(input, prompts.map((content, i) => `${JSON.stringify(lineOf(content, i))}\n`).join(''))

/** By replica, in the order of arrival. */
const sent: string[][] = []
const answer = completion('noted')
let answered = 0
let busy = 0
let busyMs = 0
let busySince = 0
let measuredMs = 0
const isMeasured = (): boolean => answered > EDGE * lines && answered < (1 - EDGE) * lines
const base_urls = await Promise.all(Array.from({ length: replicas }, (_, i) => replica(i)))
const upstreams = base_urls.map(
  (base_url) => `{type: openai, base_url: "${base_url}", concurrency_max: ${concurrency}}`,
)
const models = `models: [{id: bench, context_window: 8192, upstreams: [${upstreams.join(', ')}]}]`
const service = await bench.service(models)
await runBatch(service, await service.client.upload(input, 20), { askMs: 20 })

const rate = {
  'input order': hitRate(dealt(prompts)),
  'sorted by chunk': hitRate(dealt(sortedByChunk(prompts))),
  offpeak: hitRate(sent),
  best: hitRate(byBeginning(prompts)),
}
console.table(rate)
bench.figure('hit rate ÷ the best assignment', rate.offpeak / rate.best, { atLeast: 0.95 })
if (latencyMs > 0)
  bench.figure("share of the replicas' slots in use", busyMs / (measuredMs * replicas * concurrency))

/** Its base URL. */
async function replica(index: number): Promise<string> {
  const arrivals: string[] = []
  sent[index] = arrivals
  const server = createServer(async (request, response) => {
    const bytes = await buffer(request)
    if (request.method !== 'POST') {
      response.writeHead(404).end()
      return
    }
    arrivals.push(JSON.parse(String(bytes)).messages[0].content)
    count(1)
    if (latencyMs > 0) await wait(latencyMs * (0.5 + Math.random()))
    answered++
    count(-1)
    response.setHeader('content-type', 'application/json').end(answer)
  })
  return await bench.listen(server)
}

function count(change: number): void {
  const now = performance.now()
  if (busySince > 0) {
    busyMs += busy * (now - busySince)
    measuredMs += now - busySince
  }
  busySince = isMeasured() ? now : 0
  busy += change
}

/** The share of blocks that were in the caches. */
function hitRate(orders: readonly (readonly string[])[]): number {
  const blocks = Math.ceil(PREFIX_BYTES / (BLOCK_TOKENS * 4))
  let hits = 0
  let lookups = 0
  for (const order of orders) {
    const cache = new PrefixCache(cached * blocks)
    for (const prompt of order) cache.serve(prompt)
    hits += cache.hits
    lookups += cache.lookups
  }
  return rounded(hits / lookups)
}

/** To whichever replica is free: about in turn. */
function dealt(order: readonly string[]): string[][] {
  return Array.from({ length: replicas }, (_, at) => order.filter((_prompt, i) => i % replicas === at))
}

function sortedByChunk(order: readonly string[]): string[] {
  const chunks = Array.from({ length: Math.ceil(lines / CHUNK_LINES) }, (_, i) =>
    order.slice(i * CHUNK_LINES, (i + 1) * CHUNK_LINES),
  )
  return chunks.flatMap((chunk) => chunk.toSorted())
}

function byBeginning(order: readonly string[]): string[][] {
  const sorted = order.toSorted()
  return Array.from({ length: replicas }, (_, at) =>
    sorted.filter((prompt) => Number(prompt.slice('Handbook '.length, 12)) % replicas === at),
  )
}

/** Which beginning a line has: the same in every run, and without an order. */
function shuffled(i: number): number {
  let x = Math.imul(i + 1, 0x9e3779b1) >>> 0
  x ^= x >>> 16
  x = Math.imul(x, 0x85ebca6b) >>> 0
  return ((x ^ (x >>> 13)) >>> 0) % prefixes
}

function promptOf(prefix: number, i: number): string {
  const shared = `Handbook ${String(prefix).padStart(3, '0')}. ${'It says what to do. '.repeat(300)}`
  return `${shared.slice(0, PREFIX_BYTES)}Question ${i}: ${'and why so? '.repeat(40)}`.slice(
    0,
    PREFIX_BYTES + QUESTION_BYTES,
  )
}

function lineOf(content: string, i: number): object {
  const body = { model: 'bench', messages: [{ role: 'user', content }], max_tokens: 16 }
  return { custom_id: `line-${i}`, method: 'POST', url: '/v1/chat/completions', body }
}
