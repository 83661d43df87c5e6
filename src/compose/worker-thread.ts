// A worker in a thread of its own, beside the API: dispatching at full speed must not delay an answer.
// It hears `wake` and `stop`, and says `ready`.
import { parentPort, workerData } from 'node:worker_threads'
import type { Config } from '../config/config.ts'
import { makeLog } from './log.ts'
import { openStores } from './stores.ts'
import { makeWorker } from './worker.ts'

export type ToThread = 'wake' | 'stop'
export type FromThread = 'ready'

const port = parentPort
if (!port) throw new Error('this file runs in a thread')
const config: Config = workerData
const stores = await openStores(config)
const worker = makeWorker(config, stores, makeLog(config))
await worker.start()
const ready: FromThread = 'ready'
port.postMessage(ready)
port.on('message', (message: ToThread) => {
  if (message === 'wake') worker.wake()
  else void stop()
})

async function stop(): Promise<void> {
  await worker.stop()
  await stores.store.close()
  port?.close()
  process.exit(0)
}
