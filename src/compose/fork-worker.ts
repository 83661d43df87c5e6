// Runs the worker processes of `serve` beside its API. A process that crashes is restarted; its chunks are requeued
// when its lease expires. A process that crashes repeatedly ends the service.
import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { availableParallelism } from 'node:os'
import { Failure } from '../cli/terminal/failure.ts'
import { type Config, startsEngines } from '../config/config.ts'
import { systemClock } from '../domain/clock.ts'
import { messageOf } from '../domain/errors.ts'
import type { Log } from '../domain/log.ts'
import type { Metrics } from '../metrics/metrics-text.ts'
import type { Worker } from '../worker/worker.ts'
import type { FromWorker, ToWorker } from './worker-process.ts'

/**
 * Makes glibc take large buffers from the system and return them: the limit, smaller than that of bin/offpeak.js, also
 * covers the buffers of answers.
 */
const WORKER_ENV = { MALLOC_MMAP_THRESHOLD_: String(32 * 1024) }
/** The most crashes of a worker process within a minute, above which the service ends. */
const CRASHES_MAX = 3
const CRASHES_WITHIN_MS = 60_000
/** The time in ms after which a worker's metrics are left out. */
const METRICS_MS_MAX = 2_000

export interface WorkerProcesses {
  /**
   * Starts claiming work and resolves once all do; `onlyBatches`: only of these batches, and those that `answer` adds.
   */
  begin(config: Config, log: Log, onlyBatches?: readonly string[]): Promise<void>
  answer(batch_id: string): void
  /** Applies the models of another configuration. Throws a Failure where the processes cannot use them. */
  reload(config: Config): void
  wake: Worker['wake']
  /** Reads the metrics of each process that reports them in time. */
  metrics(): Promise<Metrics[]>
  /** Stops the processes; resolves when they have requeued their chunks and exited. */
  stop(): Promise<void>
  /** Rejects when a worker process cannot be kept running. */
  failed: Promise<never>
}

/** Starts the processes at once, so that they load while the caller opens the stores; they work after `begin`. */
export function forkWorkers(count: number): WorkerProcesses {
  /** The first message to a process that replaces a crashed one: the latest configuration. */
  let start: Start | null = null
  const workers = Array.from({ length: count }, () => forkWorker(() => start))
  const tellAll = (message: ToWorker): void => {
    for (const worker of workers) worker.tell(message)
  }
  return {
    failed: Promise.race(workers.map((worker) => worker.failed)),
    async begin(config, log, onlyBatches) {
      start = { start: shareOf(config, count), onlyBatches: onlyBatches && [...onlyBatches] }
      await Promise.all(workers.map((worker) => worker.begin(log)))
    },
    answer(batch_id) {
      start?.onlyBatches?.push(batch_id)
      tellAll({ answer: batch_id })
    },
    reload(config) {
      if (count > 1 && startsEngines(config))
        throw new Failure(
          `${count} worker processes would start every engine as many times; restart the service, with worker.processes left out or 1`,
        )
      const share = shareOf(config, count)
      if (start) start.start = share
      tellAll({ reload: share })
    },
    wake: (news = 'wake') => tellAll(news),
    async metrics() {
      const measured = await Promise.all(workers.map((worker) => worker.metrics()))
      return measured.filter((one) => one !== null)
    },
    async stop() {
      await Promise.all(workers.map((worker) => worker.stop()))
    },
  }
}

interface Start {
  start: Config
  onlyBatches: string[] | undefined
}

interface WorkerProcess extends Pick<WorkerProcesses, 'stop' | 'failed'> {
  /** Starts the process's work; resolves once it claims work. */
  begin(log: Log): Promise<void>
  tell(message: ToWorker): void
  /** Reads the metrics of the process; null when it does not report them in time. */
  metrics(): Promise<Metrics | null>
}

