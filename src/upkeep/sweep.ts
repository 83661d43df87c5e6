// Orphans: blobs that a crash left between their writing and the commit that would have made them part of
// the system. A blob without a row that is older than any write can take is one.
import type { Blobs } from '../blobs/blobs.ts'
import type { Clock } from '../domain/clock.ts'
import { knownBlobs } from '../store/blob-rows.ts'
import type { Store } from '../store/store.ts'

/** Longer than any upload or seal lies between its blob and its commit. */
export const ORPHAN_AGE_MS = 60 * 60_000
/** Blobs that are committed are no older, so what is about to be committed is never found to be unknown twice. */
export const BLOB_FRESH_MS = 2 * 60_000
const KEYS_AT_ONCE = 500

/** Removes orphans; returns how many. */
export async function sweepOrphans(
  { store, blobs, clock }: { store: Store; blobs: Blobs; clock: Clock },
  older_than_ms = ORPHAN_AGE_MS,
): Promise<number> {
  let removed = 0
  let keys: string[] = []
  const sweep = async (): Promise<void> => {
    const known = await knownBlobs(store.read, keys)
    for (const key of keys) {
      if (known.has(key)) continue
      await blobs.delete(key)
      removed++
    }
    keys = []
  }
  for await (const blob of blobs.list('')) {
    if (blob.modified > clock.now() - older_than_ms) continue
    keys.push(blob.key)
    if (keys.length >= KEYS_AT_ONCE) await sweep()
  }
  await sweep()
  return removed
}
