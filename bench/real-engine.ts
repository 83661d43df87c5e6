// Batches on a real vLLM and a real model, both from a package index as for `npm run test:engine`:
//
// - the share of prompt tokens that vLLM's own counters say came from its prefix cache, and the time taken, for documents with
//   several questions each in three orders of the file: document by document, question by question, shuffled; each through
//   Offpeak and by a client that sends the file as it is, at the same concurrency. The cache holds a part of the documents;
// - the time for a file, in turns on the same machine: `vllm run-batch`, from when its engine is ready until its answers are
//   written, and from when it is typed; a client that sends 64 requests at once; `run --upstream`, from when it is typed until it has ended;
// - `run --engine vllm` as often, less the time that it takes for a file of one line.
//
//   node bench/real-engine.ts [--documents 32] [--questions 4] [--bytes 1024] [--concurrency 4] [--cached 8]
//     [--lines 48] [--tokens 16] [--pairs 3] [--only orders|time|engine]
import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { Pool } from 'undici'
import { installVllm } from '../test/engines/installed-engines.ts'
import { VllmServer } from '../test/engines/vllm-server.ts'
import { until } from '../test/support/offpeak-process.ts'
import { Bench, inTurns, median, modelAt, option, rounded, runBatch } from './harness.ts'

const documents = option('documents', 32)
const questions = option('questions', 4)
const bytes = option('bytes', 1024)
const concurrency = option('concurrency', 4)
const cached = option('cached', 8)
const lines = option('lines', 48)
const tokens = option('tokens', 16)
const pairs = option('pairs', 3)
const only = option('only', '')
await using bench = new Bench('real-engine')

const CLIENT_CONCURRENCY = 64
/** Tokens of a block of the cache, as `installVllm` sets it. */
const BLOCK_TOKENS = 32
/** As many as the longest prompt that the model may have takes, and one that vLLM uses for nothing. */
const BLOCKS_MIN = 65
const ASK_MS = 20
const OFFPEAK = fileURLToPath(new URL('../bin/offpeak.js', import.meta.url))
const run = promisify(execFile)
const installed = installVllm()

interface Body {
  model: string
  max_tokens: number
  messages: { role: string; content: string }[]
}

function bodyOf(content: string, max_tokens: number): Body {
  const settings = { model: 'bench', temperature: 0, max_tokens, ignore_eos: true }
  return { ...settings, messages: [{ role: 'user', content }] }
}

function write(name: string, bodies: readonly Body[]): string {
  const path = join(bench.folder, `${name}.jsonl`)
  const rows = bodies.map((body, i) => ({
    custom_id: `l${i}`,
    ...{ method: 'POST', url: '/v1/chat/completions', body },
  }))
  writeFileSync(path, rows.map((row) => JSON.stringify(row)).join('\n'))
  return path
}

/** Sends the bodies in their order, so many at once; resolves with the seconds that it took. */
async function send(url: string, bodies: readonly Body[], atOnce: number): Promise<number> {
  const pool = new Pool(url, { connections: atOnce, pipelining: 1, headersTimeout: 0, bodyTimeout: 0 })
  const headers = { 'content-type': 'application/json' }
  const waiting = bodies.map((body) => JSON.stringify(body)).values()
  const begun = performance.now()
  const one = async (): Promise<void> => {
    for (const body of waiting) {
      const answer = await pool.request({ path: '/v1/chat/completions', method: 'POST', headers, body })
      if (answer.statusCode !== 200) throw new Error(`${answer.statusCode}: ${await answer.body.text()}`)
      await answer.body.dump()
    }
  }
  await Promise.all(Array.from({ length: atOnce }, one))
  await pool.close()
  return (performance.now() - begun) / 1000
}

const WORDS =
  'the ferry crosses a cold bay between two small towns while gulls follow it and nobody waits long'.split(
    ' ',
  )

