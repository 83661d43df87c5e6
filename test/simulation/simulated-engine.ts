// An engine of one machine before the model server that all share. Its process takes its time to start, crashes while it
// starts or works, hangs at its start or later, and goes on answering for a while after it was told to stop. The engines
// of a machine share its GPUs.
import type { Backend } from '../../src/backends/backend.ts'
import type { Log } from '../../src/domain/log.ts'
import { Engine } from '../../src/engines/engine.ts'
import type { EngineProcess } from '../../src/engines/engine-process.ts'
import type { Machine as Budget } from '../../src/engines/machine.ts'
import { type Answering, backendOf, UNREACHABLE } from './answering.ts'
import type { Machine } from './machine.ts'
import type { SeededRandom } from './seeded-random.ts'
import type { Tally } from './tally.ts'

const START_MS_MAX = 1_500
const LIFE_MS_MAX = 8_000
const STOP_MS_MAX = 1_000
const SPEC = {
  command: ['engine', '{port}'],
  ready: '/health',
  env: {},
  pass_env: [],
  files: {},
  gpus: 1,
  memory_bytes: 0,
  start_timeout_ms: 3_000,
  idle_timeout_ms: 500,
}

export interface SimulatedEngineOptions {
  name: string
  /** What answers while the process runs. */
  server: Answering
  machine: Machine
  /** What the engines of the machine share. */
  gpus: Budget
  random: SeededRandom
  log: Log
  /** Whether it may crash and hang just now. */
  mayFail: () => boolean
  tally: Tally
}

export function simulatedEngine(options: SimulatedEngineOptions): Backend {
  const { name, server, machine, gpus, random, mayFail, tally } = options
  const { clock } = machine
  const happens = (what: string): void => tally.count(`engine: ${what}`)
  let running: SimulatedProcess | null = null

  class SimulatedProcess implements EngineProcess {
    readonly pid = undefined
    readonly tag = ''
    readonly exited: Promise<string>
    readonly gone = new AbortController()
    isTold = false
    readonly #readyAt = clock.now() + random.int(0, START_MS_MAX)
    /** From then on it answers nothing. */
    readonly #hangsAt: number

    constructor() {
      happens('started')
      const hangs = mayFail() && random.chance(0.2)
      this.#hangsAt = hangs
        ? clock.now() + random.pick([0, random.int(0, LIFE_MS_MAX)])
        : Number.POSITIVE_INFINITY
      this.exited = new Promise((resolve) => {
        this.gone.signal.addEventListener('abort', () => resolve('was killed by SIGSEGV'))
      })
      if (!random.chance(0.4)) return
      clock.after(random.int(0, LIFE_MS_MAX), () => {
        if (!mayFail() || this.gone.signal.aborted) return
        happens(this.isReady ? 'crashed' : this.hangs ? 'crashed while it hung' : 'crashed while it started')
        this.gone.abort()
      })
    }

    get hangs(): boolean {
      return clock.now() >= this.#hangsAt
    }

    get isReady(): boolean {
      return !this.gone.signal.aborted && !this.hangs && clock.now() >= this.#readyAt
    }

    async stop(): Promise<void> {
      if (this.gone.signal.aborted) return
      happens(
        this.hangs
          ? clock.now() >= this.#readyAt && this.#hangsAt > this.#readyAt
            ? 'told to stop while it hung'
            : 'told to stop while it hung at its start'
          : 'told to stop',
      )
      this.isTold = true
      clock.after(random.int(0, STOP_MS_MAX), () => this.gone.abort())
      await this.exited
    }
  }

  const connect = (to: SimulatedProcess): Backend =>
    backendOf(name, async (call) => {
      const { signal: gone } = to.gone
      if (gone.aborted) return UNREACHABLE
      const signal = call.signal ? AbortSignal.any([call.signal, gone]) : gone
      if (to.hangs) {
        happens('took a line while it hung')
        if (!signal.aborted) await new Promise((resolve) => signal.addEventListener('abort', resolve))
        return UNREACHABLE
      }
      const { endpoint, body, project_id, traceparent = null } = call
      const result = await server({ endpoint, body, project_id, traceparent, signal })
      if (to.isTold && result.kind === 'answered') happens('answered after it was told to stop')
      return result
    })

  const engine = new Engine({
    name,
    model: 'm',
    spec: SPEC,
    machine: gpus,
    clock,
    log: {
      ...options.log,
      info(fields, message) {
        if ('why' in fields) happens(`${message}: ${fields.why}`)
      },
    },
    launch: () => {
      running = new SimulatedProcess()
      return running
    },
    output: '/dev/null',
    newPlace: async () => ({ port: 1, folder: null }),
    accessTo: () => ({
      base_url: '',
      socket: null,
      isOwn: async () => true,
      state: async () => (running?.isReady ? 'ready' : 'starting'),
    }),
  })
  return engine.backend(() => connect(running!))
}
