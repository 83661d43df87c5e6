// A crash run: the real processes before a real model server, under customers that never rest, with something
// killed every second or so; and every now and then all of it comes to rest and is judged. The seed decides what is
// killed when; what is in flight at that moment is up to the machine.
import { spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as wait } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { keys } from '../../src/compose/keys.ts'
import { loadConfig } from '../../src/config/load.ts'
import { PROJECT_SCOPES } from '../../src/domain/api-key.ts'
import { freePort } from '../../src/engines/engine-access.ts'
import { type SharedStorage, sharedStorage } from '../fakes/shared-storage.ts'
import type { Storage } from '../service.ts'
import { type SeededRandom, seededRandom } from '../simulation/seeded-random.ts'
import { BatchClient, OUTAGE_MS_MAX } from './batch-client.ts'
import { ofBatch, ofStores } from './checks.ts'
import { type Kill, SendLog, type SentAgain, sentAgain } from './send-log.ts'
import { READY_MS_MAX, type ServiceProcess, ServiceProcesses } from './service-processes.ts'
import { StandstillWatch } from './stalled-run.ts'

const RECORDING_PROXY = fileURLToPath(new URL('recording-proxy.ts', import.meta.url))
const LEASE_MS = 2_000
const DRAIN_MS = 1_000
const STOP_MS_MAX = 10_000
/** After the last kill, everything has to be done within this. */
const REST_MS_MAX = 90_000
const PRICE_USD = { input: 1, output: 2 }
const ON_ITS_WAY_MS = 500
/** Of each project; keys with caps of their own come from its client. */
const CAPS = [
  { scope: 'entity_type', entity_type: 'user', metric: 'cost_usd', amount: 0.004, window: 'month' },
  { scope: 'entity_type', entity_type: 'user', model: 'm', metric: 'requests', amount: 90, window: 'week' },
]

export interface CrashOptions {
  cycles: number
  seed: number
  store: 'sqlite' | 'postgres'
  /** How many cycles lie between two moments of rest. */
  rest_every: number
  /** Multiplies the times after which a start, a call or a stop counts as failed; a busy machine needs more than 1. */
  patience: number
  tell: (line: string) => void
}

export interface CrashReport {
  kills: Record<string, number>
  batches: Record<string, number>
  lines: number
  calls: number
  sent_again: SentAgain
  leases_lost: number
  gave_up: number
  retried: number
  refused: number
  worst_ready_ms: number
  worst_outage_ms: number
  worst_gap_ms: number
  still_ms: number
  stop_ms: number
  seconds: number
  violations: string[]
}

export async function crashRun(options: CrashOptions): Promise<CrashReport> {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-kill-'))
  let whole = false
  const shared = options.store === 'postgres' ? await sharedStorage({ fsync: true }) : null
  const recordingProxy = spawn(
    process.execPath,
    [RECORDING_PROXY, join(folder, 'send.log'), String(options.seed)],
    {
      stdio: ['ignore', 'pipe', 'inherit'],
    },
  )
  const endRecorder = (): void => void recordingProxy.kill('SIGKILL')
  process.on('exit', endRecorder)
  try {
    const [base_url] = await once(createInterface({ input: recordingProxy.stdout }), 'line')
    const storage = shared ? await shared.make('empty') : { yaml: '', env: {} }
    await using run = await CrashRun.begin(folder, base_url, storage, shared, options)
    const report = await run.all()
    whole = report.violations.length === 0
    if (!whole) options.tell(`the files of the run are in ${folder}`)
    return report
  } finally {
    endRecorder()
    process.off('exit', endRecorder)
    await shared?.[Symbol.asyncDispose]()
    if (whole) await rm(folder, { recursive: true, force: true, maxRetries: 5 })
  }
}

function configOf(base_url: string, storage: Storage): string {
  return `
data_dir: data
${storage.yaml}
models:
  - id: m
    price: {input_per_mtok: ${PRICE_USD.input}, output_per_mtok: ${PRICE_USD.output}}
    upstreams: [{type: openai, base_url: "${base_url}", timeout: 20s, concurrency_max: 32}]
plans:
  short: {completion_windows: [4s, 24h]}
retry: {attempts_max: 8, backoff_min: 20ms, backoff_max: 200ms}
worker: {flush_interval: 50ms, lease: ${LEASE_MS}ms, drain: ${DRAIN_MS}ms}
rate_limit: {requests_per_minute: off}
requests: {gather: {seconds: 2}}
listen: {stop_delay: 0s}
log: {level: warn}
`
}

