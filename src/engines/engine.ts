// A model server that runs only while lines wait for its model.
//
//              lines wait            room on the machine           the ready path answers
//   stopped ───────────────► queued ─────────────────────► starting ───────────────────────► ready
//      ▲                        ▲                             │ exit, start_timeout             │ │
//      │                        │ lines wait, the pause       ▼                                 │ │ exit, or no answer
//      │                        └───────────────────────── failed ◄─────────────────────────────│─┘ to health checks
//      │                            is over                                                     │
//      └────────────────────────────── stopping ◄───────────────────────────────────────────────┘
//                                             nothing to do for idle_timeout, or its room is needed
//
// After a start that failed, lines sent to it fail as with a server that cannot be reached: the rules for outages decide
// how long lines wait for a server that never starts, unless `starts_max` ends that. After a crash they wait for the next
// start.
import {
  type Backend,
  type BackendCall,
  type BackendResult,
  type Done,
  type ServerLoad,
  type ServerOnDemand,
  settle,
  unanswered,
} from '../backends/backend.ts'
import type { EngineConfig } from '../config/config.ts'
import { type Clock, sleep } from '../domain/clock.ts'
import { messageOf } from '../domain/errors.ts'
import type { Log } from '../domain/log.ts'
import { counted } from '../domain/text.ts'
import { type EngineAccess, type EnginePlace, type EngineState, newApiKey, orderOf } from './engine-access.ts'
import { EngineOutput, type EngineProcess, type LaunchEngine } from './engine-process.ts'
import type { Machine, Tenant } from './machine.ts'

/** The interval in ms at which a starting server is asked whether it is ready. */
const READY_POLL_MS = 50
const HEALTH_POLL_MS = 5_000
const DOUBT_POLL_MS = 100
/** The time in ms after which a server that answers neither health checks nor lines counts as hung. */
const HUNG_MS = 60_000
const PAUSE_MS_MIN = 1_000
const PAUSE_MS_MAX = 60_000
/** The running time in ms after which the next pause is the shortest one again. */
const STABLE_MS = 60_000
/** The time in ms for lines in flight when another engine needs the room. */
const EVICTION_MS = 30_000
const INTERRUPTED: BackendResult = {
  kind: 'throttled',
  status: 503,
  reason: 'the server was stopped to make room for another',
}
/** The factor on the start time below which a batch's deadline is urgent. */
const URGENT_STARTS = 2

/** Makes the client by which an upstream reaches the engine's server. */
type ConnectEngine = (access: EngineAccess, api_key: string) => Backend

interface EngineOptions {
  /** The name of the server in audit records, logs and metrics. */
  name: string
  model: string
  spec: EngineConfig
  machine: Machine
  clock: Clock
  log: Log
  launch: LaunchEngine
  /** The path of the file for the output of the engine's server. */
  output: string
  newPlace: (spec: EngineConfig) => Promise<EnginePlace>
  accessTo: (place: EnginePlace, process: EngineProcess) => EngineAccess
}

type State = 'stopped' | 'queued' | 'starting' | 'ready' | 'stopping' | 'failed'

const TAKEN = 'found its port taken by another process'

const NO_LOAD: ServerLoad = { waiting: 0, atRisk: false, deadline: Number.POSITIVE_INFINITY }

