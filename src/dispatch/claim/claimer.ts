// Claims chunks while the upstreams have room: enough lines ahead that no slot stays empty, no more than memory
// allows, and always one chunk of every waiting project, and in turn of the entities within a project, so that none
// starves.
import type { Clock } from '../../domain/clock.ts'
import type { Log } from '../../domain/log.ts'
import type { OpenChunk } from '../../results/open-chunk.ts'
import { type BatchInput, readBatchInput } from '../../store/batches.ts'
import { type ClaimOrder, claimChunks, hasReadyChunk, type ModelChoice } from '../../store/chunk-claims.ts'
import { parkChunk, refuseChunk } from '../../store/chunks.ts'
import { claimOfEntities, waitingEntities } from '../../store/entity-claims.ts'
import { lockSession, releaseStrayChunks } from '../../store/leases.ts'
import type { ChunkRow } from '../../store/schema.ts'
import { StatementRefused, type Store, type Writer } from '../../store/store.ts'
import type { ChunkReader } from './chunk-reader.ts'
import { chunkSlots } from './chunk-slots.ts'
import type { Demand } from './demand.ts'
import { StrayClaims } from './stray-claims.ts'
import { InputUnreadable } from './unreadable-chunk.ts'

/** A chunk whose window closes within this time is claimed before others. */
const URGENT_MS = 10 * 60_000
/** Chunks taken in one transaction. */
const CLAIMS_PER_COMMIT_MAX = 4
const UNREADABLE_PARK_MS = 30_000
/** How long a chunk is parked when a store or a limit check failed. */
const UNOPENED_PARK_MS = 1_000
/** Entities of one project with open chunks in this worker. */
const ENTITIES_MAX = 8
/** How often a worker that has enough to do looks whether another project, or another entity, waits. */
const OTHERS_MS = 200

export interface ClaimerOptions {
  store: Store
  reader: ChunkReader
  clock: Clock
  log: Log
  memoryBytes: number
  sessionId: () => string
  /** What should be claimed next. */
  demand: () => Demand
  /** Batches that may miss their deadline. */
  atRisk: () => readonly string[]
  /** ChunkSlots are taken, though there are upstreams with room. */
  onCrowded: () => void
  openChunks: () => Iterable<OpenChunk>
  /** Asks the limits, as of that version; a chunk of which nothing may be done now rests until then (Unix ms). */
  admit: (chunk: OpenChunk, limit_version: number) => Promise<{ restUntil: number } | null>
  /** Projects of which nothing is to be claimed just now. */
  paused: () => string[]
  onOpened: (chunk: OpenChunk) => void
}

type Wanted = Required<Pick<ClaimOrder, 'count' | 'except_projects' | 'one_each' | 'models'>>

export class Claimer {
  readonly #options: ClaimerOptions
  #running: Promise<void> | null = null
  #again = false
  #closed = false
  /** Nothing was ready at the last look. */
  #dry = false
  /** No other project waited at the last look; the next look is not before this (Unix ms). */
  #othersAt = 0
  /** When to look next for entities that wait (Unix ms), and by project whose turn it was last. */
  #entitiesAt = 0
  readonly #served = new Map<string, string>()
  readonly #doubt: StrayClaims
  /** Leased, and not open yet. */
  readonly #opening = new Set<ChunkRow>()
  /** The last claim brought all that was asked for: there is likely to be more, and nobody need look first. */
  #plenty = false

  constructor(options: ClaimerOptions) {
    this.#options = options
    this.#doubt = new StrayClaims(options.clock)
  }

