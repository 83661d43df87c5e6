// A worker in a process of its own, beside the API: dispatching at full speed delays no answer, memory is
// bounded for each, and one may fall without the other. It is told its configuration, then `wake` and `stop`;
// it says `ready`, and what it has measured when it is asked for its `metrics`. When the process that started it
// is gone, it gives back what it holds and ends; when it was stopping already, it ends at once.
import type { Config } from '../config/config.ts'
import { systemClock } from '../domain/clock.ts'
import { type Metrics, ProcessRegistry } from '../metrics/process-registry.ts'
import { makeLog } from './log.ts'
import { announce } from './process-registration.ts'
import { openStores } from './stores.ts'
import { makeWorker } from './worker.ts'

export type ToWorker = { start: Config } | 'wake' | 'metrics' | 'stop'
export type FromWorker = 'ready' | { metrics: Metrics }

const registry = new ProcessRegistry('worker')
let running: { wake(): void; stop(): Promise<void>; stop_ms_max: number } | null = null
let ending = false

/** Beyond the time that lines in flight are given: stores that refuse must not keep a process that nobody waits for. */
const STOP_EXTRA_MS = 10_000

process.on('message', (message: ToWorker) => {
  if (message === 'wake') running?.wake()
  else if (message === 'metrics') void tellMetrics()
  else if (message === 'stop') end()
  else void begin(message.start)
})
process.on('disconnect', () => {
  // Whoever had asked it to stop did not wait for it to be done: it is to end now.
  if (ending) process.exit(1)
  end()
})
// A terminal's Ctrl-C reaches this process too; the one that started it says when to stop.
process.on('SIGINT', () => {})
process.on('SIGTERM', () => {})

async function begin(config: Config): Promise<void> {
  const stores = await openStores(config)
  const registration = await announce(stores, config, makeLog(config))
  const worker = makeWorker(config, stores, makeLog(config), { metrics: registry })
  await worker.start()
  // Its own session says from now on that it is there.
  await registration.end()
  running = {
    stop_ms_max: config.worker.drain_ms + STOP_EXTRA_MS,
    wake: () => worker.wake(),
    async stop() {
      await worker.stop()
      await stores.store.close()
    },
  }
  tell('ready')
}

async function tellMetrics(): Promise<void> {
  tell({ metrics: await registry.getMetricsAsJSON() })
}

function tell(message: FromWorker): void {
  // Who started it may be gone already, which is told by `disconnect`.
  if (process.connected) process.send?.(message, undefined, undefined, () => {})
}

function end(): void {
  if (ending) return
  ending = true
  if (running === null) process.exit(0)
  systemClock.after(running.stop_ms_max, () => process.exit(1))
  void running.stop().then(() => process.exit(0))
}
