// The cost of a managed llama.cpp server beside one that is used by hand, on a real model:
//
// - from `run --model x.gguf` typed to the first line sent, beside the start of the same server until it is healthy, in that
//   very run and by hand: what is left is ours, before the server is started and after it is ready;
// - lines/s of a batch through a managed server, beside a loop over the same server with the best concurrency of those tried.
//
//   node bench/engines.ts [--rounds 3] [--pairs 2] [--lines 48] [--tokens 16] [--only start]
//
// Without --server and --model, both come from PyPI, as for `npm run test:engine`.
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { Client, request } from 'undici'
import { freePort } from '../src/engines/engine-access.ts'
import { installLlamaCpp } from '../test/engines/installed-engines.ts'
import { Bench, median, option, rounded, runBatch, startService } from './harness.ts'

const given = { server: option('server', ''), model: option('model', '') }
const rounds = option('rounds', 3)
const pairs = option('pairs', 2)
const lines = option('lines', 48)
const tokens = option('tokens', 16)
const only = option('only', '')
await using bench = new Bench('engines')
const SLOTS = 8
const CONTEXT_EACH = 1024
const CONCURRENCIES = [1, 4, 8, 16]
const POLL_MS = 5

const here = (file: string): string => fileURLToPath(new URL(file, import.meta.url))
const found = given.server !== '' && given.model !== '' ? given : installLlamaCpp()
const server = resolve(found.server)
const model = resolve(found.model)
const offpeak = here('../bin/offpeak.js')
const questions = readFileSync(here('../examples/gsm8k.jsonl'), 'utf8').split('\n')
const { folder } = bench
let passes = 0

/** The same questions each time, but with a beginning of their own: a server keeps the beginnings that it has seen. */
function bodies(count: number): { model: string; max_tokens: number; messages: { content: string }[] }[] {
  const pass = ++passes
  return Array.from({ length: count }, (_, i) => {
    const { body } = JSON.parse(questions[i % questions.length] ?? '{}')
    body.messages[0].content = `Pass ${pass}, question ${i}. ${body.messages[0].content}`
    return { ...body, model: 'bench', max_tokens: tokens }
  })
}

function writeInput(count: number): string {
  const path = join(folder, 'in.jsonl')
  const lines = bodies(count).map((body, i) =>
    JSON.stringify({ custom_id: `l${i}`, method: 'POST', url: '/v1/chat/completions', body }),
  )
  writeFileSync(path, lines.join('\n'))
  return path
}

const args = (port: number | string): string[] => [
  ...['--model', model, '--alias', 'bench', '--host', '127.0.0.1', '--port', String(port)],
  ...['--parallel', String(SLOTS), '--ctx-size', String(SLOTS * CONTEXT_EACH), '--metrics', '--jinja'],
]

interface ByHand {
  url: string
  start_ms: number
  process: ChildProcess
}

async function startByHand(): Promise<ByHand> {
  const url = `http://127.0.0.1:${await freePort()}`
  const begun = performance.now()
  const process = spawn(server, args(new URL(url).port), { stdio: 'ignore' })
  await healthy(url)
  return { url, process, start_ms: performance.now() - begun }
}

async function healthy(url: string, socketPath?: string): Promise<void> {
  const to = new Client(url, socketPath === undefined ? {} : { socketPath })
  const isHealthy = (): Promise<boolean> =>
    to.request({ method: 'GET', path: '/health' }).then(
      async ({ statusCode, body }) => {
        await body.dump()
        return statusCode === 200
      },
      () => false,
    )
  while (!(await isHealthy())) await setTimeout(POLL_MS)
  await to.close()
}

async function end(process: ChildProcess): Promise<void> {
  process.kill('SIGTERM')
  await once(process, 'exit')
}