  /** There is room for more lines: looks, unless nothing was ready the last time. */
  refill(): void {
    if (!this.#dry) this.#start()
  }

  /** Looks for work now; if it is looking already, once more after that. */
  look(): void {
    this.#dry = false
    this.#othersAt = 0
    this.#entitiesAt = 0
    this.#start()
  }

  #start(): void {
    if (this.#closed) return
    if (this.#running) {
      this.#again = true
      return
    }
    this.#running = this.#lookUntilFull().finally(() => {
      this.#running = null
      if (this.#again) {
        this.#again = false
        this.#start()
      }
    })
  }

  /** Something may be leased to this worker that it knows nothing of. */
  doubt(): void {
    this.#doubt.raise()
  }

  /** Whatever is leased to this worker and known to it: it is no stray. */
  leased(): ChunkRow[] {
    return [...[...this.#options.openChunks()].map((chunk) => chunk.claim), ...this.#opening]
  }

  async close(): Promise<void> {
    this.#closed = true
    await this.#running
  }

  async #lookUntilFull(): Promise<void> {
    try {
      while (!this.#closed && (await this.#claimSome())) {
        // Each round may find room for more.
      }
    } catch (error) {
      // What the database may have leased to this worker all the same is given back at the next look.
      this.#doubt.raise()
      this.#options.log.error({ err: error }, 'claiming chunks failed')
    }
  }

  async #claimSome(): Promise<boolean> {
    const { store, clock } = this.#options
    let looked = false
    for (const order of this.#wanted()) {
      const partial = isPartial(order)
      if (partial && clock.now() < this.#othersAt && !this.#doubt.isRaised) continue
      const expected = this.#doubt.isRaised || (this.#plenty && !order.one_each)
      if (expected || (await hasReadyChunk(store.read, order.except_projects, order.models)))
        return await this.#claim(order)
      if (partial) looked = true
      else this.#dry = true
    }
    if (looked) this.#othersAt = clock.now() + OTHERS_MS
    return await this.#claimForEntities()
  }

  async #claim(order: Wanted): Promise<boolean> {
    const { store, atRisk } = this.#options
    const claims = await this.#lease((tx, worker_id, now) => {
      const urgent = { urgent_before: now + URGENT_MS, urgent_batches: atRisk() }
      return claimChunks(tx, { worker_id, ...urgent, ...order, among: store.claimSql })
    })
    this.#plenty = !order.one_each && claims.length === order.count
    return await this.#openAll(claims)
  }

  /** One chunk each of those entities of the projects at hand that wait while others of their project have work here. */
  async #claimForEntities(): Promise<boolean> {
    const { store, clock, openChunks, demand, paused, memoryBytes } = this.#options
    const now = clock.now()
    if (now < this.#entitiesAt) return false
    const { room, taken } = chunkSlots(openChunks(), memoryBytes)
    if (!room) return false
    const models = { except_models: [...demand().blocked, ...taken] }
    const byProject = Map.groupBy(openChunks(), (chunk) => chunk.claim.project_id)
    for (const [project_id, chunks] of byProject) {
      if (paused().includes(project_id)) continue
      const own = [...new Set(chunks.map((chunk) => chunk.claim.entity))]
      const after = this.#served.get(project_id) ?? null
      const count = Math.min(CLAIMS_PER_COMMIT_MAX, ENTITIES_MAX - own.length)
      const entities = await waitingEntities(store.read, { project_id, after, held: own, count })
      if (entities.length === 0) continue
      this.#served.set(project_id, entities.at(-1)!)
      const claims = await this.#lease((tx, worker_id) =>
        claimOfEntities(tx, { worker_id, project_id, entities, models }),
      )
      if (await this.#openAll(claims)) return true
    }
    this.#entitiesAt = now + OTHERS_MS
    for (const project_id of this.#served.keys())
      if (!byProject.has(project_id)) this.#served.delete(project_id)
    return false
  }

  async #lease(
    choose: (tx: Writer, worker_id: string, now: number) => Promise<ChunkRow[]>,
  ): Promise<ChunkRow[]> {
    const { store, clock, sessionId } = this.#options
    const id = sessionId()
    const inDoubt = this.#doubt.isRaised
    const claims = await store.write(async (tx) => {
      if (!(await lockSession(tx, store.claimSql, id))) return []
      if (inDoubt) await releaseStrayChunks(tx, id, this.leased())
      return await choose(tx, id, clock.now())
    })
    if (inDoubt) this.#doubt.settle()
    return claims
  }

  async #openAll(claims: readonly ChunkRow[]): Promise<boolean> {
    // Chunks that are taken together are mostly of one batch: what they share is read once.
    const inputs = new Map<string, Promise<BatchInput>>()
    for (const { batch_id } of claims) if (!inputs.has(batch_id)) inputs.set(batch_id, this.#input(batch_id))
    for (const claim of claims) this.#opening.add(claim)
    const opened = await Promise.allSettled(
      claims.map((claim) =>
        this.#open(claim, inputs.get(claim.batch_id)!).finally(() => this.#opening.delete(claim)),
      ),
    )
    for (const one of opened) if (one.status === 'rejected') throw one.reason
    return claims.length > 0
  }

  /** What to look for, most wanted first; nothing when there is no room. */
  #wanted(): Wanted[] {
    const { demand, openChunks, paused, memoryBytes, onCrowded } = this.#options
    const { wantsMore, low, full, blocked } = demand()
    const places = chunkSlots(openChunks(), memoryBytes)
    const { room, taken, packed, holders } = places
    if (low.length > 0 && (!room || taken.length > 0)) onCrowded()
    if (places.full) return []
    const any = { count: CLAIMS_PER_COMMIT_MAX, except_projects: paused(), one_each: false }
    const oneOf = (models: ModelChoice, projects: Iterable<string>): Wanted => {
      const except_projects = [...new Set([...projects, ...any.except_projects])]
      return { ...any, except_projects, one_each: true, models }
    }
    const all = [...holders.values()].flatMap((projects) => [...projects])
    const others = oneOf({ except_models: [...blocked, ...packed] }, all)
    if (!room) {
      const idle = low.filter((model) => !holders.has(model))
      return idle.length > 0 ? [others, oneOf({ only_models: idle }, [])] : [others]
    }
    const newcomers = taken
      .filter((model) => !packed.includes(model) && (model === null || !blocked.includes(model)))
      .map((model) => oneOf({ only_models: [model] }, holders.get(model) ?? []))
    if (wantsMore)
      return [{ ...any, models: { except_models: [...blocked, ...full, ...taken] } }, ...newcomers]
    const wanted = low.filter((model) => !taken.includes(model))
    return wanted.length > 0
      ? [{ ...any, models: { only_models: wanted } }, others, ...newcomers]
      : [others, ...newcomers]
  }

  async #open(claim: ChunkRow, reading: Promise<BatchInput>): Promise<void> {
    const { clock, log } = this.#options
    try {
      const input = await reading
      const chunk = await this.#options.reader.read(claim, input)
      const rest = await this.#options.admit(chunk, input.limit_version)
      if (rest) await this.#giveBack(chunk.lease, rest.restUntil, 'usage_limit')
      // Under a session that ended meanwhile it is somebody else's to take up.
      else if (claim.worker_id === this.#options.sessionId()) this.#options.onOpened(chunk)
    } catch (error) {
      if (error instanceof StatementRefused) return await this.#refuse(claim, error)
      log.error(
        { err: error, batch: claim.batch_id, chunk: claim.idx },
        'a chunk could not be opened; it is tried again later',
      )
      const [reason, restMs] =
        error instanceof InputUnreadable
          ? (['input_unreadable', UNREADABLE_PARK_MS] as const)
          : (['stores_failing', UNOPENED_PARK_MS] as const)
      await this.#giveBack(claim, clock.now() + restMs, reason)
    }
  }

  /** What the chunk holds cannot be written down, not even what it may cost: it is to end. */
  async #refuse(claim: ChunkRow, error: StatementRefused): Promise<void> {
    const { store, log } = this.#options
    log.error(
      { err: error, batch: claim.batch_id, chunk: claim.idx },
      'the database rejects a value in a chunk; its lines end as errors',
    )
    const given = await store.write((tx) => refuseChunk(tx, claim, error.message))
    if (given !== 'accepted') this.#doubt.raise()
  }

  async #giveBack(claim: ChunkRow, run_at: number, reason: string): Promise<void> {
    const parked = await this.#options.store.write((tx) => parkChunk(tx, claim, run_at, reason))
    // Something was committed to it that nobody has heard of: then it goes back as a chunk that nobody knows.
    if (parked !== 'accepted') this.#doubt.raise()
  }

  async #input(batch_id: string): Promise<BatchInput> {
    const input = await readBatchInput(this.#options.store.read, batch_id)
    if (!input) throw new Error(`batch ${batch_id} is gone`)
    return input
  }
}

/** Whether there may be chunks that this leaves aside. */
function isPartial({ except_projects, models }: Wanted): boolean {
  return except_projects.length > 0 || 'only_models' in models || models.except_models.length > 0
}
