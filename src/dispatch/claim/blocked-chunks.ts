// Makes room when a worker can hold no more: chunks of which every line that is left waits for a model that is
// down are parked, what is finished of them journalled first, and are taken up again later. So a dead model
// cannot fill a worker with lines that do not move.
import type { Clock } from '../../domain/clock.ts'
import type { OpenChunk } from '../../results/open-chunk.ts'
import type { Lane } from '../send/lane.ts'
import type { Sender } from '../send/sender.ts'

/** How long a parked chunk rests; chance spreads them. */
const REST_MS = 1_500
/** How often the open chunks are gone through. */
const LOOK_MS = 250

export interface BlockedChunksOptions {
  clock: Clock
  /** In [0, 1). */
  random: () => number
  sender: Pick<Sender, 'withdraw' | 'lanes'>
  openChunks: () => Iterable<OpenChunk>
  /** `model`: the one that the rest of the chunk waits for; null when there are several. */
  park: (chunk: OpenChunk, run_at: number, model: string | null) => void
}

export class BlockedChunks {
  readonly #options: BlockedChunksOptions
  #lookAt = 0

  constructor(options: BlockedChunksOptions) {
    this.#options = options
  }

  /** Parks what only takes up room. */
  park(): void {
    const { clock, random, sender, openChunks, park } = this.#options
    const now = clock.now()
    if (now < this.#lookAt) return
    this.#lookAt = now + LOOK_MS
    for (const chunk of [...openChunks()]) {
      const models = blockedModels(chunk, sender.lanes, now)
      if (!models) continue
      sender.withdraw(chunk)
      const [model = null] = models
      park(chunk, now + REST_MS * (1 + random()), models.size === 1 ? model : null)
    }
  }
}

/** The models that a chunk's unfinished lines wait for, if nothing of it can be sent now; else null. */
function blockedModels(
  chunk: OpenChunk,
  lanes: ReadonlyMap<string, Lane>,
  now: number,
): ReadonlySet<string> | null {
  if (chunk.stopped !== null || chunk.parking || chunk.inFlight > 0 || chunk.unfinished === 0) return null
  const models = new Set<string>()
  for (const [position, { model }] of chunk.lines.entries()) {
    if (chunk.isFinished(position)) continue
    if (model !== null && models.has(model)) continue
    if (model === null || !lanes.get(model)?.blocked(now, chunk.batch.id)) return null
    models.add(model)
  }
  return models
}
