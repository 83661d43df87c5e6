// Batch work beside live traffic in real time and over HTTP: a client sends streamed requests at 20 to 90 % of what a
// model server can answer, as in a day, while a service with `live` sends it lines. There are two days, of which the second
// counts, since a worker has to see what the others' peak is.
//
//   node bench/live-http.ts [--server sim|llama] [--minutes 10] [--workers 1,2] [--seed 1]
//
// - `sim`: the simulated engine over HTTP with the slow settings of live.ts, whose steps are long beside what HTTP takes. A second one
//   gets the same live requests at the same time, and no lines. Tokens are compared with those of a scheduler that knows
//   everything, in virtual time.
// - `llama`: llama.cpp's server with SmolLM2-135M, as in `npm run test:engine`. It has one thread and one core, and what else
//   runs here has the other cores (`taskset` of util-linux), so live requests wait for requests alone. The same day comes four
//   times: without lines beside a service that has none to send, twice with lines, and without lines again. How the first
//   and the last differ is what the machine does by itself.
//
// It says every fifteen seconds how far it is, gives up when a live request is not answered within a minute, and ends with 1 when
// it gave up or a goal was missed. It takes `--minutes` for each number of workers, twice as long with `llama`.
import { execFileSync, spawn } from 'node:child_process'
import { availableParallelism } from 'node:os'
import { setTimeout } from 'node:timers/promises'
import { Agent, request } from 'undici'
import { trafficOf } from '../src/backends/openai/server-traffic.ts'
import { freePort } from '../src/engines/engine-access.ts'
import { installLlamaCpp } from '../test/engines/installed-engines.ts'
import { Bench, option, quantile, rounded, type Service } from './harness.ts'
import { around, arrivals, type BatchSide, capacityOf, Day, randomOf, rateAt } from './live-day.ts'
import { bestKnowingAll } from './live-sides.ts'

const LOAD = [0.2, 0.9] as const
const DAYS = 2
/** The most tokens of each request; the simulator answers with 16 to 96. */
const SIM_TOKENS_MAX = 64
const SIM_ENGINE = { step_ms: 25, seq_ms: 0.1, prefill_token_ms: 0.15, kv_blocks: 15_000 }
const SIM_REQUEST = { prompt: 512, output: 50, priority: 0 }
const SIM_GOAL = { p99: 1.1, tokens: 0.85 }
const LLAMA_SLOTS = 4
const LLAMA_PROMPT_TOKENS = 24
const LLAMA_TOKENS = 32
const LLAMA_GOAL = 1.2
/** By how many requests its capacity is measured. */
const LLAMA_MEASURED = 4 * LLAMA_SLOTS
const BYTES_PER_TOKEN = 4
/** The bytes of a line beside its prompt. */
const LINE_BYTES = 150
const ASK_MS = 100
const PROGRESS_MS = 15_000
/** No live request takes longer, nor the start of a server or the measurement of its capacity. */
const PATIENCE_MS = 60_000

const kind = option('server', 'sim')
const dayMs = (option('minutes', 10) * 60_000) / DAYS
const workerCounts = option('workers', '1,2').split(',').map(Number)
const seed = option('seed', 1)
await using bench = new Bench(`live-http-${kind}`)
const agent = new Agent({ connections: null, headersTimeout: 0, bodyTimeout: 0 })
bench.defer(() => agent.destroy())
let prompts = 0

/** Live requests a second that are 100 %, and tokens of a prompt. */
interface Traffic {
  capacity: number
  promptTokens: number
}

interface Answer {
  /** From when the request was due. */
  firstMs: number
  /** The time of each token after the first. */
  tokenMs: number
  tokens: number
}

if (kind === 'sim') await besideSim()
else if (kind === 'llama') await besideLlama()
else throw new Error(`--server is sim or llama, not ${kind}`)
if (bench.misses.length > 0) process.exitCode = 1

