// Batch work beside live traffic in real time and over HTTP: a client sends streamed requests at 20 to 90 % of what a
// model server can answer, as in a day, while a service with `live` sends it lines. There are two days, of which the second
// counts, since a worker has to see what the others' peak is.
//
//   node bench/live-http.ts [--server sim|llama] [--minutes 10] [--workers 1,2] [--seed 1]
//
// - `sim`: `offpeak sim --engine` with the slow engine of live.ts, whose steps are long beside what HTTP takes. A second one
//   gets the same live requests at the same time, and no lines. Tokens are compared with those of a scheduler that knows
//   everything, in virtual time.
// - `llama`: llama.cpp's server with SmolLM2-135M, as in `npm run test:engine`. It computes on the cores that the client and
//   the service use too, so the day without lines comes first.
import { spawn } from 'node:child_process'
import { setTimeout } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { Agent, request } from 'undici'
import { trafficOf } from '../src/backends/openai/traffic-reader.ts'
import { freePort } from '../src/engines/engine-access.ts'
import { install } from '../test/engines/smollm2.ts'
import { Bench, option, quantile, rounded } from './harness.ts'
import { around, arrivals, type BatchSide, capacityOf, Day, randomOf, rateAt } from './live-day.ts'
import { bestKnowingAll } from './live-sides.ts'

const LOAD = [0.2, 0.9] as const
const DAYS = 2
/** Of each request; the simulator answers with 16 to 96 tokens, of which these are the most. */
const TOKENS_MAX = 64
const SIM_ENGINE = { step_ms: 25, seq_ms: 0.1, prefill_token_ms: 0.15, kv_blocks: 15_000 }
const SIM_REQUEST = { prompt: 512, output: 50, priority: 0 }
const SIM_GOAL = { p99: 1.1, tokens: 0.85 }
const LLAMA_SLOTS = 4
const LLAMA_PROMPT_TOKENS = 64
const LLAMA_GOAL = 1.2
/** By how many requests its capacity is measured. */
const LLAMA_MEASURED = 6 * LLAMA_SLOTS
const BYTES_PER_TOKEN = 4
/** Of a line beside its prompt. */
const LINE_BYTES = 150
const ASK_MS = 100
const OFFPEAK = fileURLToPath(new URL('../bin/offpeak.js', import.meta.url))

const kind = option('server', 'sim')
const dayMs = (option('minutes', 10) * 60_000) / DAYS
const workerCounts = option('workers', '1,2').split(',').map(Number)
const seed = option('seed', 1)
await using bench = new Bench(`live-http-${kind}`)
const agent = new Agent({ connections: null, headersTimeout: 0, bodyTimeout: 0 })
bench.defer(() => agent.close())
let prompts = 0

interface Answer {
  /** From when the request was due. */
  firstMs: number
  /** Of each token after the first. */
  tokenMs: number
  tokens: number
}

if (kind === 'sim') await besideSim()
else if (kind === 'llama') await besideLlama()
else throw new Error(`--server is sim or llama, not ${kind}`)

async function besideSim(): Promise<void> {
  const work = { live: SIM_REQUEST, batch: SIM_REQUEST }
  const capacity = capacityOf(SIM_ENGINE, work)
  const run = (batch: BatchSide | null) =>
    new Day({ engine: SIM_ENGINE, work, load: LOAD, lengthMs: dayMs, capacity, seed, batch }).run()
  const alone = run(null)
  const known = { engine: SIM_ENGINE, work, capacity, alone, p99Most: SIM_GOAL.p99, run }
  const { batchTokens } = bestKnowingAll(known)
  const start = async (): Promise<string> => {
    const flags = Object.entries(SIM_ENGINE).flatMap(([key, value]) => [flagOf(key), `${value}`])
    const { first } = await bench.start(OFFPEAK, ['sim', '--port', '0', '--engine', ...flags])
    return `${first.replace('offpeak sim listening on ', '')}/v1`
  }
  for (const workers of workerCounts) {
    const [server, other] = [await start(), await start()]
    const { answers, tokens } = await withLines(server, [other], capacity, SIM_REQUEST.prompt, workers)
    const [beside = [], without = []] = answers
    const ratio = print(named(workers), beside, without, tokens)
    bench.figure(`${named(workers)}: live p99 to the first token ÷ alone`, ratio.first, {
      atMost: SIM_GOAL.p99,
    })
    bench.figure(`${named(workers)}: batch tokens ÷ knowing all`, tokens / batchTokens, {
      atLeast: SIM_GOAL.tokens,
    })
  }
}