export class Engine implements ServerOnDemand, Tenant {
  readonly name: string
  readonly #options: EngineOptions
  /** The waiting lines by lane: several models may share a server. */
  readonly #loads = new Map<object, ServerLoad>()
  readonly #listeners: (() => void)[] = []
  #state: State = 'stopped'
  #since: number
  #process: EngineProcess | null = null
  #output: EngineOutput | null = null
  /** The access to the engine's server, once it is ready; null before. */
  #reached: { access: EngineAccess; api_key: string } | null = null
  /** The clients by upstream: upstreams that share a server may differ, such as in timeouts. */
  readonly #clients = new Map<ConnectEngine, Backend>()
  #inFlight = 0
  #busyAt: number
  #answeredAt = 0
  /** Whether this process, rather than a failure, has stopped the engine. */
  #isStopped = false
  /** Whether a connection broke: no line is sent until the process has exited or answers. */
  #isUnconfirmed = false
  #failure: string | null = null
  #retryAt = 0
  /** The number of failed starts in a row. */
  #startsFailed = 0
  #pauseMs = PAUSE_MS_MIN
  /** The time that the last start took, in ms. */
  #startMs: number
  /** Aborted to check at once whether the engine's server answers. */
  #alarm: AbortController | null = null
  /** Aborted when a stopping server has no line in flight. */
  #idle: AbortController | null = null
  #closed = false

  constructor(options: EngineOptions) {
    this.#options = options
    this.name = options.name
    this.#since = options.clock.now()
    this.#busyAt = this.#since
    this.#startMs = options.spec.start_timeout_ms
  }

  get state(): State {
    return this.#state
  }

  get isAvailable(): boolean {
    return (this.#state === 'ready' && !this.#isUnconfirmed) || this.#failedStart
  }

  get #failedStart(): boolean {
    return this.#state === 'failed' && this.#startsFailed > 0
  }

