// Deletes old events and their deliveries; they are kept as long as audit records.

import type { Store } from '../store/store.ts'
import { forgetEvents as forgetSome } from '../store/webhooks.ts'

const AT_ONCE = 500

/** Deletes events from before `cutoff` (Unix ms); returns their number. */
export async function deleteOldEvents(store: Store, cutoff: number): Promise<number> {
  let deleted = 0
  for (;;) {
    const some = await store.write((tx) => forgetSome(tx, cutoff, AT_ONCE))
    deleted += some
    if (some < AT_ONCE) return deleted
  }
}
