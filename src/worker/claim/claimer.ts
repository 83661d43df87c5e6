// Claims chunks while the upstreams have room: enough lines ahead that no slot stays empty, no more than memory
// allows, and always one chunk of every waiting project, and in turn of the entities within a project, so that none
// starves.

import type { Dispatch } from '../../dispatch/dispatch.ts'
import type { LimitGate } from '../../dispatch/gates/limits/limit-gate.ts'
import type { Lines } from '../../dispatch/lines.ts'
import type { Run } from '../../dispatch/run.ts'
import type { RemoteRows } from '../../dispatch/senders/batch-apis/rows.ts'
import type { Tracing } from '../../domain/tracing.ts'
import { type Leases, Rounds } from '../../leases/leases.ts'
import { ChunkTrace } from '../../results/traces.ts'
import type { BatchInput } from '../../store/batches.ts'
import {
  type ClaimOrder,
  claimChunks,
  claimOfEntities,
  claimRemote,
  hasReadyChunk,
  hasReadyRemote,
  type ModelChoice,
  waitingEntities,
  withReadyChunk,
} from '../../store/chunk-claims.ts'
import { parkChunk, rejectChunk } from '../../store/chunks.ts'
import { overLimitUntil } from '../../store/limits.ts'
import type { ChunkRow } from '../../store/schema.ts'
import { type Ports, StatementRejected, type Writer } from '../../store/store.ts'
import { type ChunkReader, InputUnreadable } from './chunk-reader.ts'
import {
  chunkSlots,
  type Demand,
  demandOf,
  type LaneState,
  type ModelsElsewhere,
  overtakenWork,
} from './demand.ts'

/** Chunks whose deadline is closer than this are claimed before others. */
const URGENT_MS = 10 * 60_000
const CLAIMS_PER_COMMIT_MAX = 4
const UNREADABLE_PARK_MS = 30_000
/** The time in ms for which a chunk is parked after a store or a limit check has failed. */
const UNOPENED_PARK_MS = 1_000
/** The wait of a chunk in ms for another worker that knows its model. */
const ELSEWHERE_MS = 500
/** Entities of one project with open chunks in this worker. */
const ENTITIES_MAX = 8
/** The interval in ms at which a worker with enough lines looks for waiting projects and entities. */
const OTHERS_MS = 200

export interface ClaimerOptions extends Pick<Ports, 'store' | 'clock' | 'log'> {
  reader: ChunkReader
  memoryBytes: number
  leases: Leases
  session: { readonly id: string }
  lanes: ReadonlyMap<string, LaneState>
  runs: { values(): Iterable<Run> }
  atRisk: ReadonlySet<string>
  elsewhere: Pick<ModelsElsewhere, 'models' | 'isBetterFor'>
  dispatch: Pick<Dispatch, 'makeRoom' | 'restore' | 'admit' | 'open'> & {
    lines: Pick<Lines, 'requeue' | 'close'>
    limits: Pick<LimitGate, 'pausedProjects'>
    batchApis: { rows: Pick<RemoteRows, 'of'> }
  }
  onlyBatches?: ReadonlySet<string> | undefined
  tracing?: Tracing | undefined
}

type Wanted = Required<Pick<ClaimOrder, 'exceptProjects' | 'onePerProject' | 'models'>> &
  Pick<ClaimOrder, 'onlyBatches'>

export class Claimer {
  readonly #options: ClaimerOptions
  readonly #rounds = new Rounds(() => this.#claimUntilFull())
  /** The time at which the last claim began (Unix ms). */
  #claimedFrom = 0
  #foundNothing = false
  /** The time of the next search for chunks of other projects, by the steady clock. */
  #othersAt = 0
  /** The time of the next search for waiting entities, by the steady clock, and the last served entity by project. */
  #entitiesAt = 0
  readonly #lastEntity = new Map<string, string>()
  /** Whether to search for chunks with lines at batch APIs, and for chunks that precede lines waiting here. */
  #looksForEnded = true
  #looksAhead = true
  /** Whether the next claim needs no search: the last one returned all requested chunks, or chunks were announced. */
  #lastClaimWasFull = false
  #hasNews = false

  constructor(options: ClaimerOptions) {
    this.#options = options
  }

