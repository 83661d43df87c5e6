// When each key was used last, to about a minute: one write a minute and key, which no call waits for.
import { GroupedWrites } from '../../audit/call-records.ts'
import type { Clock } from '../../domain/clock.ts'
import { type KeyUse, recordKeyUses } from '../../store/api-keys.ts'
import type { Store } from '../../store/store.ts'

const EVERY_MS = 60_000
/** Keys of which this process remembers when it noted them. */
const KEYS_MAX = 10_000

export class KeyUses {
  readonly #clock: Clock
  readonly #writes: GroupedWrites<KeyUse>
  readonly #noted = new Map<string, number>()

  constructor(store: Pick<Store, 'writeAsyncCommit'>, clock: Clock) {
    this.#clock = clock
    this.#writes = new GroupedWrites(store, recordKeyUses)
  }

  note(id: string): void {
    const at = this.#clock.now()
    const before = this.#noted.get(id)
    if (before !== undefined && at - before < EVERY_MS) return
    if (this.#noted.size >= KEYS_MAX) this.#noted.clear()
    this.#noted.set(id, at)
    // It is noted again in a minute: a database that does not answer loses nothing that matters.
    this.#writes.add({ id, at }).catch(() => {})
  }
}
