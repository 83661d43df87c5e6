// Applies pauses of batches and models to the runs of a worker: paused lines are not sent, lines in flight may finish,
// and a run with only paused lines left is parked until it is resumed.
import { type BatchStatusRow, readBatchStatuses } from '../../store/batches.ts'
import type { Store } from '../../store/store.ts'
import { PAUSED } from '../line-state.ts'
import type { Run } from '../run.ts'

const NONE: ReadonlySet<string> = new Set()

export class Pauses {
  readonly state = PAUSED
  readonly #store: Pick<Store, 'read'>
  /** The paused models of the projects whose batches were read. */
  readonly #models = new Map<string, ReadonlySet<string>>()
  /** Whether the paused models have changed since they were last applied to the runs. */
  #isStale = false

  constructor(store: Pick<Store, 'read'>) {
    this.#store = store
  }

  until(run: Run, position: number): number | null {
    return this.covers(run, run.lines[position]!.model ?? '') ? Number.POSITIVE_INFINITY : null
  }

  covers({ batch, isPaused }: Run, model: string): boolean {
    return isPaused || this.#models.get(batch.project_id)?.has(model) === true
  }

  /** Reads whether a run is paused, and which models are, before it is opened. */
  async loadFor(run: Run): Promise<void> {
    const rows = await readBatchStatuses(this.#store.read, [run.batch.id])
    this.#keepModels(rows)
    for (const { paused_at } of rows) run.isPaused = paused_at !== null
  }

  #keepModels(rows: readonly BatchStatusRow[]): void {
    for (const [project_id, own] of Map.groupBy(rows, (row) => row.project_id)) {
      const models = new Set(own.flatMap(({ paused_model }) => paused_model ?? []))
      const known = this.#models.get(project_id) ?? NONE
      this.#isStale ||= models.size !== known.size || [...models].some((one) => !known.has(one))
      if (models.size > 0) this.#models.set(project_id, models)
      else this.#models.delete(project_id)
    }
  }

  /** Applies what was read of the batches of the runs; returns the runs for whose lines something has changed. */
  refresh(runs: readonly Run[], batches: readonly BatchStatusRow[]): Run[] {
    this.#keepModels(batches)
    const isChanged = this.#isStale
    this.#isStale = false
    const paused = new Map(batches.map(({ id, paused_at }) => [id, paused_at !== null]))
    return runs.filter((run) => {
      const wasPaused = run.isPaused
      run.isPaused = paused.get(run.batch.id) ?? wasPaused
      return isChanged || run.isPaused !== wasPaused
    })
  }
}
