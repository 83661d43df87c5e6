// Decides what a worker claims next, by its lanes and open chunks, and how many chunks it opens at once. A model that is unavailable, or has enough lines, must not leave the servers of another model
// without work.

import { RETRYING, UNSENT, UNSUBMITTED } from '../../dispatch/line-state.ts'
import type { Run } from '../../dispatch/run.ts'
import { type Lane, lowWaterMark } from '../../dispatch/senders/lane.ts'
import type { EntityWork } from '../../store/chunk-claims.ts'
import type { RemoteBatchRow } from '../../store/schema.ts'
import type { Ports } from '../../store/store.ts'
import { modelsOfWorkers } from '../../store/workers.ts'

export interface Demand {
  /** Whether the waiting lines of all models that are not blocked are below the low-water mark. */
  wantsMore: boolean
  /** Models below their low-water mark. */
  low: string[]
  /** Models at or above their low-water mark. */
  enough: string[]
  /** Models to which nothing can be sent for some time. */
  blocked: string[]
  /** Models that take further lines of at-risk batches, however many others wait. */
  forAtRisk: string[]
}

export type LaneState = Pick<
  Lane,
  'waiting' | 'waitingAtRisk' | 'concurrency' | 'isLow' | 'blocked' | 'takesAtRisk'
>

export function demandOf(lanes: Iterable<readonly [string, LaneState]>, now: number): Demand {
  const demand: Demand = { wantsMore: false, low: [], enough: [], blocked: [], forAtRisk: [] }
  const open: LaneState[] = []
  let waiting = 0
  for (const [model, lane] of lanes) {
    const isBlocked = lane.blocked(now)
    if ((!isBlocked || lane.takesAtRisk(now)) && areFew(lane.waitingAtRisk, [lane]))
      demand.forAtRisk.push(model)
    if (isBlocked) {
      demand.blocked.push(model)
      continue
    }
    open.push(lane)
    waiting += lane.waiting
    if (lane.isLow) demand.low.push(model)
    else demand.enough.push(model)
  }
  demand.wantsMore = areFew(waiting, open)
  return demand
}

/** Whether lines are fewer than the lanes' low-water mark. Their concurrency is asked for only where it matters. */
function areFew(lines: number, lanes: readonly Pick<Lane, 'concurrency'>[]): boolean {
  let concurrency = 0
  for (const lane of lanes) {
    if (lines < lowWaterMark(concurrency)) return true
    concurrency += lane.concurrency
  }
  return lines < lowWaterMark(concurrency)
}

// `overtakenWork`: of one entity, the earliest deadline goes first. A ready chunk that is due before lines that wait here is
// claimed however many these are, until a lane's low-water mark of lines is due as early.

/** The waiting lines here, and the ready chunks before them: of the same entity and model, due `before` then. */
export interface OvertakenWork extends Required<EntityWork> {
  /** The run with the latest deadline. */
  last: Run
}

/** The overtaken work of the runs with lines waiting for a server, by project, entity and model. */
export function overtakenWork(
  runs: Iterable<Run>,
  lanes: ReadonlyMap<string, Pick<Lane, 'concurrency'>>,
): OvertakenWork[] {
  const found = new Map<string, OvertakenWork & { enough: number; waiting: number }>()
  for (const run of [...runs].sort((a, b) => a.claim.deadline - b.claim.deadline)) {
    const own = run.mayMove ? run.count(UNSENT) + run.count(RETRYING) + run.count(UNSUBMITTED) : 0
    if (own === 0) continue
    const { project_id, entity, model, deadline } = run.claim
    const key = JSON.stringify([project_id, entity, model])
    const work = found.get(key)
    if (!work) {
      const enough = lowWaterMark(lanes.get(model ?? '')?.concurrency ?? 0)
      found.set(key, { project_id, entity, model, before: deadline, last: run, enough, waiting: own })
      continue
    }
    if (work.waiting < work.enough) work.before = deadline
    work.waiting += own
    work.last = run
  }
  return [...found.values()]
}

// `chunkSlots` limits how many chunks a worker has open at once. Each model has its own slots, so that batches of a slow
// server cannot fill a worker. The last slots, and the last of the memory, are for projects without open chunks. Chunks for which results
// of batch APIs are being read have slots and memory of their own: such an API may take hours to deliver them.

/** Open chunks of one model; chunks with lines of several models count as a model of their own. */
const PER_MODEL_MAX = 64
/** Further slots of a model, for projects without an open chunk of it. */
const EXTRA_PER_MODEL = 16
const OPEN_CHUNKS_MAX = 512
/** Further memory, as a share, for projects without open chunks and models without open chunks. */
const EXTRA_MEMORY_SHARE = 0.5
/** Further memory, as a share, for results of batch APIs. */
const RESULTS_MEMORY_SHARE = 0.5