async function besideLlama(): Promise<void> {
  const server = await startLlama()
  await closedLoop(server, LLAMA_SLOTS)
  const begun = performance.now()
  await closedLoop(server, LLAMA_MEASURED)
  const capacity = (1000 * LLAMA_MEASURED) / (performance.now() - begun)
  const [without = []] = await liveDay([server], capacity, LLAMA_PROMPT_TOKENS, DAYS)
  for (const workers of workerCounts) {
    const { answers, tokens } = await withLines(server, [], capacity, LLAMA_PROMPT_TOKENS, workers)
    const ratio = print(named(workers), answers[0] ?? [], without, tokens)
    const goal = { atMost: LLAMA_GOAL }
    bench.figure(`${named(workers)}: live p99 to the first token ÷ alone`, ratio.first, goal)
    bench.figure(`${named(workers)}: live p99 of the time per token ÷ alone`, ratio.token, goal)
    bench.figure(`${named(workers)}: batch tokens/s`, (1000 * tokens) / dayMs)
  }
}

/** Live traffic at `server` beside lines, and at the `others` without: the last day's answers of each, and tokens of lines. */
async function withLines(
  server: string,
  others: readonly string[],
  capacity: number,
  promptTokens: number,
  workers: number,
): Promise<{ answers: Answer[][]; tokens: number }> {
  const service = await bench.service(
    `models: [{id: bench, upstreams: [{type: openai, base_url: "${server}", live: {}}]}]`,
    { flags: ['--workers', `${workers}`] },
  )
  const count = Math.ceil((1.5 * capacity * DAYS * dayMs) / 1000) + 100
  const path = await bench.lines(count, promptTokens * BYTES_PER_TOKEN + LINE_BYTES)
  const { id } = await service.client.create(await service.client.upload(path, ASK_MS))
  let answers: Answer[][] = []
  let before = 0
  let since = 0
  for (let day = 1; day <= DAYS; day++) {
    before = await tokensOf(server)
    since = performance.now()
    answers = await liveDay([server, ...others], capacity, promptTokens, day)
  }
  const live = answers[0]!.reduce((sum, { tokens }) => sum + tokens, 0)
  const lines = (await tokensOf(server)) - before - live
  // The last live requests are answered after the day's end.
  const tokens = Math.round((lines * dayMs) / (performance.now() - since))
  const { status } = await service.client.get(id)
  if (status === 'completed') throw new Error('the batch has ended before the day has')
  await service.stop()
  return { answers, tokens }
}

/** Sends a day's requests to all of the servers at once; resolves with the answers of each when they are there. */
async function liveDay(
  servers: readonly string[],
  capacity: number,
  promptTokens: number,
  day: number,
): Promise<Answer[][]> {
  const random = randomOf(seed + day)
  const rate = (at: number): number => rateAt(at, LOAD, capacity, dayMs)
  const next = arrivals(rate, (capacity / 1000) * LOAD[1], random)
  const begun = performance.now()
  const asked: Promise<Answer>[][] = servers.map(() => [])
  for (let at = next(0); at < dayMs; at = next(at)) {
    await setTimeout(Math.max(0, begun + at - performance.now()))
    const prompt = promptOf(around(promptTokens, random))
    for (const [i, server] of servers.entries()) asked[i]!.push(ask(server, prompt, begun + at))
  }
  return await Promise.all(asked.map((all) => Promise.all(all)))
}