/** Milliseconds from `run` typed to its server started, ready, and to the first line sent, as the audit record says. */
async function firstLine(): Promise<{ launched: number; ready: number; sent: number }> {
  const data = join(folder, 'data')
  rmSync(data, { recursive: true, force: true })
  const launch = join(folder, 'launch')
  rmSync(launch, { force: true })
  const program = join(folder, 'llama-server')
  const script = `#!/bin/sh
echo "$(date +%s%3N) $*" > '${launch}.new' && mv '${launch}.new' '${launch}'
exec '${server}' "$@"
`
  writeFileSync(program, script, { mode: 0o755 })
  const input = writeInput(1)
  const output = join(folder, 'out.jsonl')
  const typed = Date.now()
  const run = spawn(
    process.execPath,
    [offpeak, 'run', input, '--model', model, '--data', data, '-o', output],
    {
      env: { ...process.env, OFFPEAK_LLAMA_SERVER: program },
      stdio: 'ignore',
    },
  )
  const exit = once(run, 'exit')
  while (!existsSync(launch) && run.exitCode === null) await setTimeout(POLL_MS)
  const [launched = '', ...words] = readFileSync(launch, 'utf8').trim().split(' ')
  await healthy('http://localhost', words[words.indexOf('--host') + 1])
  const ready = Date.now()
  const [code] = await exit
  if (code !== 0) throw new Error(`run ended with ${code}`)
  const service = await startService(folder, '')
  const { id }: { id: string } = JSON.parse(readFileSync(output, 'utf8'))
  const { body } = await request(`${service.url}/v1/requests/${id}`, {
    headers: { authorization: `Bearer ${service.key}` },
  })
  const record = (await body.json()) as { attempts: { at: number }[] }
  await service.stop()
  const sent = (record.attempts[0]?.at ?? 0) * 1000
  return { launched: Number(launched) - typed, ready: ready - typed, sent: sent - typed }
}

/** Lines/s of a loop with so many at once. */
async function loop(url: string, concurrency: number): Promise<number> {
  const waiting = bodies(lines)
  const begun = performance.now()
  const one = async (): Promise<void> => {
    for (let body = waiting.pop(); body !== undefined; body = waiting.pop()) {
      const answer = await request(`${url}/v1/chat/completions`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify(body),
        headersTimeout: 0,
        bodyTimeout: 0,
      })
      if (answer.statusCode !== 200) throw new Error(`${answer.statusCode}: ${await answer.body.text()}`)
      await answer.body.dump()
    }
  }
  await Promise.all(Array.from({ length: concurrency }, one))
  return lines / ((performance.now() - begun) / 1000)
}

async function measureStart(): Promise<void> {
  const starts: Record<string, number>[] = []
  for (let round = 0; round < rounds; round++) {
    const { process, start_ms } = await startByHand()
    await end(process)
    const { launched, ready, sent } = await firstLine()
    starts.push({
      'by hand, ms': Math.round(start_ms),
      'typed to started, ms': launched,
      'started to ready, ms': ready - launched,
      'ready to first line, ms': Math.round(sent - ready),
      'ours, ms': Math.round(launched + sent - ready),
    })
  }
  console.table(starts)
  bench.figure(
    '`run --model` typed to the first line, less the server, ms',
    median(starts.map((one) => one['ours, ms']!)),
    {
      atMost: 200,
    },
  )
}

async function measureThroughput(): Promise<void> {
  const command = JSON.stringify([server, ...args('{port}')])
  const upstream = `{type: openai, concurrency_max: ${2 * SLOTS}, engine: {command: ${command}}}`
  const service = await bench.service(`models: [{id: bench, upstreams: [${upstream}]}]`)
  const managed = async (count: number): Promise<number> => {
    const file = await service.client.upload(writeInput(count), POLL_MS)
    return (await runBatch(service, file, { askMs: POLL_MS })).lines_per_s
  }
  await managed(1)
  const hand = await startByHand()
  await loop(hand.url, 1)
  const tried: Record<number, number> = {}
  for (const concurrency of CONCURRENCIES) tried[concurrency] = await loop(hand.url, concurrency)
  const [best] = Object.entries(tried).sort(([, a], [, b]) => b - a)[0] ?? ['1']
  const taken: { 'by hand, lines/s': number; 'managed, lines/s': number; ratio: number }[] = []
  for (let pair = 0; pair < pairs; pair++) {
    const byHand = await loop(hand.url, Number(best))
    const through = await managed(lines)
    taken.push({
      'by hand, lines/s': rounded(byHand),
      'managed, lines/s': rounded(through),
      ratio: rounded(through / byHand),
    })
  }
  console.log(`by hand, lines/s by concurrency: ${JSON.stringify(tried)}; best: ${best}`)
  console.table(taken)
  bench.figure('lines/s of a managed server ÷ by hand', median(taken.map(({ ratio }) => ratio)))
  await end(hand.process)
}

if (only !== 'throughput') await measureStart()
if (only !== 'start') await measureThroughput()