  /** Whether the server is not started any more after too many failed starts. */
  get #hasGivenUp(): boolean {
    return this.#state === 'failed' && this.#startsFailed >= (this.#options.spec.starts_max ?? Infinity)
  }

  get isUp(): boolean {
    return this.#state === 'ready'
  }

  get needs(): Tenant['needs'] {
    return this.#options.spec
  }

  get load(): number {
    return this.#inFlight + this.#sum().waiting
  }

  get isUrgent(): boolean {
    const { atRisk, deadline } = this.#sum()
    return atRisk || deadline - this.#options.clock.now() < URGENT_STARTS * this.#startMs
  }

  get waitingReason(): { since: number; text: string } | null {
    const since = this.#since
    const why = this.#failure === null ? '' : ` Before that, it ${this.#failure}.`
    if (this.#state === 'starting') return { since, text: `is starting.${why}` }
    if (this.#state === 'queued') {
      const holders = this.#options.machine.holders(this)
      return { since, text: `waits for room on the machine, which ${holders.join(', ')} uses.${why}` }
    }
    if (this.#state === 'stopping') return { since, text: 'is being stopped before it starts again.' }
    if (this.#state === 'failed' && !this.#hasGivenUp)
      return { since, text: `${this.#failure}; it is started again soon.` }
    return null
  }

  onChange(listener: () => void): void {
    this.#listeners.push(listener)
  }

  update(lane: object, load: ServerLoad): void {
    const { clock, spec, machine } = this.#options
    if (this.#closed) return
    const now = clock.now()
    this.#loads.set(lane, load)
    if (this.load > 0) this.#busyAt = now
    const isWanted = this.#sum().waiting > 0 && !this.#hasGivenUp
    if (isWanted && (this.#state === 'stopped' || (this.#state === 'failed' && now >= this.#retryAt))) {
      this.#enqueue()
      return
    }
    if (!isWanted && this.#state === 'queued') {
      machine.leave(this)
      this.#become('stopped')
    }
    if (this.#state === 'ready' && this.load === 0 && now - this.#busyAt >= spec.idle_timeout_ms)
      void this.#stop('idle')
    else machine.review()
  }

  /** Makes the backend of an upstream, whose lines are sent by a client from `connect`. */
  backend(connect: ConnectEngine): Backend {
    return {
      name: this.name,
      onDemand: this,
      send: (call, done) => this.#send(call, connect, done),
      readTraffic: async () => (await this.#clientOf(connect)?.readTraffic?.()) ?? null,
      close: () => this.close(),
    }
  }

  #send(call: BackendCall, connect: ConnectEngine, done: Done): void {
    const client = this.#clientOf(connect)
    if (client === null) {
      settle(Promise.resolve(this.#unreachable()), done)
      return
    }
    this.#inFlight++
    client.send(call, (result, error) => {
      const now = this.#options.clock.now()
      if (result.kind === 'answered' || result.kind === 'refused') this.#answeredAt = now
      if (result.kind === 'failed' && result.status === null && !call.signal?.aborted) this.#doubt()
      this.#inFlight--
      this.#busyAt = now
      if (this.#inFlight === 0) this.#idle?.abort()
      // A line that was interrupted to make room is not at fault.
      done(result.kind === 'failed' && this.#isStopped ? INTERRUPTED : result, error)
    })
  }

  #clientOf(connect: ConnectEngine): Backend | null {
    if (this.#reached === null) return null
    const { access, api_key } = this.#reached
    const client = this.#clients.get(connect) ?? connect(access, api_key)
    this.#clients.set(connect, client)
    return client
  }

  async close(): Promise<void> {
    this.#closed = true
    this.#alarm?.abort()
    const { machine } = this.#options
    if (this.#state === 'queued') machine.leave(this)
    await this.#end()
    // The room is free only now: after a reload, another engine may take it.
    machine.leave(this)
  }

  onRoom(gpus: readonly string[]): void {
    this.#start(gpus).catch((error: unknown) => {
      this.#options.log.error({ err: error, engine: this.name }, 'engine could not be started')
      void this.#fail(`could not be started: ${messageOf(error)}`)
    })
  }

  onEvicted(): void {
    void this.#stop('another engine needs its room')
  }

  #sum(): ServerLoad {
    let sum = NO_LOAD
    for (const { waiting, atRisk, deadline } of this.#loads.values()) {
      if (waiting === 0) continue
      sum = {
        waiting: sum.waiting + waiting,
        atRisk: sum.atRisk || atRisk,
        deadline: Math.min(sum.deadline, deadline),
      }
    }
    return sum
  }

  #become(state: State): void {
    this.#state = state
    this.#isUnconfirmed = false
    this.#since = this.#options.clock.now()
    for (const listener of this.#listeners) listener()
  }

  #enqueue(): void {
    const never = this.#options.machine.whyNever(this)
    if (never !== null) {
      void this.#fail(`cannot be started: ${never}`)
      return
    }
    this.#become('queued')
    this.#options.machine.enter(this)
  }

  async #start(gpus: readonly string[]): Promise<void> {
    const { spec, model, launch, newPlace, clock, log } = this.#options
    this.#become('starting')
    this.#isStopped = false
    const [begun, api_key] = [clock.now(), newApiKey()]
    const place = await newPlace(spec)
    if (this.#closed || this.#state !== 'starting') return
    const output = new EngineOutput(this.#options.output)
    const process = launch(orderOf(spec, place, { api_key, model }, gpus), output)
    this.#process = process
    this.#output = output
    const fields = { engine: this.name, pid: process.pid, port: place.port, output: output.path }
    log.info(fields, 'engine started')
    void process.exited.then((how) => this.#onExit(process, how))
    const access = this.#options.accessTo(place, process)
    while (this.#process === process && this.#state === 'starting') {
      const state = await access.state(spec.ready, api_key)
      if (state === 'taken') return await this.#fail(TAKEN)
      if (state === 'ready') break
      if (clock.now() - begun >= spec.start_timeout_ms)
        return await this.#fail(`was not ready within its start_timeout (${spec.start_timeout_ms / 1000} s)`)
      await this.#pause(READY_POLL_MS)
    }
    if (this.#process !== process || this.#state !== 'starting') return
    this.#startMs = clock.now() - begun
    this.#answeredAt = clock.now()
    this.#busyAt = clock.now()
    this.#reached = { access, api_key }
    log.info({ engine: this.name, start_ms: this.#startMs }, 'engine is ready')
    this.#become('ready')
    await this.#watch(process, () => access.state(spec.ready, api_key))
  }

  #doubt(): void {
    if (this.#state !== 'ready' || this.#isUnconfirmed) return
    this.#isUnconfirmed = true
    // The next step is a health check.
    this.#alarm?.abort()
  }

  /** Kills a server that answers neither health checks nor lines. */
  async #watch(process: EngineProcess, look: () => Promise<EngineState>): Promise<void> {
    const { clock } = this.#options
    for (;;) {
      await this.#pause(this.#isUnconfirmed ? DOUBT_POLL_MS : HEALTH_POLL_MS)
      if (this.#process !== process || this.#state !== 'ready') return
      const state = await look()
      if (this.#process !== process || this.#state !== 'ready') return
      if (state === 'taken') return await this.#fail(TAKEN)
      if (state === 'ready') this.#onHealthy()
      if (clock.now() - this.#answeredAt >= HUNG_MS)
        return await this.#fail(`answered nothing for ${HUNG_MS / 1000} s`)
    }
  }

  #onHealthy(): void {
    this.#answeredAt = this.#options.clock.now()
    if (!this.#isUnconfirmed) return
    this.#isUnconfirmed = false
    for (const listener of this.#listeners) listener()
  }

  #pause(ms: number): Promise<void> {
    this.#alarm = new AbortController()
    return sleep(this.#options.clock, ms, this.#alarm.signal)
  }

  async #onExit(process: EngineProcess, how: string): Promise<void> {
    if (this.#process !== process || this.#state === 'stopping') return
    await this.#fail(how)
  }

  /** Handles a failure; the server is started again after a pause, if lines still wait. */
  async #fail(how: string): Promise<void> {
    const { clock, log, machine } = this.#options
    if (this.#closed) return
    const now = clock.now()
    if (this.#state === 'ready') this.#startsFailed = 0
    else this.#startsFailed++
    if (this.#state === 'ready' && now - this.#since >= STABLE_MS) this.#pauseMs = PAUSE_MS_MIN
    const { lastWords = null, path: output } = this.#output ?? { path: this.#options.output }
    this.#failure = lastWords === null ? how : `${how} (${lastWords})`
    log.error({ engine: this.name, how: this.#failure, output, retry_in_ms: this.#pauseMs }, 'engine failed')
    this.#become('stopping')
    await this.#end()
    this.#retryAt = clock.now() + this.#pauseMs
    this.#pauseMs = Math.min(this.#pauseMs * 2, PAUSE_MS_MAX)
    // First, because listeners may ask for room again.
    machine.leave(this)
    this.#become('failed')
  }

  async #stop(why: string): Promise<void> {
    const { clock, log, machine } = this.#options
    log.info({ engine: this.name, why }, 'engine is stopped')
    this.#isStopped = true
    this.#become('stopping')
    if (this.#inFlight > 0) {
      this.#idle = new AbortController()
      await sleep(clock, EVICTION_MS, this.#idle.signal)
    }
    this.#idle = null
    await this.#end()
    this.#pauseMs = PAUSE_MS_MIN
    this.#failure = null
    machine.leave(this)
    if (!this.#closed) this.#become('stopped')
  }

  /** Stops the engine's process and closes its clients. */
  async #end(): Promise<void> {
    this.#alarm?.abort()
    await this.#process?.stop()
    this.#reached = null
    this.#process = null
    const clients = [...this.#clients.values()]
    this.#clients.clear()
    await Promise.all(clients.map((one) => one.close()))
  }

  #unreachable(): BackendResult {
    const reason = `the server ${this.name} ${this.#failure ?? 'is not running'}`
    if (this.#hasGivenUp) {
      const message = `T${reason.slice(1)}; it was started ${counted(this.#startsFailed, 'time')}.`
      return { kind: 'refused', status: 503, code: 'upstream_unavailable', message }
    }
    const operatorReason = `${reason}; its output is in ${this.#options.output}`
    return unanswered('upstream_unavailable', reason, { operatorReason, unreachable: true })
  }
}
