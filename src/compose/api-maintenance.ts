// Maintenance by an API process while no worker runs: it ends batches whose window has closed, that were cancelled or
// whose input was deleted, and deletes expired data. It uses the same leases as workers, so no work is done twice if a
// worker starts meanwhile. It also reports since when no worker has been running.
import type { Config } from '../config/config.ts'
import type { Log } from '../domain/log.ts'
import { planBatch } from '../intake/plan.ts'
import { runMaintenance } from '../maintenance/maintenance.ts'
import { hasWorker } from '../store/lane-reports.ts'
import type { BatchRow } from '../store/schema.ts'
import { ChunkReader } from '../worker/chunk-reader.ts'
import { Closer } from '../worker/closer.ts'
import { Leases } from '../worker/leases.ts'
import type { Stores } from './stores.ts'
import { modelsById } from './upstreams.ts'
import { finishRules } from './worker.ts'

const INTERVAL_MS = 1_000
/** A worker that ran this recently may only be restarting. */
const RESTART_MS_MAX = 60_000

export class ApiMaintenance {
  readonly #stores: Stores
  readonly #log: Log
  readonly #closer: Closer
  /** Unix ms. */
  #workerSeen: number
  #cancelTimer: (() => void) | null = null
  #running: Promise<void> = Promise.resolve()
  #stopped = false

  /** `sessionId`: of this process; it owns the leases of the batches that are being closed. */
  constructor(
    config: Config,
    stores: Stores,
    log: Log,
    sessionId: () => string,
    onEnded: (batch: BatchRow) => void = () => {},
  ) {
    this.#stores = stores
    this.#log = log
    const { store, sealed } = stores
    const { clock } = store
    const models = modelsById(config.models)
    const rules = finishRules(config)
    this.#workerSeen = clock.now()
    this.#closer = new Closer({
      store,
      sealed,
      reader: new ChunkReader({ store, sealed, clock, log, models }),
      clock,
      log,
      rules,
      leases: new Leases({ store, clock, sessionId }),
      plan: (task, signal) =>
        planBatch({ store, sealed, clock, models, plans: config.plans, rules, onEnded }, task, signal),
      onEnded,
    })
  }

  start(): void {
    this.#cancelTimer = this.#stores.store.clock.after(INTERVAL_MS, () => {
      this.#running = this.#run()
        .catch((err: unknown) => this.#log.error({ err }, 'maintenance failed; will retry'))
        .finally(() => {
          if (!this.#stopped) this.start()
        })
    })
  }

  /** Since when no worker runs (Unix ms), if that is a minute or longer. */
  get noWorkerSince(): number | null {
    return this.#stores.store.clock.now() - this.#workerSeen < RESTART_MS_MAX ? null : this.#workerSeen
  }

  async stop(): Promise<void> {
    this.#stopped = true
    this.#cancelTimer?.()
    await this.#running
    await this.#closer.close()
  }

  async #run(): Promise<void> {
    const { store, sealed } = this.#stores
    const { clock } = store
    if (await hasWorker(store.read, store.claimSql)) {
      this.#workerSeen = clock.now()
      return
    }
    await runMaintenance({ store, sealed, clock })
    this.#closer.look()
  }
}
