// Makes room when a worker can open no more chunks: chunks whose unfinished lines all wait for unavailable models are
// parked, after their finished lines were journalled, and claimed again later. So an unavailable model cannot fill a
// worker with lines that cannot be sent. In the same way chunks are handed over to workers that can reach a server which
// this one cannot.
import type { Clock } from '../../domain/clock.ts'
import type { OpenChunk } from '../../results/open-chunk.ts'
import type { Lane } from '../send/lane.ts'
import type { Sender } from '../send/sender.ts'

/** How long a chunk stays parked, at least; with jitter. */
const PARK_MS = 1_500
/** How often the open chunks are checked. */
const CHECK_MS = 250

export interface BlockedChunksOptions {
  clock: Clock
  /** In [0, 1). */
  random: () => number
  sender: Pick<Sender, 'withdraw' | 'lanes'>
  openChunks: () => Iterable<OpenChunk>
  /** `model`: the model that the unfinished lines wait for; null when they wait for several. */
  park: (chunk: OpenChunk, runAt: number, model: string | null) => void
}

export class BlockedChunks {
  readonly #options: BlockedChunksOptions
  #checkAt = 0

  constructor(options: BlockedChunksOptions) {
    this.#options = options
  }

  /** Parks the chunks of which no line can be sent now. */
  park(): void {
    const now = this.#options.clock.now()
    if (now < this.#checkAt) return
    this.#checkAt = now + CHECK_MS
    this.#parkIf(() => true)
  }

  /** Parks the chunks of which no line can be sent now because of these models. */
  handOver(models: readonly string[]): void {
    this.#parkIf((waitsFor) => [...waitsFor].every((model) => models.includes(model)))
  }

  #parkIf(accepts: (waitsFor: ReadonlySet<string>) => boolean): void {
    const { clock, random, sender, openChunks, park } = this.#options
    const now = clock.now()
    for (const chunk of [...openChunks()]) {
      const models = blockedModels(chunk, sender.lanes, now)
      if (!models || !accepts(models)) continue
      sender.withdraw(chunk)
      const [model = null] = models
      park(chunk, Math.ceil(now + PARK_MS * (1 + random())), models.size === 1 ? model : null)
    }
  }
}

/** The models that a chunk's unfinished lines wait for, if none of these lines can be sent now; else null. */
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