/** Begins like no other, since servers keep the beginnings that they have seen. */
function promptOf(tokens: number): string {
  return `${++prompts} ${'why is it so, and how? '.repeat(tokens)}`.slice(0, tokens * BYTES_PER_TOKEN)
}

async function ask(server: string, prompt: string, due = performance.now()): Promise<Answer> {
  const { statusCode, body } = await request(`${server}/chat/completions`, {
    method: 'POST',
    dispatcher: agent,
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({
      model: 'bench',
      messages: [{ role: 'user', content: prompt }],
      max_tokens: TOKENS_MAX,
      stream: true,
      stream_options: { include_usage: true },
    }),
  })
  let first: number | null = null
  let text = ''
  for await (const piece of body) {
    first ??= performance.now()
    text += piece
  }
  const tokens = Number(/"completion_tokens":(\d+)/.exec(text)?.[1])
  if (statusCode !== 200 || first === null || Number.isNaN(tokens)) throw new Error(`${statusCode}: ${text}`)
  const tokenMs = (performance.now() - first) / Math.max(1, tokens - 1)
  return { firstMs: first - due, tokenMs, tokens }
}

/** As many at once as the server has slots. */
async function closedLoop(server: string, count: number): Promise<void> {
  let left = count
  const one = async (): Promise<void> => {
    while (left-- > 0) await ask(server, promptOf(LLAMA_PROMPT_TOKENS))
  }
  await Promise.all(Array.from({ length: LLAMA_SLOTS }, one))
}

async function startLlama(): Promise<string> {
  const { server, model } = install()
  const port = await freePort()
  const context = ['--parallel', `${LLAMA_SLOTS}`, '--ctx-size', `${LLAMA_SLOTS * 1024}`]
  const args = ['--model', model, '--alias', 'bench', '--port', `${port}`, ...context, '--metrics', '--jinja']
  const child = spawn(server, args, { stdio: 'ignore' })
  bench.defer(() => child.kill())
  const isHealthy = (): Promise<boolean> =>
    fetch(`http://127.0.0.1:${port}/health`).then(
      ({ ok }) => ok,
      () => false,
    )
  while (!(await isHealthy())) {
    if (child.exitCode !== null) throw new Error(`${server} ended with ${child.exitCode}`)
    await setTimeout(ASK_MS)
  }
  return `http://127.0.0.1:${port}/v1`
}

/** That the server has generated so far. */
async function tokensOf(server: string): Promise<number> {
  const answer = await fetch(new URL('/metrics', server))
  const tokens = trafficOf(await answer.text())?.tokens
  if (tokens === undefined || tokens === null) throw new Error(`${server} shows no count of tokens`)
  return tokens
}

function print(
  name: string,
  beside: readonly Answer[],
  without: readonly Answer[],
  tokens: number,
): { first: number; token: number } {
  const of = (answers: readonly Answer[]) => {
    const firsts = answers.map(({ firstMs }) => firstMs)
    const each = answers.map(({ tokenMs }) => tokenMs)
    return { first50: quantile(firsts, 0.5), first99: quantile(firsts, 0.99), token99: quantile(each, 0.99) }
  }
  const row = (what: string, { first50, first99, token99 }: ReturnType<typeof of>, lines: number) => ({
    '': what,
    requests: beside.length,
    'first token p50 ms': rounded(first50),
    'p99 ms': rounded(first99),
    'per token p99 ms': rounded(token99),
    'batch tokens': lines,
  })
  const [with_, alone] = [of(beside), of(without)]
  console.table([row('alone', alone, 0), row(`beside lines, ${name}`, with_, tokens)])
  return { first: with_.first99 / alone.first99, token: with_.token99 / alone.token99 }
}

function named(workers: number): string {
  return workers === 1 ? '1 worker' : `${workers} workers`
}

function flagOf(key: string): string {
  return `--${key.replaceAll('_', '-')}`
}
