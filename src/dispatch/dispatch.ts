// The runs that a worker has open, from the claim of a chunk to the end of its lease. What the parts find out is in the list
// of the turn (turn.ts); it is taken here, in one place, and nothing else stops, parks or closes a run.
//
// Whatever ends the sending of a run goes the same way: it is stopped with a reason, its lines that wait end or stay as
// the reason says, what is in flight may finish for as long as the reason allows, and what is left is parked.
import type { ResponseMemory } from '../backends/response-memory.ts'
import { type StopReason, stopReason } from '../domain/batch.ts'
import { reuseBuffer } from '../domain/free-buffer.ts'
import type { Model } from '../domain/model.ts'
import type { PromptLearner } from '../ledger/prompt-learner.ts'
import type { FinishRules } from '../lifecycle/batch.ts'
import { noteExpired } from '../progress/waiting-reason.ts'
import { EarlierAnswers } from '../results/earlier-answers.ts'
import { type Recorded, Recorder, type RunEnd } from '../results/recorder.ts'
import type { Observer, Upstream } from '../servers/upstream.ts'
import { moveBatch, readBatchStatuses } from '../store/batches.ts'
import { parkChunk, releaseChunk, wakeIfCancelled, wakeOverLimit } from '../store/chunks.ts'
import { overLimitUntil } from '../store/limits.ts'
import { pausedUntil } from '../store/pauses.ts'
import { wakeIfEnded } from '../store/remote-batches.ts'
import { readRow } from '../store/rows.ts'
import type { Ports } from '../store/store.ts'
import { LimitGate } from './gates/limits/limit-gate.ts'
import { ReservedFunds } from './gates/limits/reserved-funds.ts'
import { Pauses } from './gates/pauses.ts'
import type { AnswerChecks } from './gates/reasks.ts'
import { type RetryPolicy, storedTries } from './gates/retries.ts'
import { COMMITTED, FOLLOWING, REMOTE, type RunFacts, type Wait, waitOf } from './line-state.ts'
import { Lines } from './lines.ts'
import type { Run, RunStop } from './run.ts'
import { RemoteExecutor } from './senders/batch-apis/executor.ts'
import { Lane } from './senders/lane.ts'
import { NO_SPILL, Route, type Spill } from './senders/routes.ts'
import { Sender } from './senders/sender.ts'
import type { Change, Turn, TurnEnd } from './turn.ts'

/** The time in ms for lines in flight after their input was deleted; its content is kept until then. */
const DELETED_GRACE_MS = 5_000
/** The wait in ms for the commit that says that a batch has begun, and after such a commit has failed. */
const BEGUN_MS = 50
const BEGUN_AGAIN_MS = 1_000
/** The least time between two wake-ups of chunks that wait for a limit, when other chunks release reservations. */
const RELEASED_MS = 1_000
const MAKE_ROOM_MS = 250
/** The least time in ms for which a chunk of unavailable models stays parked; with jitter. */
const BLOCKED_MS = 1_500

export interface DispatchOptions extends Ports {
  random: () => number
  models: ReadonlyMap<string, Model>
  retry: RetryPolicy
  rules: FinishRules
  flushIntervalMs: number
  /** Limits the bytes of answers in memory; at most half of them stay once they are in journals. */
  answers: ResponseMemory
  /** The greatest age of an uncommitted blob at its commit; the orphan sweep deletes older blobs. */
  blobFreshMs: number
  checks: AnswerChecks
  learner: PromptLearner
  turn: Turn
  session: { readonly id: string; readonly isCertain: boolean }
  leases: { suspect(): void; forget(claim: Run['claim']): void }
  observe?: Observer | undefined
}

