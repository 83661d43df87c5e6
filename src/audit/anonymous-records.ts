// Records of rejected calls without a valid key. Anybody can make such calls, so their records are bounded: a maximum
// per minute for each address and for the process, and only the newest are kept. Further calls are only logged.
import type { Clock } from '../domain/clock.ts'
import { withoutSecrets } from '../domain/secret-text.ts'
import { insertAnonymousRequests, keepNewestAnonymousRequests } from '../store/calls.ts'
import type { AnonymousRequestRow } from '../store/schema.ts'
import type { Store } from '../store/store.ts'
import { GroupedWrites } from './grouped-writes.ts'

export const PER_ADDRESS_MAX = 60
export const PER_PROCESS_MAX = 600
const WINDOW_MS = 60_000
const KEPT_MAX = 10_000
/** Records between two looks at how many there are. */
const TRIM_EVERY = 500

export class AnonymousRecords {
  readonly #store: Pick<Store, 'writeAsyncCommit'>
  readonly #clock: Clock
  readonly #keptMax: number
  readonly #writes: GroupedWrites<AnonymousRequestRow>
  #windowEnds = 0
  #total = 0
  readonly #byAddress = new Map<string, number>()
  #added = 0

  constructor(store: Pick<Store, 'writeAsyncCommit'>, clock: Clock, keptMax = KEPT_MAX) {
    this.#store = store
    this.#clock = clock
    this.#keptMax = keptMax
    this.#writes = new GroupedWrites(store, insertAnonymousRequests)
  }

  /** Resolves once the row can be read, or at once where it is one too many. */
  async add(row: AnonymousRequestRow): Promise<void> {
    if (!this.#takes(row.address)) return
    await this.#writes.add({ ...row, path: withoutSecrets(row.path) })
    if (this.#added++ % TRIM_EVERY === 0)
      await this.#store.writeAsyncCommit((tx) => keepNewestAnonymousRequests(tx, this.#keptMax))
  }

  #takes(address: string): boolean {
    const now = this.#clock.now()
    if (now >= this.#windowEnds) {
      this.#windowEnds = now + WINDOW_MS
      this.#total = 0
      this.#byAddress.clear()
    }
    const count = this.#byAddress.get(address) ?? 0
    if (count >= PER_ADDRESS_MAX || this.#total >= PER_PROCESS_MAX) return false
    this.#byAddress.set(address, count + 1)
    this.#total++
    return true
  }
}