function forkWorker(startOf: () => Start | null): WorkerProcess {
  let child = spawnWorker()
  let exited = once(child, 'exit')
  let stopping = false
  const crashes: number[] = []
  const failed = Promise.withResolvers<never>()
  failed.promise.catch(() => {})

  const begin = async (log: Log): Promise<void> => {
    const start = startOf()
    if (start === null) throw new Error('a worker process began without a configuration')
    const ended = exited
    await ready(child, ended, start)
    void ended.then(([code, signal]) => {
      if (!stopping) replace(log, `the worker process exited with ${signal ?? code}`)
    }, failed.reject)
  }

  const replace = (log: Log, how: string): void => {
    const now = systemClock.now()
    crashes.push(now)
    if (crashes.filter((at) => at > now - CRASHES_WITHIN_MS).length > CRASHES_MAX) {
      failed.reject(
        new Failure(`${how} for the ${CRASHES_MAX + 1}th time within a minute; see its log for the reason`),
      )
      return
    }
    log.error({ pid: child.pid }, `${how}; restarted it`)
    child = spawnWorker()
    exited = once(child, 'exit')
    // A process that exits before it is ready also counts as a crash.
    begin(log).catch((error: unknown) => {
      if (!stopping) replace(log, messageOf(error))
    })
  }

  return {
    failed: failed.promise,
    begin,
    tell: (message) => tell(child, message),
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
  return fork(new URL(file, import.meta.url), {
    env: { ...process.env, ...WORKER_ENV },
    serialization: 'advanced',
    // Standard output is for the output of the command.
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
  })
}

function tell(child: ChildProcess, message: ToWorker): void {
  // An exiting process receives nothing; its exit is handled.
  if (child.connected) child.send(message, () => {})
}

/** Reads the metrics of a process; two concurrent calls may get the same answer. */
function askMetrics(child: ChildProcess): Promise<Metrics | null> {
  return new Promise((resolve) => {
    const end = (metrics: Metrics | null): void => {
      cancel()
      child.off('message', receive)
      child.off('exit', exit)
      resolve(metrics)
    }
    const receive = (message: FromWorker): void => {
      if (typeof message === 'object') end(message.metrics)
    }
    const exit = (): void => end(null)
    const cancel = systemClock.after(METRICS_MS_MAX, exit)
    child.on('message', receive)
    child.once('exit', exit)
    if (child.connected) tell(child, 'metrics')
    else end(null)
  })
}

/** Starts a process's work; resolves when it is ready, rejects when it exits before. `ended`: its exit, past or not. */
async function ready(child: ChildProcess, ended: Promise<unknown[]>, start: ToWorker): Promise<void> {
  const exited = ended.then(([code, signal]) => {
    throw new Failure(`the worker process exited with ${signal ?? code} during its start`)
  })
  // Metrics may be asked for, and come, before.
  const isReady = new Promise<void>((resolve) => {
    child.on('message', (message: FromWorker) => {
      if (message === 'ready') resolve()
    })
  })
  tell(child, start)
  await Promise.race([isReady, exited])
}

// Decides on the number of worker processes of `serve`, and on the share of the configured limits for each.

/** The cores per worker process: one sends more lines than most servers answer, and the API needs cores. */
const CORES_EACH = 4
const AUTO_MAX = 4

/**
 * The number of worker processes. `auto`: one for every four cores, at least one, at most four, and at most the
 * smallest `concurrency_max` of an upstream; one where servers are started on demand.
 */
export function workerCount(config: Config, cores: number = availableParallelism()): number {
  const { processes } = config.worker
  if (processes !== 'auto') return processes
  if (startsEngines(config)) return 1
  const upstreams = config.models.flatMap((model) => model.upstreams)
  const slots = Math.min(config.worker.concurrency_max, ...upstreams.map((one) => one.concurrency_max))
  return Math.max(1, Math.min(AUTO_MAX, slots, Math.floor(cores / CORES_EACH)))
}

/** The configuration of each of `count` workers, which share the limits of lines in flight and of memory. */
export function shareOf(config: Config, count: number): Config {
  if (count === 1) return config
  const share = (whole: number): number => Math.max(1, Math.ceil(whole / count))
  return {
    ...config,
    worker: {
      ...config.worker,
      concurrency_max: share(config.worker.concurrency_max),
      memory_bytes: share(config.worker.memory_bytes),
    },
    models: config.models.map((model) => ({
      ...model,
      upstreams: model.upstreams.map((upstream) => ({
        ...upstream,
        concurrency_max: share(upstream.concurrency_max),
        hours: upstream.hours.map((window) => ({
          ...window,
          concurrency_max: window.concurrency_max && share(window.concurrency_max),
        })),
      })),
    })),
  }
}
