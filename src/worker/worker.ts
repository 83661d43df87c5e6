// The worker: opens a session, claims chunks, has their lines answered, records their results, and runs background tasks
// and maintenance beside that. It shuts down in order: it claims nothing more, lines in flight may finish within a limit,
// finished lines are committed, and unfinished work is requeued.
//
// Its parts are constructed from the last one that a line meets to the first, so each part gets only parts that exist.
import type { ResponseMemory } from '../backends/response-memory.ts'
import { EarlierAnswers } from '../dispatch/earlier-answers.ts'
import { Lane } from '../dispatch/lane.ts'
import { LimitGate } from '../dispatch/limits/limit-gate.ts'
import { ReservedFunds } from '../dispatch/limits/reserved-funds.ts'
import { COMMITTED, REMOTE } from '../dispatch/line-state.ts'
import { Lines } from '../dispatch/lines.ts'
import { LiveTraffic } from '../dispatch/live/live-server.ts'
import { Pauses } from '../dispatch/pauses.ts'
import { PromptLearner } from '../dispatch/prompt-learner.ts'
import type { AnswerChecks } from '../dispatch/reasks.ts'
import type { RetryPolicy } from '../dispatch/retry-policy.ts'
import { NO_SPILL, Route, type Spill } from '../dispatch/routes.ts'
import { chunkKey, type Run } from '../dispatch/run.ts'
import { Sender } from '../dispatch/sender.ts'
import { storedTries } from '../dispatch/tries.ts'
import { Turn, type TurnEnd } from '../dispatch/turn.ts'
import type { Observer, Upstream } from '../dispatch/upstream.ts'
import { type StopReason, stopReason } from '../domain/batch.ts'
import type { Clock } from '../domain/clock.ts'
import { reuseBuffer } from '../domain/free-buffer.ts'
import type { Model } from '../domain/model.ts'
import type { Tracing } from '../domain/tracing.ts'
import type { FinishRules } from '../lifecycle/batch.ts'
import { batchesAtRisk } from '../progress/completion.ts'
import { noteExpired } from '../progress/waiting-reason.ts'
import { RemoteExecutor } from '../remote/executor.ts'
import { Poller } from '../remote/poller.ts'
import { Recorder, type RunEnd } from '../results/recorder.ts'
import { moveBatch, readBatchStatuses } from '../store/batches.ts'
import { parkChunk, releaseChunk, storeLineTries, wakeOverLimit } from '../store/chunks.ts'
import { overLimitUntil } from '../store/limits.ts'
import { pausedUntil } from '../store/pauses.ts'
import { wakeIfEnded } from '../store/remote-batches.ts'
import type { BatchRow, TaskRow } from '../store/schema.ts'
import type { Ports } from '../store/store.ts'
import type { TaskHandler, TaskHandlers } from '../store/tasks.ts'
import { listLiveWorkers, reachableByOthers } from '../store/workers.ts'
import { ChunkReader } from './chunk-reader.ts'
import { Claimer, type ClaimerOptions } from './claimer.ts'
import { BlockedRuns, demandOf, ModelsElsewhere, overtakenWork } from './demand.ts'
import { EndingBatches } from './ending-batches.ts'
import { Leases, Session } from './leases.ts'
import { TaskRunner } from './task-runner.ts'
import { LaneReporter, WorkerReporter } from './worker-reporter.ts'

