// The thread that prepares the console's files; it ends when they are posted.
import { parentPort } from 'node:worker_threads'
import { prepareAssets } from './prepare-assets.ts'

parentPort?.postMessage(prepareAssets())