/** The model of a slot; null stands for chunks of several models. */
type SlotModel = string | null

interface ChunkSlots {
  /** Whether a chunk may be opened, unless it is of a `taken` model. */
  hasRoom: boolean
  /** Whether the slots for projects without open chunks are taken as well. */
  full: boolean
  /** Whether a chunk may be opened to read results of a batch API. */
  mayRead: boolean
  /** Models for which only projects without an open chunk of the model may open another chunk. */
  taken: SlotModel[]
  /** Models without room for a further chunk. */
  packed: SlotModel[]
  /** The projects with open chunks of a model, by model. */
  holders: ReadonlyMap<SlotModel, ReadonlySet<string>>
}

type SlotUser = Pick<Run, 'bytes' | 'remoteWork'> & {
  claim: { project_id: string; model: string | null; remote_batches: number }
}

export function chunkSlots(runs: Iterable<SlotUser>, memoryBytes: number): ChunkSlots {
  const counts = new Map<SlotModel, number>()
  const holders = new Map<SlotModel, Set<string>>()
  let open = 0
  let bytes = 0
  let reading = 0
  let readingBytes = 0
  for (const { claim, bytes: input, remoteWork } of runs) {
    const { model, project_id, remote_batches } = claim
    if (remote_batches > 0 && remoteWork > 0) {
      reading++
      readingBytes += input.length
      continue
    }
    open++
    bytes += input.length
    counts.set(model, (counts.get(model) ?? 0) + 1)
    holders.set(model, (holders.get(model) ?? new Set()).add(project_id))
  }
  const atLeast = (count: number): SlotModel[] =>
    [...counts].filter(([, of]) => of >= count).map(([model]) => model)
  const full = open > 0 && (open >= 2 * OPEN_CHUNKS_MAX || bytes >= memoryBytes * (1 + EXTRA_MEMORY_SHARE))
  const readsEnough = reading >= PER_MODEL_MAX || readingBytes >= memoryBytes * RESULTS_MEMORY_SHARE
  return {
    hasRoom: open === 0 || (open < OPEN_CHUNKS_MAX && bytes < memoryBytes),
    full,
    mayRead: !full && (reading === 0 || !readsEnough),
    taken: atLeast(PER_MODEL_MAX),
    packed: atLeast(PER_MODEL_MAX + EXTRA_PER_MODEL),
    holders,
  }
}

// `ModelsElsewhere`: while another configuration is rolled out, workers know different models and batch APIs. A worker
// leaves a chunk to a running worker that knows more of the models of its lines and of the batch APIs that have some, and
// for a while claims no further chunk of these models.

const REMEMBERED_MS = 10_000

interface ModelsElsewhereOptions extends Pick<Ports, 'store' | 'clock'> {
  session: { readonly id: string }
  lanes: ReadonlyMap<string, Pick<Lane, 'upstreams'>>
}

export class ModelsElsewhere {
  readonly #options: ModelsElsewhereOptions
  /** The time by the steady clock at which another worker was found to know a model, by model. */
  readonly #foundAt = new Map<string, number>()

  constructor(options: ModelsElsewhereOptions) {
    this.#options = options
  }

  /** Models that another worker knows and this one does not. */
  models(): string[] {
    const { clock, lanes } = this.#options
    const now = clock.steady()
    for (const [model, at] of this.#foundAt)
      if (now - at > REMEMBERED_MS || lanes.has(model)) this.#foundAt.delete(model)
    return [...this.#foundAt.keys()]
  }

  /** Whether a running worker knows the run's models and remote batches as this worker does, and more of them. */
  async isBetterFor(
    run: Run,
    remote: readonly Pick<RemoteBatchRow, 'model' | 'upstream'>[],
  ): Promise<boolean> {
    const { store, clock, session, lanes } = this.#options
    const needs = [...Array.from(run.models, (model) => ({ model, upstream: null })), ...remote]
    const unknown = new Set(
      needs.filter(({ model, upstream }) => {
        const lane = lanes.get(model)
        return upstream === null ? !lane : !lane?.upstreams.some(({ name }) => name === upstream)
      }),
    )
    if (unknown.size === 0) return false
    const about = { own: session.id, batch: run.batch, now: clock.now() }
    for (const known of await modelsOfWorkers(store.read, about)) {
      const knows = ({ model, upstream }: (typeof needs)[number]): boolean =>
        upstream === null ? known.has(model) : known.get(model)?.has(upstream) === true
      const more = [...unknown].filter(knows)
      if (more.length === 0 || needs.some((one) => !unknown.has(one) && !knows(one))) continue
      for (const { model } of more) if (!lanes.has(model)) this.#foundAt.set(model, clock.steady())
      return true
    }
    return false
  }
}