/** How often an idle worker looks for work without being woken. */
const POLL_MS = 500
/** How often the statuses of batches with open runs are read: cancelled, input deleted, paused. */
const STATUS_MS = 300
/** How long lines in flight may take after their input was deleted. */
const DELETED_MS = 5_000
const MAINTENANCE_MS = 1_000
/** How often unavailable models are reported, if the report has changed. */
const REPORT_MS = 1_000
/** How often it is asked whether batches at batch APIs are due to be looked at, and whether lines may go to them. */
const REMOTE_MS = 100
/** A worker that could not reach a model's servers for this long leaves its chunks to workers that can. */
const UNREACHABLE_MS = 5_000
/** How long a chunk waits for another worker that knows its model. */
const ELSEWHERE_MS = 500
/** How often it is reported how the worker and its model servers do. */
const WORKER_REPORT_MS = 2_000
/** How often the shares of servers that answer others too are looked at. */
const TRAFFIC_MS = 200
/** How often learned token sizes are shared with other workers. */
const LEARN_MS = 5_000
/** How often the batches at risk are determined. */
const RISK_MS = 1_000
/** How long to wait for a commit that says that a batch has begun, and after a failure to say so. */
const BEGUN_MS = 50
const BEGUN_AGAIN_MS = 1_000
/** How often at most chunks that wait for a limit are woken because a chunk has released its reservation. */
const RELEASED_MS = 1_000

export interface WorkerOptions extends Ports {
  /** For leases; the process's own by default. */
  steadyClock?: Pick<Clock, 'now'>
  random: () => number
  /** Changed in place when the worker learns how many bytes a token has. */
  models: Map<string, Model>
  upstreams: ReadonlyMap<string, readonly Upstream[]>
  /** By model, when lines spill over to higher tiers. */
  spills?: ReadonlyMap<string, Spill> | undefined
  retry: RetryPolicy
  rules: FinishRules
  leaseMs: number
  drainMs: number
  flushIntervalMs: number
  memoryBytes: number
  /** Limits the bytes of answers in memory; at most half of them stay once they are in journals. */
  answers: ResponseMemory
  /** How old an uncommitted blob may be when it is committed; the orphan sweep deletes older ones. */
  blobFreshMs: number
  tasks: TaskHandlers & { plan: TaskHandler }
  /** If given, lines of no other batch are sent or ended; `wake` looks for the batches that were added. */
  onlyBatches?: ReadonlySet<string> | undefined
  /** Whether the blob store fails, or does not answer. */
  blobsFail?: (() => boolean) | undefined
  /** Checks answers by the JSON Schemas of callers. */
  checks: AnswerChecks
  /** The maintenance tasks; every worker runs them about once a second. */
  maintenance: () => Promise<void>
  onEnded?: (batch: BatchRow) => void
  /** A task ended or was postponed. */
  onTask?: (task: TaskRow) => void
  /** For metrics. */
  observe?: Observer | undefined
  /** Without it, nothing is traced. */
  tracing?: Tracing | undefined
}

export class Worker {
  readonly #options: WorkerOptions
  readonly #turn: Turn
  readonly #session: Session
  readonly #lanes = new Map<string, Lane>()
  readonly #funds = new ReservedFunds()
  readonly #pauses: Pauses
  readonly #learner: PromptLearner
  /** The open runs, by batch and index. */
  readonly #runs = new Map<string, Run>()
  /** Batches of which a first line was sent, until that is stored. */
  readonly #begun = new Set<string>()
  readonly #laneReporter: LaneReporter
  readonly #workerReporter: WorkerReporter
  readonly #liveTraffic: LiveTraffic
  readonly #lines: Lines
  readonly #sender: Sender
  readonly #recorder: Recorder<Run>
  readonly #gate: LimitGate
  readonly #executor: RemoteExecutor
  readonly #poller: Poller
  readonly #blocked: BlockedRuns
  readonly #elsewhere: ModelsElsewhere
  readonly #leases: Leases
  readonly #claimer: Claimer
  readonly #endingBatches: EndingBatches
  readonly #tasks: TaskRunner
  readonly #loops: (() => void)[] = []
  /** As of the last time they were determined. */
  #atRisk: readonly string[] = []
  /** By project, when chunks that wait for a limit were woken last (Unix ms). */
  readonly #wokenAt = new Map<string, number>()
  #stopping = false
  #ended: Promise<void> | null = null
  /** A read of the statuses of batches for runs whose window has closed, and of what these waited for. */
  #statuses: Promise<ReadonlyMap<string, string>> | null = null
  #onDrained: (() => void) | null = null

