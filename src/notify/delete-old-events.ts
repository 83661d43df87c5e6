// Events are kept as long as audit records are, and then forgotten with what became of them.
import { forgetEvents as forgetSome } from '../store/events.ts'
import type { Store } from '../store/store.ts'

const AT_ONCE = 500

/** Removes events from before `cutoff` (Unix ms); returns how many. */
export async function deleteOldEvents(store: Store, cutoff: number): Promise<number> {
  let forgotten = 0
  for (;;) {
    const some = await store.write((tx) => forgetSome(tx, cutoff, AT_ONCE))
    forgotten += some
    if (some < AT_ONCE) return forgotten
  }
}
