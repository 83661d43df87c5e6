// Pauses of batches and of models, as a worker applies them to its open chunks: paused lines are not sent, those in flight
// may finish, and a chunk of which nothing else is left is parked until it is resumed.
import type { OpenChunk } from '../results/open-chunk.ts'
import type { BatchStatusRow } from '../store/batches.ts'
import { listPausedModels } from '../store/pauses.ts'
import type { Store } from '../store/store.ts'
import type { Sender } from './send/sender.ts'

export interface PausesOptions {
  store: Pick<Store, 'read'>
  sender: () => Pick<Sender, 'applyPauses' | 'withheld'>
  park: (chunk: OpenChunk) => void
}

export class Pauses {
  readonly #options: PausesOptions
  #models: ReadonlySet<string> = new Set()
  /** What is paused has changed since it was applied to the open chunks. */
  #isStale = false
  /** Whether each batch was paused when it was read last. */
  readonly #batches = new Map<string, boolean>()

  constructor(options: PausesOptions) {
    this.#options = options
  }

  covers({ batch }: OpenChunk, model: string): boolean {
    return this.#isPaused(batch) || this.#models.has(nameOf(batch.project_id, model))
  }

  #isPaused({ id, paused_at }: OpenChunk['batch']): boolean {
    return this.#batches.get(id) ?? paused_at !== null
  }

  /** Reads which models are paused, before a chunk is opened; true if that has changed. */
  async load(): Promise<boolean> {
    const paused = await listPausedModels(this.#options.store.read)
    const models = new Set(paused.map(({ project_id, model }) => nameOf(project_id, model)))
    const isSame = models.size === this.#models.size && [...models].every((one) => this.#models.has(one))
    this.#models = models
    this.#isStale ||= !isSame
    return this.#isStale
  }

  /** To be called several times a second, with what was read of the batches of the open chunks. */
  async refresh(chunks: readonly OpenChunk[], batches: readonly BatchStatusRow[]): Promise<void> {
    const { sender, park } = this.#options
    const isChanged = await this.load()
    const before = new Map(chunks.map((chunk) => [chunk, this.#isPaused(chunk.batch)]))
    this.#batches.clear()
    for (const { id, paused_at } of batches) this.#batches.set(id, paused_at !== null)
    if (isChanged) this.#isStale = false
    for (const chunk of chunks) {
      if (chunk.stopped !== null || chunk.parking) continue
      const isPaused = this.#isPaused(chunk.batch)
      if (isChanged || before.get(chunk) !== isPaused) sender().applyPauses(chunk)
      const rest = chunk.unfinished - sender().withheld(chunk) - (isPaused ? chunk.waiting.size : 0)
      if (chunk.inFlight === 0 && chunk.unfinished > 0 && rest === 0) park(chunk)
    }
  }
}

function nameOf(project_id: string, model: string): string {
  return `${project_id} ${model}`
}