  constructor(options: WorkerOptions) {
    this.#options = options
    const { store, sealed, clock, log, random, models, rules, answers, observe, retry, onlyBatches } = options
    const runs = (): Iterable<Run> => this.#runs.values()
    const turn = new Turn(clock)
    const session = new Session({
      store,
      clock,
      steadyClock: options.steadyClock,
      log,
      leaseMs: options.leaseMs,
      onLost: () => this.#onSessionLost(),
      onRenewed: () => turn.schedule(),
    })
    const sessionId = (): string => session.id
    const lanes = this.#lanes
    const funds = this.#funds
    const pauses = new Pauses(store)
    const isPaused = (run: Run, model: string): boolean => pauses.covers(run, model)
    const learner = new PromptLearner(store, models)
    const workerReporter = new WorkerReporter({
      ...{ store, clock, sessionId, lanes, onlyBatches },
      status: () => this.status,
    })
    const attempted: Observer['attempted'] = (upstream, result, durationMs) => {
      workerReporter.attempted(upstream, result, durationMs)
      observe?.attempted(upstream, result, durationMs)
    }

    // The ways of a line: where it goes, who sends it, how it is recorded.
    const lines = new Lines({
      ...{ clock, random, log, models, retry, lanes, turn, funds, isPaused, learner, answers },
      checks: options.checks,
      earlier: new EarlierAnswers({
        answers,
        ...{ store, sealed, clock, log, sessionId },
        openRun: (batch_id, idx) => this.#runs.get(chunkKey(batch_id, idx)),
      }),
      onBroken: (run) => this.#giveUp(run),
      observe: { attempted, retried: (upstream) => observe?.retried(upstream) },
    })
    const onBegun = (run: Run): void => this.#begin(run)
    const expire = (run: Run): void => void this.#expire(run)
    const sender = new Sender({
      ...{ clock, log, lanes, lines, turn, onBegun, expire },
      maySend: () => answers.hasRoom && session.isCertain,
      observe: { attempted },
    })
    answers.onRoom = () => turn.schedule()
    const recorder = new Recorder<Run>({
      ...{ store, sealed, clock, log, rules, answers, observe },
      steadyClock: options.steadyClock,
      flushIntervalMs: options.flushIntervalMs,
      blobFreshMs: options.blobFreshMs,
      onClosed: (run, how) => this.#onClosed(run, how),
      onSettled: (run, fresh) => {
        const { positions } = fresh
        for (let i = 0; i < positions.length && !run.isClosed; i++)
          run.move(positions[i]!, COMMITTED, 'its commit took effect')
        funds.committed(run, fresh)
      },
      onCommitted: () => {
        if (funds.isLow || gate.isAwaited) this.#recheckLimits()
      },
      onRejected: (run) => lines.stop(run, 'lost', true),
      onEnded: (batch) => this.#onBatchEnded(batch),
    })
    const settle = (some: readonly Run[]): Promise<void> => recorder.settle(some)

    // What keeps lines back.
    const gate = new LimitGate({
      ...{ store, clock, random, models, lines, funds, settle, runs },
      requeue: (run) => this.#requeue(run),
      park: (run, runAt) => this.#park(run, Math.min(runAt, executor.lookAt(run)), 'usage_limit'),
      onLost: (run) => this.#lose(run),
    })
    const executor = new RemoteExecutor({
      ...{ store, clock, log, random, lanes, lines, turn, funds, answers, isPaused, onBegun, settle, expire },
      isCertain: () => session.isCertain,
      isOverLimit: (run, day) => gate.isOver(run, day),
      isAtRisk: (batch_id) => this.#atRisk.includes(batch_id),
      outagePatienceMs: retry.outage_patience_ms,
      observe: { attempted },
      park: (run, runAt) => this.#park(run, runAt, 'remote_batch'),
    })
    const blocked = new BlockedRuns({
      ...{ clock, random, lanes, runs },
      park: (run, runAt) => this.#park(run, runAt, 'model_unavailable'),
    })

    // Where chunks come from, and where they end.
    const elsewhere = new ModelsElsewhere({ store, clock, sessionId, lanes })
    const leases = new Leases({ store, clock, sessionId })
    const reader = new ChunkReader({ store, sealed, clock, log, models })
    const claimer = new Claimer({
      ...{ store, reader, clock, log, leases, sessionId, runs, onlyBatches },
      memoryBytes: options.memoryBytes,
      demand: () => {
        const demand = demandOf(lanes, clock.now())
        demand.blocked.push(...elsewhere.models())
        return demand
      },
      atRisk: () => (onlyBatches ? this.#atRisk.filter((id) => onlyBatches.has(id)) : this.#atRisk),
      overtaken: () => overtakenWork(runs(), lanes),
      requeue: (run) => this.#requeue(run),
      paused: () => gate.pausedProjects(),
      prepare: (run, limitVersion) => this.#prepare(run, limitVersion),
      onCrowded: () => blocked.park(),
      onOpened: (run) => this.#onOpened(run),
      // This worker may claim its chunk again, and the attempts of its lines are known nowhere else.
      onNotOpened: (run) => lines.close(run, true),
      tracing: options.tracing,
    })
    const endingBatches = new EndingBatches({
      ...{ store, sealed, reader, clock, log, rules, leases, models, observe, onlyBatches },
      plan: options.tasks.plan,
      onEnded: (batch) => this.#onBatchEnded(batch),
      restoreTries: (run) => this.#lines.restoreTries(run),
    })
    const tasks = new TaskRunner({
      ...{ store, clock, log, leases, onlyBatches },
      handlers: options.tasks,
      onDone: (task) => {
        options.onTask?.(task)
        claimer.look()
      },
    })
    turn.begin((end) => this.#endTurn(end))

    this.#turn = turn
    this.#session = session
    this.#pauses = pauses
    this.#learner = learner
    this.#workerReporter = workerReporter
    this.#laneReporter = new LaneReporter({ store, clock, sessionId, lanes })
    this.#liveTraffic = new LiveTraffic({
      clock,
      lanes,
      async reports() {
        const workers = await listLiveWorkers(store.read)
        return workers.flatMap(({ id, report }) => (id === session.id || report === null ? [] : [report]))
      },
    })
    this.#lines = lines
    this.#sender = sender
    this.#recorder = recorder
    this.#gate = gate
    this.#executor = executor
    this.#poller = new Poller({
      ...{ store, clock, log, rows: executor.rows, onlyBatches },
      onReady: () => claimer.look(),
    })
    this.#blocked = blocked
    this.#elsewhere = elsewhere
    this.#leases = leases
    this.#claimer = claimer
    this.#endingBatches = endingBatches
    this.#tasks = tasks
    this.#setLanes(options.upstreams, options.spills ?? new Map())
  }

  /** For metrics and readiness. */
  get status(): { openChunks: number; storesFailing: boolean } {
    const { blobsFail = () => false } = this.#options
    return { openChunks: this.#runs.size, storesFailing: this.#recorder.failingSince !== null || blobsFail() }
  }

  /** For metrics and waiting reasons. */
  get lanes(): ReadonlyMap<string, Lane> {
    return this.#lanes
  }

  async start(): Promise<void> {
    const { store, clock, models, maintenance } = this.#options
    await this.#session.open()
    // First, because the leases of a crashed worker may have expired.
    this.#loop(MAINTENANCE_MS, maintenance, 0)
    this.#loop(STATUS_MS, () => this.#readBatchStatuses())
    this.#loop(POLL_MS, async () => this.wake())
    this.#loop(REPORT_MS, async () => {
      for (const lane of this.#lanes.values()) lane.updateServers()
      await this.#laneReporter.report()
      if (this.#workerReporter.isOverdue) await this.#workerReporter.report()
      await this.#leaveToOthers()
    })
    this.#loop(WORKER_REPORT_MS, () => this.#workerReporter.report(), 0)
    this.#loop(
      REMOTE_MS,
      async () => {
        this.#lines.review(this.#runs.values())
        this.#turn.schedule()
        await this.#poller.look()
      },
      0,
    )
    this.#loop(TRAFFIC_MS, async () => {
      if (await this.#liveTraffic.tick()) this.#turn.schedule()
    })
    this.#loop(LEARN_MS, () => this.#learner.share(), 0)
    this.#loop(RISK_MS, async () => {
      this.#atRisk = await batchesAtRisk(store.read, clock.now(), models)
      const atRisk = new Set(this.#atRisk)
      this.#lines.atRisk = atRisk
      for (const lane of this.#lanes.values()) lane.prioritize(atRisk)
    })
    this.wake()
  }

  /** Takes up other upstreams; lines in flight end where they are. */
  setUpstreams(
    upstreams: ReadonlyMap<string, readonly Upstream[]>,
    spills: ReadonlyMap<string, Spill>,
  ): void {
    this.#options.observe?.configured?.(upstreams)
    this.#setLanes(upstreams, spills)
    this.#lines.modelsChanged([...this.#runs.values()])
    this.#gate.requeueUnderpriced()
    this.#turn.schedule()
    this.#claimer.look()
  }

  #setLanes(upstreams: ReadonlyMap<string, readonly Upstream[]>, spills: ReadonlyMap<string, Spill>): void {
    for (const [model, some] of upstreams) {
      const route = new Route(some, spills.get(model) ?? NO_SPILL)
      const lane = this.#lanes.get(model)
      if (lane) lane.route = route
      else {
        const made = new Lane(model, route, this.#options.clock, () => this.#turn.schedule())
        made.prioritize(new Set(this.#atRisk))
        this.#lanes.set(model, made)
      }
    }
    for (const [model, lane] of this.#lanes) {
      if (upstreams.has(model)) continue
      lane.close()
      this.#lanes.delete(model)
    }
  }

  /** Looks for new work. */
  wake(): void {
    if (this.#stopping) return
    this.#endingBatches.look()
    this.#tasks.look()
    if (this.#recorder.failingSince === null) this.#claimer.look()
    if (this.#runs.size > 0) this.#readBatchStatuses().catch((error: unknown) => this.#tryAgain(error))
  }

  /** Shuts down; every call resolves when that is done. */
  stop(): Promise<void> {
    this.#ended ??= this.#end()
    return this.#ended
  }

  async #end(): Promise<void> {
    const { clock, log } = this.#options
    this.#stopping = true
    for (const cancel of this.#loops) cancel()
    // Stops sending at once, before claims and tasks under way have ended.
    const drained = this.#drain()
    await Promise.all([
      this.#claimer.close(),
      this.#endingBatches.close(),
      this.#tasks.close(),
      this.#poller.close(),
      drained,
    ])
    await this.#recorder.flush()
    await this.#learner.share().catch((error: unknown) => {
      log.warn({ err: error }, 'learned token sizes could not be stored')
    })
    await this.#session.close(async (tx) => {
      for (const run of this.#runs.values()) {
        const tries = storedTries(run, true)
        if (tries !== run.claim.line_tries) await storeLineTries(tx, run.claim, tries)
      }
    })
    for (const run of this.#runs.values()) {
      for (const cancel of run.alarms.splice(0)) cancel()
      run.results.trace?.end(clock.now(), { 'offpeak.chunk.end': 'drained' })
    }
    this.#lines.end()
    for (const lane of this.#lanes.values()) lane.close()
    const upstreams = [...this.#lanes.values()].flatMap((lane) => lane.upstreams)
    await Promise.all(upstreams.map((upstream) => upstream.close()))
  }

  #loop(everyMs: number, work: () => Promise<void>, firstMs = everyMs): void {
    const { clock, random } = this.#options
    const slot = this.#loops.length
    const arm = (waitMs: number): void => {
      this.#loops[slot] = clock.after(waitMs * (0.75 + random() / 2), () => {
        work()
          .catch((error: unknown) => this.#tryAgain(error))
          .finally(() => {
            if (!this.#stopping) arm(everyMs)
          })
      })
    }
    arm(firstMs)
  }

  #tryAgain(error: unknown): void {
    this.#options.log.error({ err: error }, 'background work failed; it is tried again')
  }

  /** What the answers of a turn have made possible, in this order. */
  #endTurn({ runs, checksLimits }: TurnEnd): void {
    this.#recorder.recorded(runs)
    for (const run of runs) this.#parkIfDone(run)
    if (checksLimits) this.#recheckLimits()
    let isLow = false
    let isUnsubmitted = false
    for (const lane of this.#lanes.values()) {
      isLow ||= lane.isLow
      isUnsubmitted ||= lane.unsubmitted > 0
    }
    if (isUnsubmitted) this.#executor.submit(this.#runs.values())
    this.#sender.pump()
    if (isLow && !this.#stopping) this.#claimer.refill()
    this.#checkDrained()
  }

  /** A chunk was claimed. What it returns means: no line of it can be sent before then (Unix ms). */
  async #prepare(run: Run, limitVersion: number): ReturnType<ClaimerOptions['prepare']> {
    this.#lines.adopt(run)
    await this.#executor.attach(run)
    if (await this.#elsewhere.isBetterFor(run, this.#executor.rows.of(run)))
      return { retryAt: this.#options.clock.now() + ELSEWHERE_MS, reason: 'model_unavailable' }
    const postponed = this.#stopReason(run) === null ? await this.#gate.admit(run, limitVersion) : null
    // Last, because a reservation may take its time.
    await this.#pauses.loadFor(run.batch.id)
    // What a batch API has answered is settled first: its reservation may be what fills the limit.
    return this.#executor.rows.of(run).length > 0 ? null : postponed
  }

  #onOpened(run: Run): void {
    const { clock } = this.#options
    const { deadline } = run.claim
    run.results.trace?.enter('send', clock.now())
    this.#runs.set(run.key, run)
    run.alarms.push(clock.after(deadline - clock.now(), () => void this.#expire(run)))
    this.#funds.open(run)
    this.#recorder.track(run)
    const reason = this.#stopReason(run)
    if (reason === 'batch_expired') void this.#expire(run)
    else if (reason) this.#stop(run, reason)
    else if (this.#stopping) this.#lines.stop(run, 'drained', false)
    else this.#lines.open(run)
    this.#gate.requeueUnderpriced([run])
    this.#executor.opened(run)
    this.#turn.touch(run)
  }

  /**
   * The first line of a run was sent, and its batch was queued. Usually the commit of the first finished lines says that
   * the batch has begun; this does where no line finishes soon. After a crash before that, the line is sent again.
   */
  #begin(run: Run, waitMs = BEGUN_MS): void {
    const { store, clock } = this.#options
    const { id } = run.batch
    if (this.#begun.has(id)) return
    this.#begun.add(id)
    clock.after(waitMs, () => {
      this.#begun.delete(id)
      // The commit that seals a chunk has said so; one that is parked, since a batch API has its lines, has not.
      if (this.#stopping || run.unfinished === 0) return
      const begunAt = run.results.begunAt ?? clock.now()
      store
        .writeAsyncCommit((tx) => moveBatch(tx, id, 'in_progress', begunAt))
        .catch((error: unknown) => {
          this.#tryAgain(error)
          this.#begin(run, BEGUN_AGAIN_MS)
        })
    })
  }

  /** Lines in flight may finish; if their input was deleted, only for DELETED_MS, because it is destroyed after them. */
  #stop(run: Run, reason: Exclude<StopReason, 'batch_expired'>): void {
    this.#lines.stop(run, reason, false)
    if (reason !== 'input_file_deleted' || run.isClosed) return
    run.alarms.push(this.#options.clock.after(DELETED_MS, () => this.#lines.stop(run, reason, true)))
  }

  /** Its window has closed, so what is in flight is aborted; the batch may have been cancelled before that. */
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
    this.#lines.stop(run, reason, true, reason === 'batch_expired' ? waited.get(run.batch.id) : undefined)
  }

  async #readExpired(): Promise<ReadonlyMap<string, string>> {
    const { store, clock, models } = this.#options
    const now = clock.now()
    const ids = new Set<string>()
    for (const { claim, batch } of this.#runs.values()) if (claim.deadline <= now) ids.add(batch.id)
    const waited = await noteExpired(store, [...ids], now, models)
    await this.#readBatchStatuses()
    return waited
  }

  #stopReason(run: Run): StopReason | null {
    return stopReason(run.batch, this.#options.clock.now())
  }

  /** Parks a run of which nothing is under way until `runAt` (Unix ms), after its finished lines are journalled. */
  #park(run: Run, runAt: number, reason: string): void {
    // A run that is being opened may have changed already; what is to be resumed of it is found first.
    if (this.#runs.get(run.key) !== run) return
    if (!run.isIdle || run.isParking || run.isClosed) return
    // What its lines have cost is counted first.
    if (this.#lines.takeKept(run)) return
    const { clock } = this.#options
    run.park()
    void this.#recorder.park(run, async (tx, lease) => {
      // Its lease may be lost while the database cannot be reached.
      if (run.isClosed) return 'lost'
      const until =
        reason === 'paused'
          ? await pausedUntil(tx, run.claim, [...run.models], runAt)
          : reason === 'usage_limit'
            ? await overLimitUntil(tx, run.claim.project_id, run.limitsSeen.version, runAt)
            : runAt
      const afterMs = until - clock.now()
      // What a batch API answers is collected whatever model is available.
      const waitsForRemote = reason === 'remote_batch' || run.count(REMOTE) > 0
      const model = waitsForRemote ? null : run.onlyModel
      const parked = await parkChunk(tx, lease, afterMs, reason, model, storedTries(run))
      if (run.count(REMOTE) > 0) await wakeIfEnded(tx, run.claim)
      return parked
    })
  }

  /** Sends no further line of the run, which is parked when nothing of it is in flight, and claimed again at once. */
  #requeue(run: Run): void {
    this.#lines.holdForCheck(run)
    this.#lines.stop(run, 'drained', false)
  }

  #parkIfDone(run: Run): void {
    this.#executor.parkIfIdle(run)
    const isRequeued = run.stopped === 'drained' && !this.#stopping
    if (isRequeued && run.unfinished > 0) this.#park(run, this.#options.clock.now(), 'requeued')
  }

  /** The lease of the run is lost. */
  #lose(run: Run): void {
    this.#recorder.untrack(run)
    run.results.trace?.end(this.#options.clock.now(), { 'offpeak.chunk.end': 'lost' })
    this.#onClosed(run, 'lost')
  }

  /** The state of one of its lines is wrong: the next claim starts from what is committed. */
  #giveUp(run: Run): void {
    const { store } = this.#options
    this.#lose(run)
    store.write((tx) => releaseChunk(tx, run.claim)).catch(() => this.#leases.suspect())
  }

  #onClosed(run: Run, how: RunEnd): void {
    if (run.isClosed) return
    if (how === 'lost') {
      const { batch_id: batch, idx: chunk } = run.claim
      this.#options.log.warn({ batch, chunk }, 'a chunk was taken over by another worker')
      this.#lines.stop(run, 'lost', true)
      // Whatever else it was lost to, the database may still have it as this worker's.
      this.#leases.suspect()
    }
    const { bytes, results } = run
    // A request that was aborted, or a file for a batch API, may still be written from the bytes.
    const isUnread = how === 'sealed' && run.isIdle && !run.isAborted
    this.#lines.close(run, how === 'parked')
    if (isUnread) {
      reuseBuffer(bytes)
      results.free()
    }
    // By the time the worker learns that it has parked the chunk, it may have claimed it again.
    if (this.#runs.get(run.key) === run) this.#runs.delete(run.key)
    if (how === 'sealed' && run.results.hasReservations) this.#onReleased(run.claim.project_id)
    this.#checkDrained()
    if (!this.#stopping) this.#claimer.refill()
  }

  /** A sealed chunk has released what is left of its reservation: chunks that wait for a limit may fit now. */
  #onReleased(project_id: string): void {
    const { store, clock } = this.#options
    const now = clock.now()
    const sinceMs = now - (this.#wokenAt.get(project_id) ?? Number.NEGATIVE_INFINITY)
    if (sinceMs >= 0 && sinceMs < RELEASED_MS) return
    this.#wokenAt.set(project_id, now)
    store
      .writeAsyncCommit((tx) => wakeOverLimit(tx, project_id))
      .then(
        () => this.#claimer.look(),
        (error: unknown) => this.#tryAgain(error),
      )
  }

  #onSessionLost(): void {
    for (const run of [...this.#runs.values()]) {
      run.results.trace?.end(this.#options.clock.now(), { 'offpeak.chunk.end': 'lost' })
      this.#recorder.untrack(run)
      this.#lines.stop(run, 'lost', true)
      this.#lines.close(run, false)
    }
    this.#runs.clear()
    this.#funds.closeAll()
    this.#tasks.abandon()
    this.wake()
  }

  #onBatchEnded(batch: BatchRow): void {
    this.#options.onEnded?.(batch)
    // Its event may have to be delivered.
    this.#tasks.look()
  }

  /** A broken network of one worker must not delay a batch that another worker could run. */
  async #leaveToOthers(): Promise<void> {
    const { store } = this.#options
    const models = this.#runs.size === 0 ? [] : this.#laneReporter.unavailableFor(UNREACHABLE_MS)
    if (models.length > 0)
      this.#blocked.leaveToOthers(await reachableByOthers(store.read, this.#session.id, models))
  }

  #recheckLimits(versions?: ReadonlyMap<string, number>): void {
    this.#gate
      .recheck(versions)
      .catch((error: unknown) => this.#options.log.error({ err: error }, 'limits could not be checked again'))
  }

  async #readBatchStatuses(): Promise<void> {
    const { store, clock } = this.#options
    for (const run of [...this.#runs.values()]) this.#parkIfDone(run)
    const ids = new Set<string>()
    for (const run of this.#runs.values()) if (run.stopped === null) ids.add(run.batch.id)
    if (ids.size === 0) return
    const rows = await readBatchStatuses(store.read, [...ids])
    const statuses = new Map(rows.map((row) => [row.id, row]))
    const runs = [...this.#runs.values()]
    for (const run of runs) {
      const status = statuses.get(run.batch.id)
      const reason = status && stopReason({ ...run.batch, ...status }, clock.now())
      if (!reason || run.stopped !== null) continue
      if (reason === 'batch_expired') void this.#expire(run)
      else this.#stop(run, reason)
    }
    for (const run of await this.#pauses.refresh(runs, rows, this.#lines))
      this.#park(run, run.claim.deadline, 'paused')
    this.#recheckLimits(new Map(rows.map((row) => [row.project_id, row.limit_version])))
  }

  /** Lines in flight may finish for `drainMs`; then they are aborted. */
  async #drain(): Promise<void> {
    const { clock, drainMs } = this.#options
    for (const run of this.#runs.values()) this.#lines.stop(run, 'drained', false)
    if (this.#isDrained()) return
    await new Promise<void>((resolve) => {
      this.#onDrained = resolve
      const cancel = clock.after(drainMs, () => {
        for (const run of this.#runs.values()) this.#lines.stop(run, 'drained', true)
        this.#executor.abort()
      })
      this.#loops.push(cancel)
    })
    this.#loops.pop()?.()
  }

  #isDrained(): boolean {
    for (const run of this.#runs.values()) if (!run.isIdle) return false
    return true
  }

  #checkDrained(): void {
    if (this.#onDrained && this.#isDrained()) this.#onDrained()
  }
}