class CrashRun implements AsyncDisposable {
  readonly #options: CrashOptions
  readonly #random: SeededRandom
  readonly #config: ReturnType<typeof loadConfig>
  readonly #folder: string
  readonly #url: string
  readonly #serviceProcesses: ServiceProcesses
  readonly #shared: SharedStorage | null
  readonly #sendLog: SendLog
  readonly #clients: BatchClient[] = []
  readonly #killEvents: Kill[] = []
  readonly #kills: Record<string, number> = {}
  readonly #violations: string[] = []
  readonly #still = new StandstillWatch()
  readonly #judged = new Set<string>()
  #leases_lost = 0
  #worst_ready_ms = 0
  #cycle = 0

  private constructor(
    options: CrashOptions,
    parts: {
      folder: string
      config: ReturnType<typeof loadConfig>
      port: number
      env: NodeJS.ProcessEnv
      shared: SharedStorage | null
    },
  ) {
    this.#options = options
    this.#random = seededRandom(options.seed)
    this.#config = parts.config
    this.#folder = parts.folder
    this.#url = `http://127.0.0.1:${parts.port}`
    this.#shared = parts.shared
    this.#sendLog = new SendLog(join(parts.folder, 'send.log'))
    this.#serviceProcesses = new ServiceProcesses({
      ...parts,
      onLeaseLost: (at) => {
        this.#leases_lost++
        this.#killEvents.push({ what: 'a lease ran out', from: at - LEASE_MS, to: at })
      },
      onFault: (problem) => this.#violate(problem),
    })
  }

  static async begin(
    folder: string,
    base_url: string,
    storage: Storage,
    shared: SharedStorage | null,
    options: CrashOptions,
  ): Promise<CrashRun> {
    const env = { OFFPEAK_MASTER_KEY: randomBytes(32).toString('base64'), ...storage.env }
    const file = join(folder, 'offpeak.yaml')
    await writeFile(file, configOf(base_url, storage))
    const config = loadConfig({ file, env, overrides: { data: join(folder, 'data') } })
    const run = new CrashRun(options, { folder, config, port: await freePort(), env, shared })
    await using ring = await keys(config, true)
    for (const project of ['a', 'b', 'c']) {
      const scopes = [...PROJECT_SCOPES, 'keys:write' as const]
      const { key } = await ring.create({ project, plan: 'short', scopes, name: undefined })
      const wishes = { project, key, windows: ['4s', '24h'] }
      run.#clients.push(
        new BatchClient(wishes, {
          url: run.#url,
          random: seededRandom(options.seed * 31 + run.#clients.length),
          stillMs: () => run.#still.total_ms,
          patience: options.patience,
          onFault: (problem) => run.#violate(problem),
        }),
      )
    }
    return run
  }

  async all(): Promise<CrashReport> {
    const begun = performance.now()
    await this.#start(this.#layout())
    for (const client of this.#clients) await client.limit(CAPS)
    const working = this.#clients.map((client) =>
      client.work().catch((error: unknown) => this.#violate(`a client failed: ${error}`)),
    )
    try {
      while (this.#cycle < this.#options.cycles && this.#violations.length === 0) {
        this.#cycle++
        await wait(this.#random.int(150, 1_000))
        await this.#killSomething()
        if (this.#cycle % this.#options.rest_every === 0) await this.#rest()
      }
      if (this.#cycle % this.#options.rest_every !== 0) await this.#rest()
    } catch (error) {
      this.#violate(`the run broke off: ${error instanceof Error ? error.stack : error}`)
    }
    for (const client of this.#clients) client.stop()
    await Promise.all(working)
    const stop = await this.#serviceProcesses.stop()
    if (stop.codes.some((code) => code !== 0)) this.#violate(`stopping ended with ${stop.codes.join(', ')}`)
    if (stop.ms > STOP_MS_MAX * this.#options.patience + this.#still.total_ms)
      this.#violate(`stopping took ${Math.round(stop.ms)} ms`)
    const batches = this.#clients.flatMap((client) => client.batches)
    const exported = this.#clients.map((client) => client.exported)
    if (this.#violations.length === 0)
      for (const problem of await ofStores(this.#config, batches, exported)) this.#violate(problem)
    this.#sendLog.read()
    const still = this.#still.found.map(({ from, to }) => ({ what: 'the machine', from, to: to + LEASE_MS }))
    const killEvents = [...this.#killEvents, ...still]
    const sent_again = sentAgain(this.#sendLog, killEvents)
    await writeFile(join(this.#folder, 'killEvents.json'), JSON.stringify(killEvents, null, 2))
    for (const problem of sent_again.unexplained) this.#violate(problem)
    if (sent_again.count > sent_again.in_flight)
      this.#violate(`${sent_again.count} lines were sent again, and ${sent_again.in_flight} were in flight`)
    const silence_ms = this.#sendLog.longestGapMs(killEvents)
    if (silence_ms > OUTAGE_MS_MAX * this.#options.patience)
      this.#violate(`the model server was left alone for ${silence_ms} ms`)
    const byStatus: Record<string, number> = {}
    for (const { status } of batches) byStatus[status] = (byStatus[status] ?? 0) + 1
    return {
      kills: this.#kills,
      batches: byStatus,
      lines: batches.reduce((sum, { lines }) => sum + lines.length, 0),
      calls: this.#sendLog.calls.size,
      sent_again,
      leases_lost: this.#leases_lost,
      gave_up: this.#serviceProcesses.gave_up,
      retried: sum(this.#clients.map((client) => client.retried)),
      refused: sum(this.#clients.map((client) => client.refused)),
      worst_ready_ms: Math.round(this.#worst_ready_ms),
      worst_outage_ms: Math.round(Math.max(...this.#clients.map((client) => client.outage_ms))),
      worst_gap_ms: silence_ms,
      still_ms: this.#still.total_ms,
      stop_ms: Math.round(stop.ms),
      seconds: Math.round((performance.now() - begun) / 1000),
      violations: this.#violations,
    }
  }

  #violate(problem: string): void {
    const text = `cycle ${this.#cycle}: ${problem}`
    this.#violations.push(text)
    this.#options.tell(`VIOLATION (seed ${this.#options.seed}) ${text}`)
  }

  /** Either `serve`, or an API and two workers. */
  #layout(): ServiceProcess['role'][] {
    return this.#random.chance(0.5) ? ['serve'] : ['api', 'worker', 'worker']
  }

  /** Resolves when all of them are ready, and the API says so over HTTP. */
  async #start(roles: readonly ServiceProcess['role'][]): Promise<void> {
    const started = roles.map((role) => this.#serviceProcesses.launch(role))
    if (started.length > 0 && this.#random.chance(0.1)) {
      // Nobody waits for a start to be over before something killEvents.
      const child = this.#random.pick(started)
      await wait(this.#random.int(20, 600))
      await this.#kill(`${child.role} as it started`, child, true)
      started.splice(started.indexOf(child), 1, this.#serviceProcesses.launch(child.role))
    }
    await this.#ready(started)
  }

  async #ready(started: readonly ServiceProcess[]): Promise<void> {
    const begun = performance.now()
    const ready_ms_max = READY_MS_MAX * this.#options.patience
    const late = wait(ready_ms_max, 'late', { ref: false })
    // A `serve` that has exited because its worker crashed too often is started again later.
    const all = Promise.allSettled(started.map(({ process }) => process.ready))
    if ((await Promise.race([all, late])) === 'late')
      this.#violate(`${started.map(({ role }) => role).join(', ')} not ready after ${ready_ms_max} ms`)
    const [first] = this.#clients
    const { status } = (await first?.ask('GET', '/readyz')) ?? { status: 0 }
    if (status !== 200) this.#violate(`GET /readyz: ${status}`)
    this.#worst_ready_ms = Math.max(this.#worst_ready_ms, performance.now() - begun)
  }

  /** Kills processes or the database, then starts what is missing. */
  async #killSomething(): Promise<void> {
    const random = this.#random
    const running = [...this.#serviceProcesses.running]
    const serve = running.find(({ role }) => role === 'serve')
    if (this.#shared && random.chance(0.15)) await this.#killDatabase(this.#shared)
    else if (running.length === 0 || random.chance(0.15)) {
      await Promise.all(running.map((serviceProcess) => this.#kill('everything', serviceProcess, true)))
      await this.#start(this.#layout())
      return
    } else if (serve) {
      const kind = random.int(1, 3)
      if (kind === 1) await this.#kill('serve with its worker', serve, true)
      else if (kind === 2) await this.#kill('serve without its worker', serve, false)
      else if (this.#serviceProcesses.killWorkerOf(serve)) this.#note('the worker of serve')
    } else {
      const chosen = running.filter(() => random.chance(0.5))
      if (chosen.length === 0) chosen.push(random.pick(running))
      await Promise.all(
        chosen.map((serviceProcess) => this.#kill(serviceProcess.role, serviceProcess, false)),
      )
    }
    await wait(random.int(0, 150))
    const wanted: ServiceProcess['role'][] = serve ? ['serve'] : ['api', 'worker', 'worker']
    for (const { role } of this.#serviceProcesses.running) {
      const at = wanted.indexOf(role)
      if (at !== -1) wanted.splice(at, 1)
    }
    await this.#start(wanted)
  }

  async #kill(what: string, serviceProcess: ServiceProcess, whole: boolean): Promise<void> {
    // A worker without its `serve` requeues what it has not finished within the drain time.
    const kill = this.#note(what)
    await this.#serviceProcesses.kill(serviceProcess, whole)
    kill.to = Date.now() + ON_ITS_WAY_MS + (whole || serviceProcess.role !== 'serve' ? 0 : DRAIN_MS)
  }

  async #killDatabase({ postgres }: SharedStorage): Promise<void> {
    const from = Date.now()
    const kill = { what: 'PostgreSQL', from, to: Number.POSITIVE_INFINITY }
    this.#killEvents.push(kill)
    this.#kills.PostgreSQL = (this.#kills.PostgreSQL ?? 0) + 1
    await postgres.crash()
    await wait(this.#random.int(0, 500))
    await postgres.start()
    kill.to = Date.now() + LEASE_MS
  }

  #note(what: string): Kill {
    const now = Date.now()
    // What has been sent by then may arrive a little later.
    const kill = { what, from: now, to: now + ON_ITS_WAY_MS }
    this.#killEvents.push(kill)
    this.#kills[what] = (this.#kills[what] ?? 0) + 1
    return kill
  }

  /** Nothing new is ordered and nothing killEvents until every batch has ended; then each is judged. */
  async #rest(): Promise<void> {
    for (const client of this.#clients) client.pause()
    const until = performance.now() + REST_MS_MAX * this.#options.patience
    while (this.#clients.some(({ open }) => open.length > 0) && this.#violations.length === 0) {
      if (performance.now() > until) {
        const open = this.#clients.flatMap((client) => client.open)
        for (const { id, status, done, lines } of open)
          this.#violate(`${id} is still ${status} with ${done} of ${lines.length} lines; kills have ended`)
      }
      await wait(50)
    }
    const { price } = this.#config.models[0]!.model
    const evidence = {
      sendLog: this.#sendLog,
      price,
      on_its_way_ms: ON_ITS_WAY_MS + this.#still.total_ms,
    }
    for (const client of this.#clients) {
      for (const batch of client.batches) {
        if (this.#judged.has(batch.id) || client.open.includes(batch)) continue
        this.#judged.add(batch.id)
        for (const problem of await ofBatch(client, batch, evidence)) this.#violate(problem)
      }
    }
    this.#sendLog.pause()
    const killed = sum(Object.values(this.#kills))
    this.#options.tell(
      `cycle ${this.#cycle} of ${this.#options.cycles}: ${killed} kills, ${this.#judged.size} batches judged, ` +
        `${this.#sendLog.calls.size} calls, ready again after at most ${Math.round(this.#worst_ready_ms)} ms`,
    )
    for (const client of this.#clients) client.resume()
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#still.end()
    for (const client of this.#clients) client.stop()
    await this.#serviceProcesses[Symbol.asyncDispose]()
  }
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((all, one) => all + one, 0)
}