/** Text that shares no beginning with that of another seed. */
function textOf(seed: number): string {
  let x = seed + 1
  const words = [`Document ${seed}.`]
  for (let length = 0; length < bytes; length += words.at(-1)!.length + 1) {
    x = (Math.imul(x, 1_664_525) + 1_013_904_223) >>> 0
    words.push(WORDS[(x >>> 16) % WORDS.length]!)
  }
  return words.join(' ')
}

async function measureOrders(): Promise<void> {
  const texts = Array.from({ length: documents }, (_, i) => textOf(i))
  const ask = (document: number, question: number): Body =>
    bodyOf(`${texts[document]}\n\nQuestion ${question}: what happens then?`, 1)
  const byDocument = texts.flatMap((_, d) => Array.from({ length: questions }, (_, q) => ask(d, q)))
  const byQuestion = Array.from({ length: questions }, (_, q) => texts.map((_, d) => ask(d, q))).flat()
  const shuffled = byDocument.map((body, i) => ({ body, at: Math.imul(i + 1, 0x9e3779b1) >>> 0 }))
  const orders = {
    'document by document': byDocument,
    'question by question': byQuestion,
    shuffled: shuffled.toSorted((a, b) => a.at - b.at).map(({ body }) => body),
  }
  const documentBlocks = Math.ceil(bytes / 4 / BLOCK_TOKENS) + 2
  const blocks = Math.max(BLOCKS_MIN, (cached + concurrency) * documentBlocks)
  const vllm = await VllmServer.start(installed, [
    ...['--served-model-name', 'bench', '--max-num-seqs', String(concurrency)],
    ...['--num-gpu-blocks-override', String(blocks), '--enable-prompt-tokens-details'],
  ])
  bench.defer(() => vllm.stop())
  const service = await bench.service(modelAt(`${vllm.url}/v1`, concurrency))
  const counted = async (work: () => Promise<number>): Promise<{ hits: number; seconds: number }> => {
    await vllm.resetPrefixCache()
    const counters = () =>
      Promise.all(['prefix_cache_hits_total', 'prefix_cache_queries_total'].map((name) => vllm.metric(name)))
    const [hitsBefore = 0, queriesBefore = 0] = await counters()
    const seconds = await work()
    const [hits = 0, queries = 0] = await counters()
    return { hits: (hits - hitsBefore) / (queries - queriesBefore), seconds }
  }
  await send(vllm.url, byDocument.slice(0, 1), 1)
  const best = await counted(() => send(vllm.url, byDocument, 1))
  const table: Record<string, Record<string, number>> = {}
  const took: Record<string, number> = {}
  for (const [name, bodies] of Object.entries(orders)) {
    const client = await counted(() => send(vllm.url, bodies, concurrency))
    const file = await service.client.upload(write('order', bodies), ASK_MS)
    const offpeak = await counted(async () => (await runBatch(service, file, { askMs: ASK_MS })).seconds)
    took[name] = offpeak.seconds
    table[name] = {
      'client, hits': rounded(client.hits),
      'client, s': rounded(client.seconds),
      'offpeak, hits': rounded(offpeak.hits),
      'offpeak, s': rounded(offpeak.seconds),
      'offpeak ÷ best': rounded(offpeak.hits / best.hits),
    }
    bench.figure(`hits, ${name}, ÷ one request at a time in the best order`, offpeak.hits / best.hits)
  }
  console.table(table)
  bench.figure(
    'time of a batch, question by question ÷ document by document',
    took['question by question']! / took['document by document']!,
    { atMost: 1.1 },
  )
  await service.stop()
  await vllm.stop()
}

let passes = 0
/** GSM8K's questions with a beginning of their own in each pass, so that no cache knows them. */
function someBodies(count: number): Body[] {
  const rows = readFileSync(new URL('../examples/gsm8k.jsonl', import.meta.url), 'utf8').split('\n')
  const pass = ++passes
  return Array.from({ length: count }, (_, i) => {
    const { body } = JSON.parse(rows[i % rows.length] ?? '{}')
    return bodyOf(`Pass ${pass}, question ${i}. ${body.messages[0].content}`, tokens)
  })
}

const output = join(bench.folder, 'out.jsonl')
const data = join(bench.folder, 'run')

