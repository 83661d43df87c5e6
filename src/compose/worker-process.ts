// Runs a worker in a process of its own beside the API: dispatching does not delay the API, each process has a memory
// bound, and a crash of one does not affect the other. It receives its configuration, then `wake`, `answer`, `metrics`
// and `stop`, and sends `ready` and its metrics. When its parent process exits, it requeues its chunks and exits; if it
// was stopping already, it exits at once.
import type { Config } from '../config/config.ts'
import { systemClock } from '../domain/clock.ts'
import type { Log } from '../domain/log.ts'
import { type Metrics, ProcessRegistry } from '../metrics/metrics-text.ts'
import { makeLog } from './log.ts'
import { releaseMemoryWhenIdle } from './release-memory.ts'
import { type StartedWorker, startWorker } from './worker.ts'

export type ToWorker =
  | { start: Config; onlyBatches: readonly string[] | undefined }
  | { answer: string }
  | { reload: Config }
  | 'wake'
  | 'chunks'
  | 'metrics'
  | 'stop'
export type FromWorker = 'ready' | { metrics: Metrics }

const registry = new ProcessRegistry('worker')
let running: (StartedWorker & { log: Log; stop_ms_max: number }) | null = null
/** The only batches that a service of one command answers. */
const onlyBatches = new Set<string>()
/** The configuration that arrived while the worker was starting. */
let reloaded: Config | null = null
let ending = false

/** The time in ms beyond the drain time: unavailable stores must not keep the process from exiting. */
const STOP_EXTRA_MS = 10_000

process.on('message', (message: ToWorker) => {
  if (message === 'wake' || message === 'chunks') running?.worker.wake(message)
  else if (message === 'metrics')
    registry
      .getMetricsAsJSON()
      .then((metrics) => send({ metrics }))
      .catch((error: unknown) => running?.log.error({ err: error }, 'metrics could not be read'))
  else if (message === 'stop') end()
  else if ('reload' in message) {
    reloaded = message.reload
    running?.reload(message.reload)
  } else if ('answer' in message) {
    onlyBatches.add(message.answer)
    running?.worker.wake()
  } else {
    for (const id of message.onlyBatches ?? []) onlyBatches.add(id)
    void begin(message.start, message.onlyBatches && onlyBatches)
  }
})
process.on('disconnect', () => {
  // The parent has asked for a stop and exited without waiting.
  if (ending) process.exit(1)
  end()
})
// Ctrl-C in a terminal also reaches this process; only its parent stops it.
process.on('SIGINT', () => {})
process.on('SIGTERM', () => {})
process.on('SIGHUP', () => {})

async function begin(config: Config, only: ReadonlySet<string> | undefined): Promise<void> {
  const hooks = { metrics: registry, onlyBatches: only }
  const log = makeLog(config)
  const started = await startWorker(config, log, hooks)
  running = { ...started, log, stop_ms_max: config.worker.drain_ms + STOP_EXTRA_MS }
  if (reloaded !== null) started.reload(reloaded)
  releaseMemoryWhenIdle()
  send('ready')
}

function send(message: FromWorker): void {
  // The parent may have exited, which `disconnect` handles.
  if (process.connected) process.send?.(message, undefined, undefined, () => {})
}

function end(): void {
  if (ending) return
  ending = true
  if (running === null) process.exit(0)
  const { log, stop, stop_ms_max } = running
  systemClock.after(stop_ms_max, () => process.exit(1))
  void stop().then(
    () => process.exit(0),
    (error) => {
      log.error({ err: error }, 'shutdown failed')
      process.exit(1)
    },
  )
}