export class Dispatch {
  readonly #options: DispatchOptions
  /** The open runs, by batch and index. */
  readonly runs = new Map<string, Run>()
  readonly lanes = new Map<string, Lane>()
  /** Batches that may miss their deadline, in the order in which they are to be served. */
  readonly atRisk = new Set<string>()
  readonly lines: Lines
  readonly recorder: Recorder<Run>
  readonly limits: LimitGate
  readonly batchApis: RemoteExecutor
  readonly #pauses: Pauses
  readonly #funds: ReservedFunds
  readonly #servers: Sender
  /** Batches of which a first line was sent, until that is stored. */
  readonly #begun = new Set<string>()
  /** The last wake-up of chunks that wait for a limit, by project and by the steady clock. */
  readonly #wokenAt = new Map<string, number>()
  /** The current read of batches' statuses, for runs whose window has closed, and of their waiting reasons. */
  #statuses: Promise<ReadonlyMap<string, string>> | null = null
  #isDraining = false
  #makeRoomAt = 0

  constructor(options: DispatchOptions) {
    this.#options = options
    const { store, turn, answers } = options
    const { runs, lanes, atRisk } = this
    const pauses = new Pauses(store)
    const funds = new ReservedFunds(turn)
    const recorder = new Recorder<Run>(options)
    const shared = { ...options, runs, lanes, atRisk, pauses, funds, recorder }
    const lines = new Lines({ ...shared, earlier: new EarlierAnswers(shared) })
    const limits = new LimitGate({ ...shared, lines })
    this.lines = lines
    this.recorder = recorder
    this.limits = limits
    this.batchApis = new RemoteExecutor({ ...shared, lines, limits })
    this.#pauses = pauses
    this.#funds = funds
    this.#servers = new Sender({ ...shared, lines })
    answers.onRoom = () => turn.schedule()
  }

  /** Sets the upstreams of each model, and its rules of spill-over. */
  setLanes(
    upstreams: ReadonlyMap<string, readonly Upstream[]>,
    spills: ReadonlyMap<string, Spill> = new Map(),
  ): void {
    const { clock, turn } = this.#options
    for (const [model, some] of upstreams) {
      const route = new Route(some, spills.get(model) ?? NO_SPILL)
      const lane = this.lanes.get(model)
      if (lane) lane.route = route
      else this.lanes.set(model, new Lane(model, route, clock, turn, this.atRisk))
    }
    for (const [model, lane] of this.lanes) {
      if (upstreams.has(model)) continue
      lane.close()
      this.lanes.delete(model)
    }
  }

  /** Applies a change of models and their lanes, after it was made; lines in flight end at their servers. */
  modelsChanged(): void {
    this.lines.modelsChanged([...this.runs.values()])
    this.limits.requeueUnderpriced()
    this.#options.turn.schedule()
  }

  // From the claim of a chunk to its end.

  /** Gives a claimed run the known state of its lines: cancellations, tries and remote batches. */
  async restore(run: Run): Promise<void> {
    this.lines.cancel(run, run.claim.cancelled_lines)
    this.lines.parked.restore(run)
    await this.batchApis.rows.load(run)
  }

  /** Reserves for a run before it is opened; returns the time (Unix ms) of its first line, unless that is now. */
  async admit(run: Run, limitVersion: number): Promise<{ retryAt: number } | null> {
    const { clock } = this.#options
    const isEnding = stopReason(run.batch, clock.now()) !== null
    const postponed = await this.limits.admit(run, limitVersion, isEnding)
    // Last, because a reservation may take its time.
    await this.#pauses.loadFor(run)
    // What a batch API has answered is settled first: its reservation may be what fills the limit.
    return this.batchApis.rows.of(run).length > 0 ? null : postponed
  }

