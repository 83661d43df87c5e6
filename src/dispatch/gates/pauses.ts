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
  /** Whether the paused models have changed since they were last applied to the runs. */
  #isStale = false

  constructor(store: Pick<Store, 'read'>) {
    this.#store = store
  }

  until(run: Run, position: number): number | null {
    return this.covers(run, run.lines[position]!.model ?? '') ? Number.POSITIVE_INFINITY : null
  }

  covers({ batch, isPaused }: Run, model: string): boolean {
    return isPaused || (this.#models.size > 0 && this.#models.has(nameOf(batch.project_id, model)))
  }

  /** Reads whether a run is paused, and which models are, before it is opened. */
  async loadFor(run: Run): Promise<void> {
    const [statuses] = await Promise.all([readBatchStatuses(this.#store.read, [run.batch.id]), this.#load()])
    for (const { paused_at } of statuses) run.isPaused = paused_at !== null
  }

  /** Reads the paused models; true if they have changed. */
  async #load(): Promise<boolean> {
    const paused = await listPausedModels(this.#store.read)
    const models = new Set(paused.map(({ project_id, model }) => nameOf(project_id, model)))
    const isSame = models.size === this.#models.size && [...models].every((one) => this.#models.has(one))
    this.#models = models
    this.#isStale ||= !isSame
    return this.#isStale
  }

  /** Applies the statuses of the runs' batches; returns the runs with a change for their lines. */
  async refresh(runs: readonly Run[], batches: readonly BatchStatusRow[]): Promise<Run[]> {
    const isChanged = await this.#load()
    if (isChanged) this.#isStale = false
    const paused = new Map(batches.map(({ id, paused_at }) => [id, paused_at !== null]))
    return runs.filter((run) => {
      const wasPaused = run.isPaused
      run.isPaused = paused.get(run.batch.id) ?? wasPaused
      return isChanged || run.isPaused !== wasPaused
    })
  }
}

function nameOf(project_id: string, model: string): string {
  return `${project_id} ${model}`
}
