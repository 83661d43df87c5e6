// A worker with a scripted model server and a clock that the test moves; all else is real: SQLite, encrypted blobs, and
// a queued batch.
import assert from 'node:assert/strict'
import { ResponseMemory } from '../../src/backends/response-memory.ts'
import type { RetryPolicy } from '../../src/dispatch/gates/retries.ts'
import type { LiveServer } from '../../src/servers/live/live-server.ts'
import { ModelServer, type Observer, type Upstream } from '../../src/servers/upstream.ts'
import { wakeParked } from '../../src/store/chunks.ts'
import type { BatchRow } from '../../src/store/schema.ts'
import type { Store, Writer } from '../../src/store/store.ts'
import { Worker } from '../../src/worker/worker.ts'
import { answerChecks } from '../fakes/answer-checks.ts'
import { scriptedBackend } from '../fakes/scripted-backend.ts'
import { addQueuedBatch, type BatchSize, queuedBatch, RETRY, SILENT } from './queued-batch.ts'

export const DRAIN_MS = 10_000

export interface WorkerWorldOptions extends BatchSize {
  /** Of the scripted server. */
  concurrency?: number
  retry?: Partial<RetryPolicy>
  memoryBytes?: number
  observe?: Observer
  /** One unless told; the others have an upstream of their own at the scripted server. */
  workers?: number
  /** What each worker knows of live traffic at the scripted server; nothing unless told. */
  live?: LiveServer[]
  /** Beside the scripted server, or instead of it. */
  upstreams?: (server: ModelServer) => Upstream[]
}

/** A worker that is not started yet, beside a queued batch. */
export async function workerWorld(options: WorkerWorldOptions) {
  const queued = await queuedBatch(options)
  const { clock, store, sealed, models } = queued
  const server = scriptedBackend()
  const live = [...(options.live ?? [])]
  const makeUpstream = () =>
    new ModelServer({
      backend: server.backend,
      live: live.shift() ?? null,
      concurrency_max: options.concurrency ?? 8,
      modelAlias: null,
    })
  const upstream = makeUpstream()
  const world = {
    ...queued,
    server,
    upstream,
    /** The statuses of batches that ended. */
    ended: [] as string[],
    hasStopped: false,
    databaseFails: false,
    isPaused: false,
    /** At the end of a transaction, and after its commit. */
    inWrite: async (_tx: Writer): Promise<void> => {},
    afterWrite: async () => {},
    /** Adds another batch of the same project and entity. */
    add: (size: BatchSize): Promise<BatchRow> => addQueuedBatch(store, sealed, size, clock.now()),
    start: async (): Promise<void> => {
      for (const one of workers) await one.start()
    },
    stop: (): Promise<unknown> =>
      Promise.all(workers.map((one) => one.stop())).then(() => {
        world.hasStopped = true
      }),
    async [Symbol.asyncDispose]() {
      const stopped = world.stop()
      await queued.until(() => world.hasStopped, 100)
      await stopped
      await queued[Symbol.asyncDispose]()
    },
  }
  const failable: Store = {
    ...store,
    get read() {
      if (world.databaseFails) throw new Error('no connection')
      return store.read
    },
    write: async (change) => {
      if (world.databaseFails) throw new Error('no connection')
      const value = await store.write(async (tx) => {
        const changed = await change(tx)
        await world.inWrite(tx)
        return changed
      })
      if (!world.isPaused) await world.afterWrite()
      return value
    },
  }
  const makeWorker = (upstreams: readonly Upstream[]): Worker =>
    new Worker({
      store: failable,
      sealed,
      clock,
      log: SILENT,
      random: () => 0.5001,
      models,
      upstreams: new Map([['m', upstreams]]),
      retry: { ...RETRY, ...options.retry },
      rules: { file_retention_ms: () => 1e9 },
      leaseMs: 60_000,
      drainMs: DRAIN_MS,
      flushIntervalMs: 1_000,
      memoryBytes: options.memoryBytes ?? 1_000_000,
      answers: new ResponseMemory(1_000_000),
      checks: answerChecks(clock),
      blobFreshMs: 120_000,
      tasks: { plan: () => assert.fail('the batch has its chunks already') },
      maintenance: async () => void (await store.write((tx) => wakeParked(tx))),
      onEnded: ({ status }) => world.ended.push(status),
      observe: options.observe,
    })
  const worker = makeWorker(options.upstreams?.(upstream) ?? [upstream])
  const others = Array.from({ length: (options.workers ?? 1) - 1 }, () => makeWorker([makeUpstream()]))
  const workers = [worker, ...others]
  return Object.assign(world, { worker })
}