async function besideSim(): Promise<void> {
  const work = { live: SIM_REQUEST, batch: SIM_REQUEST }
  const capacity = capacityOf(SIM_ENGINE, work)
  const run = (batch: BatchSide | null) =>
    new Day({ engine: SIM_ENGINE, work, load: LOAD, lengthMs: dayMs, capacity, seed, batch }).run()
  const alone = run(null)
  const known = { engine: SIM_ENGINE, work, capacity, alone, p99Most: SIM_GOAL.p99, run }
  const { batchTokens } = bestKnowingAll(known)
  const start = async (): Promise<string> => {
    const { first } = await bench.start('./engine/engine-server.ts', [JSON.stringify(SIM_ENGINE)])
    return first
  }
  const traffic = { capacity, promptTokens: SIM_REQUEST.prompt }
  for (const workers of workerCounts) {
    const servers = [await start(), await start()]
    const service = await serviceAt(servers[0]!, workers)
    const id = await startLines(service, traffic)
    await liveDay(`${named(workers)}, first day`, servers, traffic, 1)
    const { answers, tokens } = await dayBesideLines(named(workers), service, id, servers, traffic)
    await service.stop()
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
  console.log(`llama.cpp answers ${rounded(capacity)} live requests/s`)
  const traffic = { capacity, promptTokens: LLAMA_PROMPT_TOKENS }
  for (const workers of workerCounts) {
    const service = await serviceAt(server, workers)
    const alone = (name: string) => liveDay(`${named(workers)}, ${name}`, [server], traffic, DAYS)
    const [before = []] = await alone('alone')
    const id = await startLines(service, traffic)
    await liveDay(`${named(workers)}, first day`, [server], traffic, 1)
    const { answers, tokens } = await dayBesideLines(named(workers), service, id, [server], traffic)
    await service.stop()
    const [after = []] = await alone('alone again')
    const ratio = print(named(workers), answers[0] ?? [], [...before, ...after], tokens)
    const drift = print('alone again', after, before, 0)
    const goal = { atMost: LLAMA_GOAL }
    bench.figure(`${named(workers)}: live p99 to the first token ÷ alone`, ratio.first, goal)
    bench.figure(`${named(workers)}: live p99 of the time per token ÷ alone`, ratio.token, goal)
    bench.figure(`${named(workers)}: alone again ÷ alone, p99 to the first token`, drift.first)
    bench.figure(`${named(workers)}: alone again ÷ alone, p99 of the time per token`, drift.token)
    bench.figure(`${named(workers)}: batch tokens/s`, (1000 * tokens) / dayMs)
  }
}

async function serviceAt(server: string, workers: number): Promise<Service> {
  return await bench.service(
    `models: [{id: bench, upstreams: [{type: openai, base_url: "${server}", live: {}}]}]`,
    { flags: ['--workers', `${workers}`] },
  )
}

/** More of them than are answered within the days; resolves with the batch's ID. */
async function startLines(service: Service, { capacity, promptTokens }: Traffic): Promise<string> {
  const count = Math.ceil((1.5 * capacity * DAYS * dayMs) / 1000) + 100
  const path = await bench.lines(count, promptTokens * BYTES_PER_TOKEN + LINE_BYTES)
  return (await service.client.create(await service.client.upload(path, ASK_MS))).id
}

/** The last day, with lines at the first of the servers: the live answers of each, and tokens of lines. */
async function dayBesideLines(
  name: string,
  service: Service,
  id: string,
  servers: readonly string[],
  traffic: Traffic,
): Promise<{ answers: Answer[][]; tokens: number }> {
  const before = await tokensOf(servers[0]!)
  const since = performance.now()
  const answers = await liveDay(`${name}, last day`, servers, traffic, DAYS)
  const live = answers[0]!.reduce((sum, { tokens }) => sum + tokens, 0)
  const lines = (await tokensOf(servers[0]!)) - before - live
  const { status } = await service.client.get(id)
  if (status === 'completed') throw new Error('the batch has ended before the day has')
  // The last live requests are answered after the day's end.
  return { answers, tokens: Math.round((lines * dayMs) / (performance.now() - since)) }
}

/** Sends a day's requests to all of the servers at once; resolves with the answers of each when they are there. */
async function liveDay(
  name: string,
  servers: readonly string[],
  { capacity, promptTokens }: Traffic,
  day: number,
): Promise<Answer[][]> {
  const random = randomOf(seed + day)
  const rate = (at: number): number => rateAt(at, LOAD, capacity, dayMs)
  const next = arrivals(rate, (capacity / 1000) * LOAD[1], random)
  const begun = performance.now()
  const asked: Promise<Answer>[][] = servers.map(() => [])
  let open = 0
  const failure = Promise.withResolvers<never>()
  const progress = setInterval(() => {
    const seconds = Math.round((performance.now() - begun) / 1000)
    const sent = asked.reduce((sum, { length }) => sum + length, 0)
    console.log(`${name}: ${seconds} of ${dayMs / 1000} s, ${sent} live requests, ${open} in flight`)
  }, PROGRESS_MS)
  try {
    for (let at = next(0); at < dayMs; at = next(at)) {
      const wait = setTimeout(Math.max(0, begun + at - performance.now()))
      await Promise.race([wait, failure.promise])
      const prompt = promptOf(around(promptTokens, random))
      for (const [i, server] of servers.entries()) {
        const answer = ask(server, prompt, begun + at)
        open++
        answer.then(() => open--, failure.reject)
        asked[i]!.push(answer)
      }
    }
    return await Promise.all(asked.map((all) => Promise.all(all)))
  } finally {
    clearInterval(progress)
  }
}

/** Begins like no other, since servers keep the beginnings that they have seen. */
function promptOf(tokens: number): string {
  return `${++prompts} ${'why is it so, and how? '.repeat(tokens)}`.slice(0, tokens * BYTES_PER_TOKEN)
}

async function ask(server: string, prompt: string, due = performance.now()): Promise<Answer> {
  try {
    return await answerOf(server, prompt, due)
  } catch (error) {
    const isLate = error instanceof Error && error.name === 'TimeoutError'
    throw isLate ? new Error(`${server} did not answer a live request within ${PATIENCE_MS / 1000} s`) : error
  }
}

async function answerOf(server: string, prompt: string, due: number): Promise<Answer> {
  const { statusCode, body } = await request(`${server}/chat/completions`, {
    method: 'POST',
    dispatcher: agent,
    headers: { 'content-type': 'application/json' },
    signal: AbortSignal.timeout(PATIENCE_MS),
    body: JSON.stringify({
      model: 'bench',
      messages: [{ role: 'user', content: prompt }],
      ...(kind === 'llama' ? { max_tokens: LLAMA_TOKENS, ignore_eos: true } : { max_tokens: SIM_TOKENS_MAX }),
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

/** Sends as many requests at once as the server has slots. */
async function closedLoop(server: string, count: number): Promise<void> {
  const begun = performance.now()
  let left = count
  const one = async (): Promise<void> => {
    while (left-- > 0) {
      if (performance.now() - begun > PATIENCE_MS)
        throw new Error(`${server} did not answer ${count} requests in a minute: is its core free?`)
      await ask(server, promptOf(LLAMA_PROMPT_TOKENS))
    }
  }
  await Promise.all(Array.from({ length: LLAMA_SLOTS }, one))
}

async function startLlama(): Promise<string> {
  const { server, model } = installLlamaCpp()
  const core = availableParallelism() - 1
  if (core === 0)
    throw new Error('llama.cpp has a core for itself here, and the client and the service others')
  const others = ['--all-tasks', '--cpu-list', '--pid', `0-${core - 1}`, `${process.pid}`]
  execFileSync('taskset', others, { stdio: 'ignore' })
  const port = await freePort()
  const context = ['--parallel', `${LLAMA_SLOTS}`, '--ctx-size', `${LLAMA_SLOTS * 1024}`, '--threads', '1']
  const args = ['--model', model, '--alias', 'bench', '--port', `${port}`, ...context, '--metrics', '--jinja']
  const child = spawn('taskset', ['--cpu-list', `${core}`, server, ...args], { stdio: 'ignore' })
  bench.defer(() => child.kill())
  const isHealthy = (): Promise<boolean> =>
    fetch(`http://127.0.0.1:${port}/health`).then(
      ({ ok }) => ok,
      () => false,
    )
  const begun = performance.now()
  while (!(await isHealthy())) {
    if (child.exitCode !== null) throw new Error(`${server} ended with ${child.exitCode}`)
    if (performance.now() - begun > PATIENCE_MS) throw new Error(`${server} did not start within a minute`)
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
    const count = answers.length
    return {
      count,
      first50: quantile(firsts, 0.5),
      first99: quantile(firsts, 0.99),
      token99: quantile(each, 0.99),
    }
  }
  const row = (what: string, { count, first50, first99, token99 }: ReturnType<typeof of>, lines: number) => ({
    '': what,
    requests: count,
    'first token p50 ms': rounded(first50),
    'p99 ms': rounded(first99),
    'per token p99 ms': rounded(token99),
    'batch tokens': lines,
  })
  const [with_, alone] = [of(beside), of(without)]
  console.table([row('alone', alone, 0), row(name, with_, tokens)])
  return { first: with_.first99 / alone.first99, token: with_.token99 / alone.token99 }
}

function named(workers: number): string {
  return workers === 1 ? '1 worker' : `${workers} workers`
}