/** Runs `offpeak run` for a file; resolves with its seconds. */
async function offpeak(count: number, ...args: string[]): Promise<number> {
  const input = write('in', someBodies(count))
  for (const path of [output, data]) rmSync(path, { recursive: true, force: true })
  const begun = performance.now()
  const command = [OFFPEAK, 'run', input, '-o', output, '--data', data, ...args]
  await run(process.execPath, command, {
    env: { ...process.env, OFFPEAK_VLLM: installed.server },
    maxBuffer: 2 ** 28,
  })
  return (performance.now() - begun) / 1000
}

/** The seconds that `vllm run-batch` took in each run with the start of its engine. */
const withStart: number[] = []

/** Runs `vllm run-batch` for a file; resolves with the seconds between the start of its engine and the end of its answers. */
async function vllmRunBatch(count: number): Promise<number> {
  rmSync(output, { force: true })
  const args = ['run-batch', '-i', write('in', someBodies(count)), '-o', output]
  const ours = ['--model', installed.model, '--served-model-name', 'bench']
  const typed = performance.now()
  const child = spawn(installed.server, [...args, ...ours], { stdio: ['ignore', 'pipe', 'pipe'] })
  bench.defer(() => child.kill())
  let begun = Number.NaN
  for (const stream of [child.stdout, child.stderr])
    createInterface({ input: stream }).on('line', (line) => {
      if (line.includes('Reading batch from')) begun = performance.now()
    })
  const exited = once(child, 'exit')
  await until(() => child.exitCode !== null || existsSync(output))
  const seconds = (performance.now() - begun) / 1000
  await exited
  withStart.push((performance.now() - typed) / 1000)
  const answered = readFileSync(output, 'utf8').match(/"status_code": ?200/g)?.length
  if (answered !== count) throw new Error(`vllm run-batch answered ${answered} of ${count} lines`)
  return seconds
}

/** The seconds of each way in turns; each is printed as it is found. */
async function secondsOf(
  ways: Readonly<Record<string, () => Promise<number>>>,
): Promise<readonly (readonly number[])[]> {
  const told = Object.entries(ways).map(([way, measure]) => async () => {
    const seconds = await measure()
    console.log(`${way}: ${rounded(seconds)} s`)
    return seconds
  })
  return await inTurns(pairs, told)
}

async function measureTime(): Promise<void> {
  const vllm = await VllmServer.start(installed, ['--served-model-name', 'bench'])
  bench.defer(() => vllm.stop())
  await send(vllm.url, someBodies(1), 1)
  const [batch = [], client = [], upstream = []] = await secondsOf({
    'vllm run-batch': () => vllmRunBatch(lines),
    'a client, 64 at once': () => send(vllm.url, someBodies(lines), CLIENT_CONCURRENCY),
    'run --upstream': () => offpeak(lines, '--upstream', `${vllm.url}/v1`),
  })
  const ratio = (to: readonly number[]): number => median(upstream.map((seconds, i) => seconds / to[i]!))
  bench.figure(`\`run --upstream\` ÷ \`vllm run-batch\`, both as typed, ${lines} lines`, ratio(withStart), {
    atMost: 1,
  })
  bench.figure(`\`run --upstream\` ÷ \`vllm run-batch\` less its start, ${lines} lines`, ratio(batch))
  bench.figure(`\`run --upstream\` ÷ a client, 64 at once, ${lines} lines`, ratio(client))
  await vllm.stop()
}

async function measureEngine(): Promise<void> {
  const managed = (count: number) => () => offpeak(count, '--engine', 'vllm', '--model', installed.model)
  const [one = [], all = []] = await secondsOf({
    'run --engine vllm, one line': managed(1),
    'run --engine vllm': managed(lines),
  })
  bench.figure(
    `\`run --engine vllm\`, ${lines} lines, less one line, s`,
    median(all.map((seconds, i) => seconds - one[i]!)),
  )
}

if (['', 'orders'].includes(only)) await measureOrders()
if (['', 'time'].includes(only)) await measureTime()
if (['', 'engine'].includes(only)) await measureEngine()