  open(run: Run): void {
    const { clock, turn } = this.#options
    run.results.trace?.enter('send', clock.now())
    this.runs.set(run.key, run)
    const end = (): void => turn.push({ kind: 'stopped', run, reason: 'batch_expired' })
    run.alarms.push(clock.after(run.batch.expires_at - clock.now(), end))
    this.#funds.open(run)
    this.recorder.track(run)
    const reason = stopReason(run.batch, clock.now()) ?? (this.#isDraining ? 'drained' : null)
    if (reason === null) this.lines.open(run)
    else this.#stop(run, reason)
    this.limits.requeueUnderpriced([run])
    this.batchApis.opened(run)
    turn.touch(run)
  }

  apply(change: Exclude<Change, { kind: 'ready' }>): void {
    if (change.kind === 'committed') {
      if (this.#funds.isLow || this.limits.isAwaited) this.#recheckLimits()
      return
    }
    const { run } = change
    try {
      if (change.kind === 'freed') this.lines.place(run, change.position, change.cause)
      else if (change.kind === 'examined') this.lines.examined(change)
      else if (change.kind === 'begun') this.#begin(run)
      else if (change.kind === 'checked') this.#parkIfWaiting(run, { isChecked: !this.limits.mayFree(run) })
      else if (change.kind === 'settled') this.#settled(change)
      else if (change.kind === 'closed') this.#close(run, change.how)
      else if (change.kind === 'rejected') this.lines.stop(run, 'lost', true)
      else this.#stop(run, change.reason)
    } catch (error) {
      this.lines.broken(run, error)
    }
  }

  #settled({ run, fresh }: Extract<Recorded<Run>, { kind: 'settled' }>): void {
    const { positions } = fresh
    for (let i = 0; i < positions.length && !run.isClosed; i++)
      run.move(positions[i]!, COMMITTED, 'its commit took effect')
    this.#funds.committed(run, fresh)
  }

  /** Handles the changes of a turn, and sends as many lines as may be sent. Returns whether more chunks are wanted. */
  endTurn({ runs, checksLimits }: TurnEnd): boolean {
    this.recorder.recorded(runs)
    for (const run of runs) this.#parkIfWaiting(run)
    if (checksLimits) this.#recheckLimits()
    let isLow = false
    let isUnsubmitted = false
    for (const lane of this.lanes.values()) {
      isLow ||= lane.isLow
      isUnsubmitted ||= lane.unsubmitted > 0
    }
    if (isUnsubmitted) this.batchApis.submit(this.runs.values())
    this.#servers.pump()
    return isLow
  }

  /** Stores that a batch has begun if no commit soon does; after a crash before that, its line is sent again. */
  #begin(run: Run, waitMs = BEGUN_MS): void {
    const { store, clock } = this.#options
    const { id } = run.batch
    if (this.#begun.has(id)) return
    this.#begun.add(id)
    clock.after(waitMs, () => {
      this.#begun.delete(id)
      // The commit that seals a chunk has said so; one that is parked, since a batch API has its lines, has not.
      if (this.#isDraining || run.unfinished === 0) return
      const begunAt = run.results.begunAt ?? clock.now()
      store
        .writeAsyncCommit((tx) => moveBatch(tx, id, 'in_progress', begunAt))
        .catch((error: unknown) => {
          this.#tryAgain(error)
          this.#begin(run, BEGUN_AGAIN_MS)
        })
    })
  }

  // How runs stop.

  #stop(run: Run, reason: RunStop | 'broken'): void {
    if (reason === 'batch_expired') this.#expire(run).catch((error: unknown) => this.lines.broken(run, error))
    else if (reason === 'broken') {
      this.#lose(run)
      this.#options.store
        .write((tx) => releaseChunk(tx, run.claim))
        .catch(() => this.#options.leases.suspect())
    } else if (reason === 'lost') this.#lose(run)
    else {
      this.lines.stop(run, reason, false)
      const abort = (): void => this.lines.stop(run, reason, true)
      if (reason === 'input_file_deleted' && !run.isClosed)
        run.alarms.push(this.#options.clock.after(DELETED_GRACE_MS, abort))
    }
  }

  /** Ends a run whose window has closed; its batch may have been cancelled before the end of the window. */
  async #expire(run: Run): Promise<void> {
    this.#statuses ??= this.#readExpired()
      .catch((error: unknown) => {
        this.#tryAgain(error)
        return new Map<string, string>()
      })
      .finally(() => {
        this.#statuses = null
      })
    const waited = await this.#statuses
    const reason = run.stopped ?? 'batch_expired'
    this.lines.stop(run, reason, true, reason === 'batch_expired' ? waited.get(run.batch.id) : undefined)
  }

  async #readExpired(): Promise<ReadonlyMap<string, string>> {
    const { store, clock, models } = this.#options
    const now = clock.now()
    const ids = new Set<string>()
    for (const { batch } of this.runs.values()) if (batch.expires_at <= now) ids.add(batch.id)
    const waited = await noteExpired(store, [...ids], now, models)
    await this.readStatuses()
    return waited
  }

  /** Applies changes by callers: cancels, pauses, deleted inputs, limits. To be called several times a second. */
  async readStatuses(): Promise<void> {
    const { store, clock } = this.#options
    for (const run of [...this.runs.values()]) this.#parkIfWaiting(run)
    const ids = new Set<string>()
    for (const run of this.runs.values()) if (run.stopped === null) ids.add(run.batch.id)
    if (ids.size === 0) return
    const rows = await readBatchStatuses(store.read, [...ids])
    const statuses = new Map(rows.map((row) => [row.id, row]))
    const runs = [...this.runs.values()]
    for (const run of runs) {
      const status = statuses.get(run.batch.id)
      const reason: StopReason | null = status ? stopReason({ ...run.batch, ...status }, clock.now()) : null
      if (reason && run.stopped === null) this.#stop(run, reason)
      if (status && status.line_cancels !== run.lineCancels) await this.#cancelLines(run, status.line_cancels)
    }
    for (const run of this.#pauses.refresh(runs, rows)) this.lines.placeAll(run, 'what is paused has changed')
    for (const run of runs) this.#parkIfWaiting(run)
    this.#recheckLimits(new Map(rows.map((row) => [row.project_id, row.limit_version])))
  }

  async #cancelLines(run: Run, lineCancels: number): Promise<void> {
    const { batch_id, idx } = run.claim
    const chunk = await readRow(this.#options.store.read, 'chunks', { batch_id, idx })
    run.lineCancels = lineCancels
    this.lines.cancel(run, chunk?.cancelled_lines ?? null)
    this.lines.placeAll(run, 'lines of it were cancelled')
  }

  /** Sends no further line; chunks that are opened from here on stop at once. */
  drain(): void {
    this.#isDraining = true
    for (const run of this.runs.values()) this.lines.stop(run, 'drained', false)
  }

  abort(): void {
    for (const run of this.runs.values()) this.lines.stop(run, 'drained', true)
    this.batchApis.abort()
  }

  get isIdle(): boolean {
    for (const run of this.runs.values()) if (!run.isIdle) return false
    return true
  }

  async close(): Promise<void> {
    const now = this.#options.clock.now()
    for (const run of this.runs.values()) {
      for (const cancel of run.alarms.splice(0)) cancel()
      run.results.trace?.end(now, { 'offpeak.chunk.end': 'drained' })
    }
    this.lines.end()
    for (const lane of this.lanes.values()) lane.close()
    const upstreams = [...this.lanes.values()].flatMap((lane) => lane.upstreams)
    await Promise.all(upstreams.map((upstream) => upstream.close()))
  }

  // How leases end.

  #parkIfWaiting(run: Run, facts: Partial<RunFacts> = {}): void {
    // A run that is being opened may have changed already; what is to be resumed of it is found first.
    if (!run.isIdle || this.runs.get(run.key) !== run) return
    const wait = waitOf(run, {
      isPaused: run.isPaused,
      followsItself: run.count(FOLLOWING) > 0 && this.lines.duplicates.followsOnlyItself(run),
      isChecked: false,
      isBlocked: false,
      ...facts,
    })
    // Chunks of a worker that stops are requeued with its session.
    if (wait === null || (wait === 'requeued' && this.#isDraining)) return
    // What its lines have cost is counted first.
    if (!this.lines.endKept(run)) this.#park(run, wait)
  }

  /** Parks runs that can send nothing, when no chunk can be opened though upstreams could take more lines. */
  makeRoom(): void {
    const now = this.#options.clock.steady()
    if (now < this.#makeRoomAt) return
    this.#makeRoomAt = now + MAKE_ROOM_MS
    this.parkBlocked()
  }

  /** Parks runs whose lines all wait for unavailable models; `accepts` selects the models. */
  parkBlocked(accepts: (model: string) => boolean = () => true): void {
    const now = this.#options.clock.now()
    for (const run of [...this.runs.values()]) {
      const isBlocked = (model: string): boolean =>
        accepts(model) && this.lanes.get(model)?.blocked(now, run.batch.id) === true
      if (run.isIdle && [...run.models].every(isBlocked)) this.#parkIfWaiting(run, { isBlocked: true })
    }
  }

  /** Ends the lease of a run after its finished lines are journalled. */
  #park(run: Run, wait: Wait): void {
    const { clock, random } = this.#options
    const { claim } = run
    const now = clock.now()
    const runAt = {
      requeued: () => now,
      paused: () => run.batch.expires_at,
      remote_batch: () => this.batchApis.lookAt(run),
      usage_limit: () => Math.min(this.limits.parkUntil(run), this.batchApis.lookAt(run)),
      model_unavailable: () => Math.ceil(now + BLOCKED_MS * (1 + random())),
    }[wait]()
    run.park()
    void this.recorder.park(run, async (tx, lease) => {
      // Its lease may be lost while the database cannot be reached.
      if (run.isClosed) return 'lost'
      let until = runAt
      if (wait === 'paused') until = await pausedUntil(tx, claim, [...run.models], runAt)
      else if (wait === 'usage_limit')
        until = await overLimitUntil(tx, claim.project_id, run.limitsSeen.version, runAt)
      // What a batch API answers is collected whatever model is available.
      const model = run.count(REMOTE) > 0 ? null : run.onlyModel
      const parked = await parkChunk(tx, lease, until - clock.now(), wait, model, storedTries(run))
      if (run.count(REMOTE) > 0) await wakeIfEnded(tx, claim)
      await wakeIfCancelled(tx, claim)
      return parked
    })
  }

  #lose(run: Run): void {
    this.recorder.untrack(run)
    run.results.trace?.end(this.#options.clock.now(), { 'offpeak.chunk.end': 'lost' })
    this.#close(run, 'lost')
  }

  #close(run: Run, how: RunEnd): void {
    if (run.isClosed) return
    if (how === 'lost') {
      const { batch_id: batch, idx: chunk } = run.claim
      this.#options.log.warn({ batch, chunk }, 'a chunk was taken over by another worker')
      this.lines.stop(run, 'lost', true)
      // Whatever else it was lost to, the database may still have it as this worker's.
      this.#options.leases.suspect()
    }
    const { bytes, results } = run
    // A request that was aborted, or a file for a batch API, may still be written from the bytes.
    const isUnread = how === 'sealed' && run.isIdle && !run.isAborted
    this.lines.close(run, how === 'parked')
    if (isUnread) {
      reuseBuffer(bytes)
      results.free()
    }
    // By the time the worker learns that it has parked the chunk, it may have claimed it again.
    if (this.runs.get(run.key) === run) this.runs.delete(run.key)
    this.#options.leases.forget(run.claim)
    if (how === 'sealed' && results.hasReservations) this.#wakeOverLimit(run.claim.project_id)
  }

  /** Wakes chunks that wait for a limit: a sealed chunk has released the rest of its reservation. */
  #wakeOverLimit(project_id: string): void {
    const { store, clock, turn } = this.#options
    const now = clock.steady()
    if (now - (this.#wokenAt.get(project_id) ?? Number.NEGATIVE_INFINITY) < RELEASED_MS) return
    this.#wokenAt.set(project_id, now)
    store
      .writeAsyncCommit((tx) => wakeOverLimit(tx, project_id))
      .then(
        () => turn.push({ kind: 'ready' }),
        (error: unknown) => this.#tryAgain(error),
      )
  }

  /** Gives up all runs: the session has expired, and with it all leases. */
  loseAll(): void {
    for (const run of [...this.runs.values()]) {
      run.results.trace?.end(this.#options.clock.now(), { 'offpeak.chunk.end': 'lost' })
      this.recorder.untrack(run)
      this.lines.stop(run, 'lost', true)
      this.lines.close(run, false)
      this.#options.leases.forget(run.claim)
    }
    this.runs.clear()
    this.#funds.closeAll()
  }

  #recheckLimits(versions?: ReadonlyMap<string, number>): void {
    this.limits
      .recheck(versions)
      .catch((error: unknown) => this.#options.log.error({ err: error }, 'limits could not be checked again'))
  }

  #tryAgain(error: unknown): void {
    this.#options.log.error({ err: error }, 'background work failed; it is tried again')
  }
}
