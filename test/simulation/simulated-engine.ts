// An engine of one machine before the model server that all share. Its process takes its time to start, crashes while it
// starts or works, hangs, and goes on answering for a while after it was told to stop.
import type { Backend, BackendResult } from '../../src/backends/backend.ts'
import type { Log } from '../../src/domain/log.ts'
import { Engine } from '../../src/engines/engine.ts'
import type { EngineProcess } from '../../src/engines/engine-process.ts'
import { Machine as Budget } from '../../src/engines/machine.ts'
import type { Machine } from './machine.ts'
import type { SeededRandom } from './seeded-random.ts'

const START_MS_MAX = 1_500
const LIFE_MS_MAX = 8_000
const STOP_MS_MAX = 1_000
const SPEC = {
  command: ['engine', '{port}'],
  ready: '/health',
  env: {},
  gpus: 1,
  memory_bytes: 0,
  start_timeout_ms: 3_000,
  idle_timeout_ms: 500,
}

const REFUSED: BackendResult = {
  kind: 'failed',
  status: null,
  code: 'upstream_unavailable',
  reason: 'connection refused',
  unreachable: true,
}

export interface SimulatedEngineOptions {
  /** What answers while the process runs. */
  server: Backend
  machine: Machine
  random: SeededRandom
  log: Log
  /** Whether it may crash and hang just now. */
  mayFail: () => boolean
}

export function simulatedEngine({ server, machine, random, log, mayFail }: SimulatedEngineOptions): Backend {
  const { clock } = machine
  let running: SimulatedProcess | null = null

  class SimulatedProcess implements EngineProcess {
    readonly pid = undefined
    readonly exited: Promise<string>
    readonly gone = new AbortController()
    readonly #readyAt = clock.now() + random.int(0, START_MS_MAX)
    readonly #hangs = random.chance(0.15) && mayFail()

    constructor() {
      this.exited = new Promise((resolve) => {
        this.gone.signal.addEventListener('abort', () => resolve('was killed by SIGSEGV'))
      })
      if (!random.chance(0.4)) return
      clock.after(random.int(0, LIFE_MS_MAX), () => {
        if (mayFail()) this.gone.abort()
      })
    }

    get isReady(): boolean {
      return !this.gone.signal.aborted && !this.#hangs && clock.now() >= this.#readyAt
    }

    lastLines(): readonly string[] {
      return []
    }

    async stop(): Promise<void> {
      if (this.gone.signal.aborted) return
      clock.after(random.int(0, STOP_MS_MAX), () => this.gone.abort())
      await this.exited
    }
  }

  const connect = (to: SimulatedProcess): Backend => ({
    name: server.name,
    async send(call) {
      const { signal: gone } = to.gone
      if (gone.aborted) return REFUSED
      return await server.send({ ...call, signal: call.signal ? AbortSignal.any([call.signal, gone]) : gone })
    },
    async close() {},
  })

  return new Engine({
    name: server.name,
    model: 'm',
    spec: SPEC,
    machine: new Budget({ gpus: ['0'], memory_bytes: 0, run_ms_min: 0 }, clock),
    clock,
    log,
    launch: () => {
      running = new SimulatedProcess()
      return running
    },
    freePort: async () => 1,
    isReady: async () => running?.isReady ?? false,
    connect: () => connect(running!),
  })
}
