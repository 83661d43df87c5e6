// The parts of every benchmark: options, processes, a service as its users start it, a model server, runs in turn, and
// figures with their goals. A Bench stops what it started and removes its files however it ends, a signal included, and prints its
// figures at last: as a table, and as a line of JSON that `npm run bench` gathers.
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { completion } from '../test/fakes/upstream.ts'
import { listen } from '../test/support/listen.ts'
import { BatchClient, writeLines } from './batch-client.ts'

export interface Figure {
  what: string
  value: number
  /** `undefined`: nothing is promised of it. */
  goal?: { atMost: number } | { atLeast: number }
}

export interface Service extends Started {
  /** The data folder, and the options by which other commands find the same stores. */
  data: string
  flags: readonly string[]
  url: string
  key: string
  client: BatchClient
}

export interface Run {
  seconds: number
  lines_per_s: number
  /** The CPU time of the API and the worker. */
  cpu_us_per_line: number
}

/** Rarely enough that asking is no part of what is measured. */
const ASK_MS = 50
export const OFFPEAK = fileURLToPath(new URL('../bin/offpeak.js', import.meta.url))

export class Bench implements AsyncDisposable {
  readonly folder = mkdtempSync(join(tmpdir(), 'offpeak-bench-'))
  readonly #name: string
  readonly #ends: (() => unknown)[] = []
  readonly #figures: Figure[] = []
  #services = 0

  /** To be made after all options were read. */
  constructor(name: string) {
    this.#name = name
    rejectUnknownOptions()
    for (const signal of ['SIGINT', 'SIGTERM'])
      process.once(signal, () => this[Symbol.asyncDispose]().finally(() => process.exit(1)))
  }

  /** `end` is called when the benchmark ends, before what was deferred earlier. */
  defer(end: () => unknown): void {
    this.#ends.push(end)
  }

  /** `file`: beside this one, or absolute. */
  async start(file: string, args: readonly string[] = [], env: NodeJS.ProcessEnv = {}): Promise<Started> {
    const started = await start(fileURLToPath(new URL(file, import.meta.url)), args, env)
    this.defer(() => started.stop())
    return started
  }

  /** The base URL of a model server that costs next to nothing and answers at once. */
  async upstream(): Promise<string> {
    return (await this.start('./fast-upstream.ts')).first
  }

  /** The base URL of one in this process, which takes any number of lines at once and answers each after so long. */
  async waitingUpstream(latencyMs: () => number): Promise<string> {
    const answer = completion('as quickly as it can')
    const server = createServer((request, response) => {
      request.resume()
      request.once('end', () => {
        setTimeout(() => response.setHeader('content-type', 'application/json').end(answer), latencyMs())
      })
    })
    return await this.listen(server)
  }

  /** The base URL of a model server in this process. */
  async listen(server: Server): Promise<string> {
    const { url, close } = await listen(server)
    this.defer(close)
    return `${url}/v1`
  }

  /** `config`: the configuration as YAML. Each service has a folder of its own. */
  async service(config: string, options: ServiceOptions = {}): Promise<Service> {
    const folder = join(this.folder, `service-${this.#services++}`)
    mkdirSync(folder)
    const service = await startService(folder, config, options)
    this.defer(() => service.stop())
    return service
  }

  /** A file of `count` lines for the model `bench`. */
  async lines(count: number, bytes: number): Promise<string> {
    const path = join(this.folder, `${count}-lines.jsonl`)
    await writeLines(path, count, bytes)
    return path
  }

  figure(what: string, value: number, goal?: Figure['goal']): void {
    this.#figures.push({ what, value: rounded(value), ...(goal && { goal }) })
  }