  /** Claims more chunks, unless the last claim found nothing. */
  refill(): void {
    if (!this.#foundNothing) this.#rounds.start()
  }

  /** Claims chunks; a call during a claim causes one more claim. `chunks`: there are new chunks. */
  claimNow(news: 'wake' | 'chunks' = 'wake'): void {
    this.#foundNothing = false
    this.#othersAt = 0
    this.#entitiesAt = 0
    this.#hasNews = news === 'chunks'
    this.#looksForEnded ||= !this.#hasNews
    this.#looksAhead = true
    this.#rounds.start()
  }

  close(): Promise<void> {
    return this.#rounds.close()
  }

  async #claimUntilFull(): Promise<void> {
    try {
      while (!this.#rounds.isClosed && (await this.#claimSome())) {
        // Each claim may leave room for more.
      }
    } catch (error) {
      this.#options.log.error({ err: error }, 'claiming chunks failed')
    }
  }

  /** Reads the lanes of all models, of which there may be thousands; out of date after anything that is awaited. */
  get #demand(): Demand {
    const { lanes, clock, elsewhere } = this.#options
    const demand = demandOf(lanes, clock.now())
    demand.blocked.push(...elsewhere.models())
    return demand
  }

  #isBlocked(model: string | null): boolean {
    const { lanes, clock, elsewhere } = this.#options
    if (model === null) return false
    return lanes.get(model)?.blocked(clock.now()) ?? elsewhere.models().includes(model)
  }

  get #slots(): ReturnType<typeof chunkSlots> {
    return chunkSlots(this.#options.runs.values(), this.#options.memoryBytes)
  }

  get #paused(): string[] {
    return this.#options.dispatch.limits.pausedProjects()
  }

  get #atRisk(): string[] {
    const { atRisk, onlyBatches } = this.#options
    return [...atRisk].filter((id) => !onlyBatches || onlyBatches.has(id))
  }

  async #claimSome(): Promise<boolean> {
    const { store, clock, leases, onlyBatches } = this.#options
    if (onlyBatches?.size === 0) return false
    if ((await this.#claimEnded()) || (await this.#claimAhead())) return true
    let looked = false
    const demand = this.#demand
    for (const order of [...this.#wantedAtRisk(demand), ...this.#wanted(demand)]) {
      const partial = isPartial(order)
      if (partial && clock.steady() < this.#othersAt && !leases.isReleaseDue) continue
      const expected =
        leases.isReleaseDue || (this.#lastClaimWasFull && !order.onePerProject) || (this.#hasNews && !partial)
      this.#hasNews = false
      if (expected || (await hasReadyChunk(store.read, order))) return await this.#claim(order)
      if (partial) looked = true
      else this.#foundNothing = true
    }
    if (looked) this.#othersAt = clock.steady() + OTHERS_MS
    return !this.#foundNothing && (await this.#claimForEntities())
  }

  /** Claims chunks with lines at batch APIs, whatever else there is: most have results to be read. */
  async #claimEnded(): Promise<boolean> {
    const { store, onlyBatches } = this.#options
    const only = onlyBatches && [...onlyBatches]
    if (!this.#looksForEnded || !this.#slots.mayRead) return false
    this.#looksForEnded = await hasReadyRemote(store.read, only)
    if (!this.#looksForEnded) return false
    const claims = await this.#lease((tx, worker_id) =>
      claimRemote(tx, worker_id, CLAIMS_PER_COMMIT_MAX, only),
    )
    return await this.#openAll(claims)
  }

  /** Claims chunks that are due before waiting lines of the same entity, however many of these there are. */
  async #claimAhead(): Promise<boolean> {
    const { store, runs, lanes, dispatch, onlyBatches } = this.#options
    if (onlyBatches || !this.#looksAhead) return false
    const noProjects = this.#paused
    const wanted = overtakenWork(runs.values(), lanes).filter(
      ({ project_id, model }) => !noProjects.includes(project_id) && !this.#isBlocked(model),
    )
    const found = await withReadyChunk(store.read, wanted, CLAIMS_PER_COMMIT_MAX)
    const { full, packed } = this.#slots
    const { none = [], some = [] } = Object.groupBy(found, ({ model }) =>
      full || packed.includes(model) ? 'none' : 'some',
    )
    const claims =
      some.length > 0 ? await this.#lease((tx, worker_id) => claimOfEntities(tx, worker_id, some)) : []
    this.#looksAhead = claims.length > 0
    // One at a time: its slot is free when its lines in flight have ended.
    if (![...runs.values()].some(({ stopped }) => stopped === 'drained'))
      for (const { last } of none.slice(0, 1)) dispatch.lines.requeue(last)
    return await this.#openAll(claims)
  }

  async #claim(order: Wanted): Promise<boolean> {
    const claims = await this.#lease((tx, worker_id, now) => {
      const urgent = { urgentBefore: now + URGENT_MS, urgentBatches: this.#atRisk }
      return claimChunks(tx, { worker_id, ...urgent, ...order, count: CLAIMS_PER_COMMIT_MAX })
    })
    this.#lastClaimWasFull = !order.onePerProject && claims.length >= CLAIMS_PER_COMMIT_MAX
    return await this.#openAll(claims)
  }

  /** Claims one chunk of each waiting entity of the projects that have open chunks here. */
  async #claimForEntities(): Promise<boolean> {
    const { store, clock, runs, onlyBatches } = this.#options
    if (onlyBatches || clock.steady() < this.#entitiesAt) return false
    const { hasRoom, taken } = this.#slots
    if (!hasRoom) return false
    const byProject = Map.groupBy(runs.values(), (run) => run.claim.project_id)
    for (const [project_id, own] of byProject) {
      if (this.#paused.includes(project_id)) continue
      const busy = [...new Set(own.map((run) => run.claim.entity))]
      const after = this.#lastEntity.get(project_id) ?? null
      const count = Math.min(CLAIMS_PER_COMMIT_MAX, ENTITIES_MAX - busy.length)
      const entities = await waitingEntities(store.read, { project_id, after, busy, count })
      if (entities.length === 0) continue
      this.#lastEntity.set(project_id, entities.at(-1)!)
      const all = entities.map((entity) => ({ project_id, entity }))
      const models = { exceptModels: [...this.#demand.blocked, ...taken] }
      const claims = await this.#lease((tx, worker_id) => claimOfEntities(tx, worker_id, all, models))
      if (await this.#openAll(claims)) return true
    }
    this.#entitiesAt = clock.steady() + OTHERS_MS
    for (const project_id of this.#lastEntity.keys())
      if (!byProject.has(project_id)) this.#lastEntity.delete(project_id)
    return false
  }

  #lease(
    choose: (tx: Writer, worker_id: string, now: number) => Promise<ChunkRow[]>,
  ): Promise<readonly ChunkRow[]> {
    const { clock, leases } = this.#options
    this.#claimedFrom = clock.now()
    return leases.claim((tx, id) => choose(tx, id, clock.now()))
  }

  async #openAll(claims: readonly ChunkRow[]): Promise<boolean> {
    const inputs = this.#options.reader.inputs(claims)
    const opened = await Promise.allSettled(
      claims.map((claim) => this.#open(claim, inputs.get(claim.batch_id)!)),
    )
    const failed = opened.find((one) => one.status === 'rejected')
    if (failed) {
      // Neither opened nor parked, it is a stray lease.
      this.#options.leases.suspect()
      throw failed.reason
    }
    return claims.length > 0
  }

  /** Claims chunks of at-risk batches, also where other lines wait. */
  #wantedAtRisk({ forAtRisk }: Demand): Wanted[] {
    const { full, packed } = this.#slots
    const onlyModels = [...forAtRisk, null].filter((model) => !packed.includes(model))
    const onlyBatches = this.#atRisk
    if (full || forAtRisk.length === 0 || onlyModels.length === 0 || onlyBatches.length === 0) return []
    return [{ exceptProjects: this.#paused, onePerProject: false, models: { onlyModels }, onlyBatches }]
  }

  /** The claims to try, in order; none when there is no room. */
  #wanted({ wantsMore, low, enough, blocked }: Demand): Wanted[] {
    const { dispatch, onlyBatches } = this.#options
    const { hasRoom, full, taken, packed, holders } = this.#slots
    if (low.length > 0 && (!hasRoom || taken.length > 0)) dispatch.makeRoom()
    if (full) return []
    const any = {
      ...{ exceptProjects: this.#paused, onePerProject: false },
      onlyBatches: onlyBatches && [...onlyBatches],
    }
    const oneOf = (models: ModelChoice, projects: Iterable<string>): Wanted => {
      const exceptProjects = [...new Set([...projects, ...any.exceptProjects])]
      return { ...any, exceptProjects, onePerProject: true, models }
    }
    const all = [...holders.values()].flatMap((projects) => [...projects])
    const others = oneOf({ exceptModels: [...blocked, ...packed] }, all)
    if (!hasRoom) {
      const idle = low.filter((model) => !holders.has(model))
      return idle.length > 0 ? [others, oneOf({ onlyModels: idle }, [])] : [others]
    }
    const newcomers = taken
      .filter((model) => !packed.includes(model) && (model === null || !blocked.includes(model)))
      .map((model) => oneOf({ onlyModels: [model] }, holders.get(model) ?? []))
    if (wantsMore)
      return [{ ...any, models: { exceptModels: [...blocked, ...enough, ...taken] } }, ...newcomers]
    const wanted = low.filter((model) => !taken.includes(model))
    return wanted.length > 0
      ? [{ ...any, models: { onlyModels: wanted } }, others, ...newcomers]
      : [others, ...newcomers]
  }

  async #open(claim: ChunkRow, reading: Promise<BatchInput>): Promise<void> {
    const { clock, log, dispatch, leases } = this.#options
    const claimedAt = clock.now()
    let trace: ChunkTrace | null = null
    let run: Run | null = null
    let isOpen = false
    const notOpened = (how: string, error?: string): void => {
      trace?.end(clock.now(), { 'offpeak.chunk.end': how }, error)
      // This worker may claim its chunk again, and the attempts of its lines are known nowhere else.
      if (run) dispatch.lines.close(run, true)
    }
    try {
      const input = await reading
      trace = ChunkTrace.begin(this.#options.tracing, input.batch, claim, this.#claimedFrom)
      trace?.enter('open', claimedAt)
      run = await this.#options.reader.read(claim, input)
      run.results.trace = trace
      const postponed = await this.#prepare(run, input.limit_version)
      // If the session expired meanwhile, another worker may have claimed the chunk.
      const isOurs = claim.worker_id === this.#options.session.id
      if (postponed) {
        const { retryAt, reason } = postponed
        const limitVersion = reason === undefined ? run.limitsSeen.version : null
        await this.#park(run.results.lease, retryAt, reason ?? 'usage_limit', limitVersion)
      }
      isOpen = isOurs && !postponed
      if (isOpen) dispatch.open(run)
      else notOpened(postponed ? 'parked' : 'lost')
    } catch (error) {
      notOpened('parked', 'not_opened')
      if (error instanceof StatementRejected) return await this.#reject(claim, error)
      log.error(
        { err: error, batch: claim.batch_id, chunk: claim.idx },
        'a chunk could not be opened; it is tried again later',
      )
      const [reason, waitMs] =
        error instanceof InputUnreadable
          ? (['input_unreadable', UNREADABLE_PARK_MS] as const)
          : (['stores_failing', UNOPENED_PARK_MS] as const)
      await this.#park(claim, clock.now() + waitMs, reason)
    } finally {
      if (!isOpen) leases.forget(claim)
    }
  }

  /** Prepares a run to be opened; returns the end of its parking (Unix ms), and the reason unless it is a limit. */
  async #prepare(run: Run, limitVersion: number): Promise<{ retryAt: number; reason?: string } | null> {
    const { clock, elsewhere, dispatch } = this.#options
    await dispatch.restore(run)
    if (await elsewhere.isBetterFor(run, dispatch.batchApis.rows.of(run)))
      return { retryAt: clock.now() + ELSEWHERE_MS, reason: 'model_unavailable' }
    return await dispatch.admit(run, limitVersion)
  }

  /** Ends the lines of a chunk as errors, since the database rejects a value in it. */
  async #reject(claim: ChunkRow, error: StatementRejected): Promise<void> {
    const { store, log } = this.#options
    log.error(
      { err: error, batch: claim.batch_id, chunk: claim.idx },
      'the database rejects a value in a chunk; its lines end as errors',
    )
    this.#options.leases.ended(await store.write((tx) => rejectChunk(tx, claim, error.message)))
  }

  async #park(
    claim: ChunkRow,
    runAt: number,
    reason: string,
    limitVersion: number | null = null,
  ): Promise<void> {
    const { store, clock } = this.#options
    const parked = await store.write(async (tx) => {
      const until =
        limitVersion === null ? runAt : await overLimitUntil(tx, claim.project_id, limitVersion, runAt)
      return await parkChunk(tx, claim, until - clock.now(), reason)
    })
    this.#options.leases.ended(parked)
  }
}

/** Whether the claim leaves some ready chunks out. */
function isPartial({ exceptProjects, models }: Wanted): boolean {
  return exceptProjects.length > 0 || 'onlyModels' in models || models.exceptModels.length > 0
}
