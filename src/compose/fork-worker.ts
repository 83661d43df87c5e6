// The workers that `serve` starts beside its API, each in a process of its own. One that is killed is started
// anew: what it held is taken up again when its lease has run out. One that falls again and again has a reason
// that starting it cannot mend, and ends the service.
import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { getCompileCacheDir } from 'node:module'
import { Failure } from '../cli/terminal/failure.ts'
import type { Config } from '../config/config.ts'
import { systemClock } from '../domain/clock.ts'
import type { Log } from '../domain/log.ts'
import type { Metrics } from '../metrics/process-registry.ts'
import { shareOf } from './worker-count.ts'
import type { FromWorker, ToWorker } from './worker-process.ts'

/** A worker's memory is the lines at hand and little more, if its heap is kept from spreading. */
const WORKER_FLAGS = ['--max-semi-space-size=16']
/**
 * glibc gives every thread a pool of its own to waste, two are enough; and it learns from large buffers that are
 * given back to keep them, in pieces that nothing else fits into. Fixed thresholds give them to the system.
 */
const WORKER_ENV = {
  MALLOC_ARENA_MAX: '2',
  MALLOC_MMAP_THRESHOLD_: String(256 * 1024),
  MALLOC_TRIM_THRESHOLD_: String(1024 * 1024),
}
/** More ends within a minute than these are no accidents. */
const FALLS_MAX = 3
const FALLS_WITHIN_MS = 60_000
/** A worker that is too busy to say how it is doing for longer than this is left out. */
const METRICS_MS_MAX = 2_000

export interface WorkerProcesses {
  /** Resolves once all of them look for work. */
  begin(config: Config, log: Log): Promise<void>
  wake(): void
  /** What each has measured; one that cannot say just now is left out. */
  metrics(): Promise<Metrics[]>
  /** Resolves when they have given back what they held, and ended. */
  stop(): Promise<void>
  /** Rejects when one of them cannot be kept running. */
  failed: Promise<never>
}

interface WorkerProcess extends Omit<WorkerProcesses, 'metrics'> {
  /** Null while it cannot say. */
  metrics(): Promise<Metrics | null>
}

/** Starts the processes at once, so that they load while the caller does other things; they work from `begin` on. */
export function forkWorkers(count: number): WorkerProcesses {
  const workers = Array.from({ length: count }, forkWorker)
  return {
    failed: Promise.race(workers.map((worker) => worker.failed)),
    async begin(config, log) {
      const share = shareOf(config, count)
      await Promise.all(workers.map((worker) => worker.begin(share, log)))
    },
    wake() {
      for (const worker of workers) worker.wake()
    },
    async metrics() {
      const measured = await Promise.all(workers.map((worker) => worker.metrics()))
      return measured.filter((one) => one !== null)
    },
    async stop() {
      await Promise.all(workers.map((worker) => worker.stop()))
    },
  }
}

function forkWorker(): WorkerProcess {
  let child = spawnWorker()
  let exited = once(child, 'exit')
  let stopping = false
  const falls: number[] = []
  let fail: (error: unknown) => void = () => {}
  const failed = new Promise<never>((_, reject) => {
    fail = reject
  })
  failed.catch(() => {})

  const run = async (config: Config, log: Log): Promise<void> => {
    const running = child
    const ended = exited
    await ready(running, config)
    void ended.then(([code, signal]) => {
      if (!stopping) replace(config, log, `the worker process ended with ${signal ?? code}`)
    }, fail)
  }

  const replace = (config: Config, log: Log, how: string): void => {
    const now = systemClock.now()
    falls.push(now)
    if (falls.filter((at) => at > now - FALLS_WITHIN_MS).length > FALLS_MAX) {
      fail(new Failure(`${how} for the ${FALLS_MAX + 1}th time within a minute; its log says why`))
      return
    }
    log.error({ pid: child.pid }, `${how}; another one takes its place`)
    child = spawnWorker()
    exited = once(child, 'exit')
    // One that falls before it works has fallen like any other.
    run(config, log).catch((error: unknown) => {
      if (!stopping) replace(config, log, error instanceof Error ? error.message : String(error))
    })
  }

  return {
    failed,
    begin: run,
    wake: () => tell(child, 'wake'),
    metrics: () => askMetrics(child),
    async stop() {
      stopping = true
      tell(child, 'stop')
      await exited
    },
  }
}

function spawnWorker(): ChildProcess {
  const file = import.meta.url.endsWith('.ts') ? './worker-process.ts' : './worker-process.js'
  const cache = getCompileCacheDir()
  return fork(new URL(file, import.meta.url), {
    execArgv: [...process.execArgv, ...WORKER_FLAGS],
    env: { ...WORKER_ENV, ...process.env, ...(cache === undefined ? {} : { NODE_COMPILE_CACHE: cache }) },
    serialization: 'advanced',
    // Standard output belongs to the command.
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
  })
}

function tell(child: ChildProcess, message: ToWorker): void {
  // One that is just dying cannot be told anything; its exit is what counts.
  if (child.connected) child.send(message, () => {})
}

/** Two that ask at once may get the same answer. */
function askMetrics(child: ChildProcess): Promise<Metrics | null> {
  return new Promise((resolve) => {
    const end = (metrics: Metrics | null): void => {
      cancel()
      child.off('message', hear)
      child.off('exit', gone)
      resolve(metrics)
    }
    const hear = (message: FromWorker): void => {
      if (typeof message === 'object') end(message.metrics)
    }
    const gone = (): void => end(null)
    const cancel = systemClock.after(METRICS_MS_MAX, gone)
    child.on('message', hear)
    child.once('exit', gone)
    if (child.connected) tell(child, 'metrics')
    else end(null)
  })
}

/** Resolves when the process works; rejects when it ends before. */
async function ready(child: ChildProcess, config: Config): Promise<void> {
  const gone = once(child, 'exit').then(([code, signal]) => {
    throw new Failure(`the worker process ended with ${signal ?? code} as it started`)
  })
  gone.catch(() => {})
  const said = once(child, 'message')
  said.catch(() => {})
  tell(child, { start: config })
  const [first]: FromWorker[] = await Promise.race([said, gone])
  if (first !== 'ready') throw new Error('the worker process did not say that it is ready')
}
