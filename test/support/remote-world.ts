// A worker whose lines a batch API in memory gets, with a clock that the test moves.
import { FakeBatchApi } from '../fakes/batch-api.ts'
import { type WorkerWorldOptions, workerWorld } from './worker-world.ts'

/** Patient with batch APIs that do not answer, in a window in which a batch may take 6 s to be cancelled. */
export const SHORT = { windowMs: 120_000, retry: { outage_patience_ms: 24 * 3_600_000 } }

/** A worker whose lines a batch API gets, unless told otherwise. */
export async function remoteWorld(options: WorkerWorldOptions) {
  const api = new FakeBatchApi()
  const remote = api.upstream('provider', 1)
  const world = await workerWorld({ upstreams: () => [remote], ...options })
  return Object.assign(world, {
    api,
    remote,
    /** Starts the worker; resolves when the batch API has a batch, and the worker has parked its chunk. */
    async handedOver(): Promise<void> {
      await world.worker.start()
      await world.until(() => api.batches.length > 0 && world.worker.status.openChunks === 0, 10)
    },
  })
}
