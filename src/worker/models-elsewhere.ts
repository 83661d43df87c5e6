// While another configuration is rolled out, workers know different models. A worker leaves a chunk to a running worker
// that knows more of the models of its lines, and for a while claims no further chunk of these models.
import type { Run } from '../dispatch/run.ts'
import type { Ports } from '../store/ports.ts'
import { modelsOfWorkers } from '../store/workers.ts'

const REMEMBERED_MS = 10_000

interface ModelsElsewhereOptions extends Pick<Ports, 'store' | 'clock'> {
  sessionId: () => string
  lanes: ReadonlyMap<string, unknown>
}

export class ModelsElsewhere {
  readonly #options: ModelsElsewhereOptions
  /** By model, when another worker was found to know it (Unix ms). */
  readonly #foundAt = new Map<string, number>()

  constructor(options: ModelsElsewhereOptions) {
    this.#options = options
  }

  /** Models that this worker does not know, and another one does. */
  models(): string[] {
    const { clock, lanes } = this.#options
    const now = clock.now()
    for (const [model, at] of this.#foundAt)
      if (Math.abs(now - at) > REMEMBERED_MS || lanes.has(model)) this.#foundAt.delete(model)
    return [...this.#foundAt.keys()]
  }

  /** Whether a running worker knows what this one knows of the run's models, and more. */
  async isBetterFor(run: Run): Promise<boolean> {
    const { store, clock, sessionId, lanes } = this.#options
    const models = [...run.models]
    const unknown = models.filter((model) => !lanes.has(model))
    if (unknown.length === 0) return false
    for (const known of await modelsOfWorkers(store.read, store.claimSql, sessionId())) {
      const more = unknown.filter((model) => known.has(model))
      if (more.length === 0 || models.some((model) => lanes.has(model) && !known.has(model))) continue
      for (const model of more) this.#foundAt.set(model, clock.now())
      return true
    }
    return false
  }
}
