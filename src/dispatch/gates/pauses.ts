// Applies pauses of batches and models to the runs of a worker: paused lines are not sent, lines in flight may finish,
// and a run with only paused lines left is parked until it is resumed.
import { type BatchStatusRow, readBatchStatuses } from '../../store/batches.ts'
import { listPausedModels } from '../../store/pauses.ts'
import type { Store } from '../../store/store.ts'
import { PAUSED } from '../line-state.ts'
import type { Run } from '../run.ts'

export class Pauses {
  readonly state = PAUSED
  readonly #store: Pick<Store, 'read'>
  #models: ReadonlySet<string> = new Set()
  /** Whether pauses have changed since they were applied to the runs. */
  #isStale = false
  /** Whether each batch was paused when it was read last. */
  readonly #batches = new Map<string, boolean>()
  /** Batches among these that were read for chunks which are about to be opened. */
  readonly #opening = new Set<string>()

  constructor(store: Pick<Store, 'read'>) {
    this.#store = store
  }

  until(run: Run, position: number): number | null {
    return this.covers(run, run.lines[position]!.model ?? '') ? Number.POSITIVE_INFINITY : null
  }

  /** Whether lines of the run that name this model are paused. */
  covers({ batch }: Run, model: string): boolean {
    return (
      this.isPaused(batch) || (this.#models.size > 0 && this.#models.has(nameOf(batch.project_id, model)))
    )
  }

  isPaused({ id, paused_at }: Run['batch']): boolean {
    return this.#batches.get(id) ?? paused_at !== null
  }

  /** Reads whether a batch is paused, and which models are, before a chunk of it is opened. */
  async loadFor(batch_id: string): Promise<void> {
    const [statuses] = await Promise.all([readBatchStatuses(this.#store.read, [batch_id]), this.#load()])
    for (const { id, paused_at } of statuses) {
      const isPaused = paused_at !== null
      // Other chunks of it, which are open, do not know that yet.
      this.#isStale ||= (this.#batches.get(id) ?? isPaused) !== isPaused
      this.#batches.set(id, isPaused)
      this.#opening.add(id)
    }
  }

  /** Reads which models are paused; true if that has changed. */
  async #load(): Promise<boolean> {
    const paused = await listPausedModels(this.#store.read)
    const models = new Set(paused.map(({ project_id, model }) => nameOf(project_id, model)))
    const isSame = models.size === this.#models.size && [...models].every((one) => this.#models.has(one))
    this.#models = models
    this.#isStale ||= !isSame
    return this.#isStale
  }

  /**
   * To be called several times a second, with what was read of the batches of the runs. Returns the runs for whose lines
   * something has changed.
   */
  async refresh(runs: readonly Run[], batches: readonly BatchStatusRow[]): Promise<Run[]> {
    const isChanged = await this.#load()
    const before = new Map(runs.map((run) => [run, this.isPaused(run.batch)]))
    for (const id of this.#batches.keys()) if (!this.#opening.has(id)) this.#batches.delete(id)
    this.#opening.clear()
    for (const { id, paused_at } of batches) this.#batches.set(id, paused_at !== null)
    if (isChanged) this.#isStale = false
    return runs.filter((run) => isChanged || before.get(run) !== this.isPaused(run.batch))
  }
}

function nameOf(project_id: string, model: string): string {
  return `${project_id} ${model}`
}
