// Maintenance by an API process while no worker runs: it ends batches whose window has closed, that were cancelled or
// whose input was deleted, and deletes expired data. It uses the same leases as workers, so no work is done twice if a
// worker starts meanwhile. It also reports since when no worker has been running.
import { ResponseMemory } from '../backends/response-memory.ts'
import { restoreStored } from '../dispatch/gates/retries.ts'
import type { Run } from '../dispatch/run.ts'
import type { AuditLog } from '../domain/audit-log.ts'
import { every } from '../domain/clock.ts'
import type { Model } from '../domain/model.ts'
import type { Plan } from '../domain/plan.ts'
import { planBatch } from '../intake/plan.ts'
import { Leases } from '../leases/leases.ts'
import type { FinishRules } from '../lifecycle/batch.ts'
import { ClockSetBack, runMaintenance } from '../maintenance/maintenance.ts'
import { BLOB_FRESH_MS } from '../maintenance/sweep.ts'
import { type Recorded, Recorder } from '../results/recorder.ts'
import type { BatchRow } from '../store/schema.ts'
import type { Ports } from '../store/store.ts'
import { hasWorker } from '../store/workers.ts'
import { ChunkReader } from '../worker/claim/chunk-reader.ts'
import { EndingBatches } from '../worker/ending-batches.ts'
import type { OpenStore } from './stores.ts'

const INTERVAL_MS = 1_000
/** The time in ms without a worker that a restart may take. */
const RESTART_MS_MAX = 60_000

interface ApiMaintenanceOptions extends Pick<Ports, 'sealed' | 'log'> {
  store: OpenStore
  /** The models by the current configuration. */
  models: ReadonlyMap<string, Model>
  plans: ReadonlyMap<string, Plan>
  rules: FinishRules
  /** The only batches that may be ended; absent: all. */
  onlyBatches?: ReadonlySet<string> | undefined
  /** The session of this process, which owns the leases of the batches that are being closed. */
  session: { readonly id: string }
  onEnded: (batch: BatchRow) => void
  auditLog?: AuditLog | undefined
  /** The value of `Recorder`'s `blobFreshMs`; another one in the simulation. */
  blobFreshMs?: number
}

export class ApiMaintenance {
  readonly #options: ApiMaintenanceOptions
  readonly #leases: Leases
  readonly #endingBatches: EndingBatches
  readonly #setBack = new ClockSetBack()
  /** The time when a worker was last seen (Unix ms). */
  #workerSeen: number
  #endRounds = async (): Promise<void> => {}

  constructor(options: ApiMaintenanceOptions) {
    this.#options = options
    const { clock } = options.store
    this.#workerSeen = clock.now()
    this.#leases = new Leases({ ...options, clock })
    const turn = {
      push: (change: Recorded<Run>): void => {
        if (change.kind === 'committed') for (const batch of change.ended) options.onEnded(batch)
        if (change.kind === 'closed' && change.how === 'lost') this.#leases.suspect()
      },
    }
    const memory = {
      answers: new ResponseMemory(0),
      flushIntervalMs: INTERVAL_MS,
      blobFreshMs: options.blobFreshMs ?? BLOB_FRESH_MS,
    }
    this.#endingBatches = new EndingBatches({
      ...options,
      clock,
      recorder: new Recorder<Run>({ ...options, ...memory, clock, turn }),
      reader: new ChunkReader({ ...options, clock }),
      leases: this.#leases,
      plan: (task, signal) => planBatch({ ...options, clock }, task, signal),
      tries: { restore: restoreStored },
    })
  }

  start(): void {
    const { store, log } = this.#options
    const failed = (err: unknown): void => log.error({ err }, 'maintenance failed; will retry')
    this.#endRounds = every(store.clock, INTERVAL_MS, () => this.#run(), failed)
  }

  /** The time since which no worker runs (Unix ms); null for less than a minute. */
  get noWorkerSince(): number | null {
    return this.#options.store.clock.now() - this.#workerSeen < RESTART_MS_MAX ? null : this.#workerSeen
  }

  async stop(): Promise<void> {
    await this.#endRounds()
    await this.#endingBatches.close()
  }

  async #run(): Promise<void> {
    const { store, sealed } = this.#options
    const { clock } = store
    await this.#setBack.check({ store, clock })
    // No worker can claim chunks that a stray lease holds.
    await this.#leases.releaseStrays()
    if (await hasWorker(store.read)) {
      this.#workerSeen = clock.now()
      return
    }
    await runMaintenance({ store, sealed, clock })
    this.#endingBatches.endNow()
  }
}
