// Whether the database and the blob store answer, and how fast: a read of each that costs next to nothing.
import { BlobMissing } from '../blobs/blobs.ts'
import type { Config } from '../config/config.ts'
import { systemClock } from '../domain/clock.ts'
import type { ServiceStatus } from '../wire/status.ts'
import type { Stores } from './stores.ts'

type StoreHealth = NonNullable<ServiceStatus['service']>['stores'][number]

/** No blob has this key. */
const NO_BLOB = 'health/none'

export async function storeHealth(
  config: Pick<Config, 'database' | 'blobs'>,
  { store, blobs }: Pick<Stores, 'store' | 'blobs'>,
): Promise<StoreHealth[]> {
  return await Promise.all([
    probe('database', config.database.kind, () =>
      store.read.selectFrom('projects').select('id').limit(1).execute(),
    ),
    probe('blobs', config.blobs.kind, async () => {
      await blobs.size(NO_BLOB).catch((error: unknown) => {
        if (!(error instanceof BlobMissing)) throw error
      })
    }),
  ])
}

async function probe(
  name: StoreHealth['name'],
  kind: string,
  ask: () => Promise<unknown>,
): Promise<StoreHealth> {
  const began = systemClock.now()
  try {
    await ask()
    return { name, kind, ok: true, latency_ms: systemClock.now() - began, error: null }
  } catch (error) {
    const text = error instanceof Error ? error.message : String(error)
    return { name, kind, ok: false, latency_ms: null, error: text }
  }
}
