// How often a model server would find the beginning of a prompt in its prefix cache: shuffled lines that share 50
// long beginnings, once in the order of the input and once in the order in which Offpeak really sends them, which
// the upstream of this run writes down. The cache holds a fraction of the beginnings; the same for both.
//
//   node bench/prefix.ts [--lines 6000] [--prefixes 50] [--cached 10] [--concurrency 32]
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { buffer } from 'node:stream/consumers'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { completion } from '../test/fakes/upstream.ts'
import { BatchClient } from './batch-client.ts'
import { BLOCK_TOKENS, PrefixCache } from './prefix-cache.ts'
import { start } from './processes.ts'

const { values } = parseArgs({
  options: {
    lines: { type: 'string', default: '6000' },
    prefixes: { type: 'string', default: '50' },
    cached: { type: 'string', default: '10' },
    concurrency: { type: 'string', default: '32' },
  },
})
const PREFIX_BYTES = 4096
const QUESTION_BYTES = 256
const lines = Number(values.lines)
const prefixes = Number(values.prefixes)

const prompts = Array.from({ length: lines }, (_, i) => promptOf(shuffled(i), i))
const folder = mkdtempSync(join(tmpdir(), 'offpeak-bench-'))
const input = join(folder, 'input.jsonl')
writeFileSync(input, prompts.map((content, i) => `${JSON.stringify(lineOf(content, i))}\n`).join(''))

const sent: string[] = []
const answer = completion('noted')
const upstream = createServer(async (request, response) => {
  const body = JSON.parse(String(await buffer(request)))
  sent.push(body.messages[0].content)
  response.setHeader('content-type', 'application/json').end(answer)
}).listen(0, '127.0.0.1')
await once(upstream, 'listening')
const address = upstream.address()
if (address === null || typeof address === 'string') throw new Error('no port was given')
const config = join(folder, 'offpeak.yaml')
const base_url = `http://127.0.0.1:${address.port}/v1`
writeFileSync(
  config,
  `
rate_limit: {requests_per_minute: 0}
log: {level: error}
models:
  - id: bench
    upstreams: [{type: openai, base_url: "${base_url}", concurrency_max: ${values.concurrency}}]
`,
)
const data = join(folder, 'data')
const main = fileURLToPath(new URL('../bin/offpeak.js', import.meta.url))
const service = await start(main, ['serve', '--port', '0', '--data', data, '--config', config])
const url = service.first.replace('offpeak listening on ', '')
const client = new BatchClient(url, readFileSync(join(data, 'api-key'), 'utf8').trim())
const { id } = await client.create(await client.upload(input, 20))
await client.completed(id, 20)

const rate = { 'input order': hitRate(prompts), offpeak: hitRate(sent), best: hitRate(prompts.toSorted()) }
console.table(rate)
console.log(
  JSON.stringify({ bench: 'prefix', lines, prefixes, cached: Number(values.cached), hit_rate: rate }),
)
await service.stop()
upstream.closeAllConnections()
upstream.close()
rmSync(folder, { recursive: true })

/** The share of blocks that were in the cache. */
function hitRate(order: readonly string[]): number {
  const blocks = Math.ceil(PREFIX_BYTES / (BLOCK_TOKENS * 4))
  const cache = new PrefixCache(Number(values.cached) * blocks)
  for (const prompt of order) cache.serve(prompt)
  return Math.round((cache.hits / cache.lookups) * 1000) / 1000
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