  /** Figures that do not reach their goals. */
  get misses(): readonly Figure[] {
    return this.#figures.filter((figure) => verdictOf(figure) === 'MISSED')
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const end of this.#ends.reverse()) await end()
    rmSync(this.folder, { recursive: true })
    if (this.#figures.length === 0) return
    printFigures(this.#figures)
    console.log(JSON.stringify({ bench: this.#name, figures: this.#figures }))
  }
}

export function printFigures(figures: readonly Figure[]): void {
  const goalOf = ({ goal }: Figure): string =>
    goal === undefined ? '' : 'atMost' in goal ? `≤ ${goal.atMost}` : `≥ ${goal.atLeast}`
  console.table(
    figures.map((one) => ({ what: one.what, value: one.value, goal: goalOf(one), verdict: verdictOf(one) })),
  )
}

function verdictOf({ value, goal }: Figure): 'reached' | 'MISSED' | '' {
  if (goal === undefined) return ''
  return ('atMost' in goal ? value <= goal.atMost : value >= goal.atLeast) ? 'reached' : 'MISSED'
}

export interface ServiceOptions {
  flags?: readonly string[]
  env?: NodeJS.ProcessEnv
  /** Another version of `bin/offpeak.js`. */
  program?: string | undefined
}

export async function startService(
  folder: string,
  config: string,
  { flags = [], env = {}, program = OFFPEAK }: ServiceOptions = {},
): Promise<Service> {
  const path = join(folder, 'offpeak.yaml')
  const data = join(folder, 'data')
  writeFileSync(path, `rate_limit: {requests_per_minute: 0}\nlog: {level: warn}\n${config}`)
  const stores = ['--data', data, '--config', path]
  const started = await start(program, ['serve', '--port', '0', ...stores, ...flags], env)
  return { ...started, data, flags: stores, ...reached(started, data) }
}

/** How an API that has started is called, with the first key of its data folder. */
export function reached({ first }: Started, data: string): Pick<Service, 'url' | 'key' | 'client'> {
  const url = first.replace('offpeak listening on ', '')
  const key = readFileSync(join(data, 'api-key'), 'utf8').trim()
  return { url, key, client: new BatchClient({ url, key }) }
}

/** The configuration of the model `bench` at one server. */
export function modelAt(base_url: string, concurrency_max = 64): string {
  return `
models:
  - id: bench
    price: {input_per_mtok: 0.1, output_per_mtok: 0.4}
    upstreams: [{type: openai, base_url: "${base_url}", concurrency_max: ${concurrency_max}}]
`
}

/** One batch of an uploaded file, from its creation to `completed`; all of its lines have to be answered. */
export async function runBatch(
  service: Pick<Service, 'client' | 'cpu_us'>,
  file: string,
  options: { endpoint?: string; headers?: Record<string, string>; more?: object; askMs?: number } = {},
): Promise<Run & { id: string }> {
  const cpu = service.cpu_us()
  const begun = performance.now()
  const { id } = await service.client.create(file, options)
  const { request_counts } = await service.client.completed(id, options.askMs ?? ASK_MS)
  const seconds = (performance.now() - begun) / 1000
  const { total, completed } = request_counts
  if (completed !== total) throw new Error(`only ${completed} of ${total} lines were answered`)
  return { id, seconds, lines_per_s: total / seconds, cpu_us_per_line: (service.cpu_us() - cpu) / total }
}

/** Runs each of `ways` in every round, each first in turn, so that what else the machine does falls on all of them. */
export async function inTurns<T>(
  rounds: number,
  ways: readonly (() => Promise<T>)[],
): Promise<readonly (readonly T[])[]> {
  const found: T[][] = ways.map(() => [])
  for (let round = 0; round < rounds; round++)
    for (let i = 0; i < ways.length; i++) {
      const at = (i + round) % ways.length
      found[at]!.push(await ways[at]!())
    }
  return found
}

/** The upper one of an even number; 0 of none. */
export function median(numbers: readonly number[]): number {
  return quantile(numbers, 0.5)
}

export function quantile(numbers: readonly number[], share: number): number {
  const sorted = numbers.toSorted((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? 0
}

/** To three digits, or to the whole number. */
export function rounded(value: number): number {
  return Math.abs(value) >= 1000 ? Math.round(value) : Number(value.toPrecision(3))
}

const asked = new Set<string>()

/** The value of `--name`, of the same type as `fallback`. */
export function option(name: string, fallback: number): number
export function option(name: string, fallback: string): string
export function option(name: string, fallback: number | string): number | string {
  asked.add(`--${name}`)
  const at = process.argv.indexOf(`--${name}`)
  const given = at < 0 ? undefined : process.argv[at + 1]
  if (given === undefined) return fallback
  if (typeof fallback === 'string') return given
  if (Number.isNaN(Number(given))) throw new Error(`--${name} takes a number`)
  return Number(given)
}

export function rejectUnknownOptions(): void {
  const unknown = process.argv.slice(2).filter((text) => text.startsWith('--') && !asked.has(text))
  if (unknown.length > 0) throw new Error(`there is no ${unknown}; there are ${[...asked].join(', ')}`)
}

export interface Started {
  process: ChildProcess
  /** The first line it printed. */
  first: string
  /** Writes a line to it. */
  tell(line: string): void
  /** Writes a line to it, and resolves with the next one that it prints. */
  ask(line: string): Promise<string>
  /** CPU so far of the process and its children, in microseconds. */
  cpu_us(): number
  /** CPU so far of its children's main threads, in microseconds: of a service, of its workers. */
  child_main_us(): number
  /** Peak resident memory so far of the process and of each of its children, in MiB. */
  peak_mib(): number[]
  /** The same, as it is now. `Pss`: what processes share, such as Node's code, in equal parts. */
  resident_mib(field?: 'Rss' | 'Pss'): number[]
  stop(): Promise<void>
}

/** Microseconds per clock tick of /proc. */
const TICK_US = 10_000

/** Runs a file with this Node, and resolves with the first line that it prints. */
export async function start(
  file: string,
  args: readonly string[],
  env: NodeJS.ProcessEnv = {},
): Promise<Started> {
  const child = spawn(process.execPath, [file, ...args], {
    stdio: ['pipe', 'pipe', 'inherit'],
    env: { ...process.env, ...env },
  })
  const lines = createInterface({ input: child.stdout })
  const next = (): Promise<string> =>
    new Promise((resolve, reject) => {
      const failed = (code: unknown): void => reject(new Error(`${file} ended with ${code}`))
      child.once('exit', failed)
      lines.once('line', (line) => {
        child.off('exit', failed)
        resolve(line)
      })
    })
  const tell = (line: string): void => void child.stdin.write(`${line}\n`)
  return {
    process: child,
    first: await next(),
    tell,
    ask(line) {
      const answer = next()
      tell(line)
      return answer
    },
    cpu_us: () => familyOf(child.pid).reduce((sum, pid) => sum + cpuOf(pid), 0),
    child_main_us: () =>
      familyOf(child.pid)
        .slice(1)
        .reduce((sum, pid) => sum + cpuOf(pid, 'main thread'), 0),
    peak_mib: () => familyOf(child.pid).map((pid) => memoryOf(pid, 'VmHWM')),
    resident_mib: (field = 'Rss') => familyOf(child.pid).map((pid) => memoryOf(pid, field)),
    async stop() {
      if (child.exitCode !== null) return
      child.kill('SIGTERM')
      await once(child, 'exit')
    },
  }
}

/** The process and its children, in the order of their birth. */
export function familyOf(pid: number | undefined): number[] {
  if (pid === undefined) return []
  const children = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim()
  return [pid, ...(children === '' ? [] : children.split(' ').map(Number))]
}

/** Microseconds of CPU so far; of the main thread alone if it is named. */
export function cpuOf(pid: number, part: 'all' | 'main thread' = 'all'): number {
  const stat = readFileSync(part === 'all' ? `/proc/${pid}/stat` : `/proc/${pid}/task/${pid}/stat`, 'utf8')
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return (Number(fields[11]) + Number(fields[12])) * TICK_US
}

/** In MiB; `VmHWM`: the most that was resident so far. */
export function memoryOf(pid: number, field: 'VmHWM' | 'Rss' | 'Pss'): number {
  const text = readFileSync(`/proc/${pid}/${field === 'VmHWM' ? 'status' : 'smaps_rollup'}`, 'utf8')
  return Math.round(Number(new RegExp(`^${field}:\\s+(\\d+)`, 'm').exec(text)?.[1]) / 1024)
}
