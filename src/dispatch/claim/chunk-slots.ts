// How many chunks a worker may have open at once. Each model has its own slots, so that batches of a slow server cannot
// fill a worker. The last slots, and the last of the memory, are for projects without open chunks.
import type { OpenChunk } from '../../results/open-chunk.ts'

/** Of one model, chunks of several models counting as one more. */
const PER_MODEL_MAX = 64
/** Beyond these, for projects that have no chunk of the model open. */
const KEPT_PER_MODEL = 16
const OPEN_CHUNKS_MAX = 512
/** As a share of the memory, beyond it, for projects that have nothing open and models that nobody has open. */
const KEPT_MEMORY_SHARE = 0.5

/** Null stands for chunks of several models. */
export type SlotModel = string | null

export interface ChunkSlots {
  /** Whether any chunk may be opened, one of a model whose places are taken aside. */
  room: boolean
  /** Whether what is kept for projects that have nothing open is taken as well. */
  full: boolean
  /** Models of which only projects that have none open may open another chunk. */
  taken: SlotModel[]
  /** Models of which nothing more is opened. */
  packed: SlotModel[]
  /** By model, the projects that have chunks of it open. */
  holders: ReadonlyMap<SlotModel, ReadonlySet<string>>
}

type SlotUser = Pick<OpenChunk, 'bytes'> & { claim: { project_id: string; model: string | null } }

export function chunkSlots(openChunks: Iterable<SlotUser>, memoryBytes: number): ChunkSlots {
  const counts = new Map<SlotModel, number>()
  const holders = new Map<SlotModel, Set<string>>()
  let open = 0
  let bytes = 0
  for (const { claim, bytes: input } of openChunks) {
    const { model, project_id } = claim
    open++
    bytes += input.length
    counts.set(model, (counts.get(model) ?? 0) + 1)
    holders.set(model, (holders.get(model) ?? new Set()).add(project_id))
  }
  const atLeast = (count: number): SlotModel[] =>
    [...counts].filter(([, of]) => of >= count).map(([model]) => model)
  return {
    room: open === 0 || (open < OPEN_CHUNKS_MAX && bytes < memoryBytes),
    full: open > 0 && (open >= 2 * OPEN_CHUNKS_MAX || bytes >= memoryBytes * (1 + KEPT_MEMORY_SHARE)),
    taken: atLeast(PER_MODEL_MAX),
    packed: atLeast(PER_MODEL_MAX + KEPT_PER_MODEL),
    holders,
  }
}
