// What an API process does while no worker runs: batches whose window closed, that were cancelled or whose input was
// deleted end all the same, and what must not outlive its time goes. Under the leases that workers use, so nothing is
// done twice should one start meanwhile. It also tells since when no worker has been seen.
import type { Config } from '../config/config.ts'
import { ChunkReader } from '../dispatch/claim/chunk-reader.ts'
import { Closer } from '../dispatch/claim/closer.ts'
import type { Log } from '../domain/log.ts'
import { planBatch } from '../intake/plan.ts'
import { runMaintenance } from '../maintenance/maintenance.ts'
import { hasWorker } from '../store/lane-reports.ts'
import type { BatchRow } from '../store/schema.ts'
import type { Stores } from './stores.ts'
import { modelsById } from './upstreams.ts'
import { finishRules } from './worker.ts'

const LOOK_MS = 1_000
/** A worker that was seen this lately is only being restarted. */
const MISSED_MS = 60_000

export class ApiMaintenance {
  readonly #stores: Stores
  readonly #log: Log
  readonly #closer: Closer
  /** Unix ms. */
  #worker_seen: number
  #cancelTimer: (() => void) | null = null
  #looking: Promise<void> = Promise.resolve()
  #stopped = false

  /** `session_id`: of this process, for the leases of what it closes. */
  constructor(
    config: Config,
    stores: Stores,
    log: Log,
    session_id: () => string,
    onEnded: (batch: BatchRow) => void = () => {},
  ) {
    this.#stores = stores
    this.#log = log
    const { store, sealed } = stores
    const { clock } = store
    const models = modelsById(config.models)
    const rules = finishRules(config)
    this.#worker_seen = clock.now()
    this.#closer = new Closer({
      store,
      sealed,
      reader: new ChunkReader({ store, sealed, clock, log, models }),
      clock,
      log,
      rules,
      sessionId: session_id,
      leased: () => [],
      plan: (task, signal) => planBatch({ store, sealed, clock, models, rules, onEnded }, task, signal),
      onEnded,
    })
  }

  start(): void {
    this.#cancelTimer = this.#stores.store.clock.after(LOOK_MS, () => {
      this.#looking = this.#look()
        .catch((err: unknown) => this.#log.error({ err }, 'maintenance failed; it is tried again'))
        .finally(() => {
          if (!this.#stopped) this.start()
        })
    })
  }

  /** Since when no worker runs (Unix ms), if that is a minute or longer. */
  get noWorkerSince(): number | null {
    return this.#stores.store.clock.now() - this.#worker_seen < MISSED_MS ? null : this.#worker_seen
  }

  async stop(): Promise<void> {
    this.#stopped = true
    this.#cancelTimer?.()
    await this.#looking
    await this.#closer.close()
  }

  async #look(): Promise<void> {
    const { store, sealed } = this.#stores
    const { clock } = store
    if (await hasWorker(store.read, store.claimSql)) {
      this.#worker_seen = clock.now()
      return
    }
    await runMaintenance({ store, sealed, clock })
    this.#closer.look()
  }
}
