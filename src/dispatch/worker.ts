// The worker: holds a session, takes up chunks, sends their lines, records what comes back, and does the
// other background work (tasks, chores) beside it. It ends in order: no new claims, lines in flight finish
// within a limit, what is finished is committed, what is not is given back.
import type { ResponseMemory } from '../backends/response-memory.ts'
import type { SealedBlobs } from '../blobs/sealed.ts'
import { type StopReason, stopReason } from '../domain/batch.ts'
import type { Clock } from '../domain/clock.ts'
import type { Log } from '../domain/log.ts'
import type { Model } from '../domain/model.ts'
import { batchesAtRisk } from '../progress/deadline-risk.ts'
import type { FinishRules } from '../results/finish.ts'
import type { OpenChunk } from '../results/open-chunk.ts'
import { Recorder } from '../results/recorder.ts'
import { readBatchStatuses } from '../store/batches.ts'
import type { BatchRow, TaskRow } from '../store/schema.ts'
import type { Store } from '../store/store.ts'
import type { TaskHandler, TaskHandlers } from '../store/tasks.ts'
import { BatchStarts } from './batch-starts.ts'
import { BlockedChunks } from './claim/blocked-chunks.ts'
import { ChunkReader } from './claim/chunk-reader.ts'
import { Claimer } from './claim/claimer.ts'
import { Closer } from './claim/closer.ts'
import { LimitGate } from './limits/limit-gate.ts'
import { ReservedFunds } from './limits/reserved-funds.ts'
import type { Observer } from './observer.ts'
import { LaneReporter } from './send/lane-reporter.ts'
import { PromptLearner } from './send/prompt-learner.ts'
import type { RetryPolicy } from './send/retry-policy.ts'
import { Sender } from './send/sender.ts'
import type { Upstream } from './send/upstream.ts'
import { Session } from './session.ts'
import { TaskRunner } from './task-runner.ts'

/** How often an idle worker looks for work that nobody woke it for. */
const POLL_MS = 500
/** How often the standing of the batches at hand is read: cancelled, input deleted. */
const STATUS_MS = 300
/** How long lines in flight may take whose input was deleted. */
const DELETED_MS = 5_000
const MAINTENANCE_MS = 1_000
/** How often models that cannot be reached are reported, when that has changed. */
const REPORT_MS = 1_000
/** How often it is shared what was learned of models. */
const LEARN_MS = 5_000
/** How often it is told which batches may miss their deadline. */
const RISK_MS = 1_000

export interface WorkerOptions {
  store: Store
  sealed: SealedBlobs
  clock: Clock
  log: Log
  random: () => number
  /** Changed in place, as the worker learns of them. */
  models: Map<string, Model>
  upstreams: ReadonlyMap<string, readonly Upstream[]>
  retry: RetryPolicy
  rules: FinishRules
  leaseMs: number
  drainMs: number
  flushIntervalMs: number
  memoryBytes: number
  /** Bytes of answers in memory; half of them at most are kept once they are in journals. */
  answers: ResponseMemory
  /** How old blobs may be when they are committed: the sweep takes older ones that nobody has committed. */
  blobFreshMs: number
  tasks: TaskHandlers & { plan: TaskHandler }
  /** AdminCommands, run about once a second by every worker. */
  maintenance: () => Promise<void>
  onEnded?: (batch: BatchRow) => void
  /** A task has left this worker, done or put off. */
  onTask?: (task: TaskRow) => void
  /** For metrics. */
  observe?: Observer | undefined
}

export class Worker {
  readonly #options: WorkerOptions
  readonly #session: Session
  readonly #sender: Sender
  readonly #recorder: Recorder
  readonly #starts: BatchStarts
  readonly #learner: PromptLearner
  readonly #funds = new ReservedFunds()
  readonly #gate: LimitGate
  readonly #blocked: BlockedChunks
  readonly #reporter: LaneReporter
  readonly #claimer: Claimer
  readonly #closer: Closer
  readonly #tasks: TaskRunner
  readonly #open = new Map<OpenChunk, () => void>()
  readonly #loops: (() => void)[] = []
  /** Batches that may miss their deadline, as of the last look. */
  #atRisk: readonly string[] = []
  #stopping = false
  #ended: Promise<void> | null = null
  #onQuiet: (() => void) | null = null

  constructor(options: WorkerOptions) {
    this.#options = options
    const { store, sealed, clock, log } = options
    this.#learner = new PromptLearner(store, options.models)
    this.#session = new Session({
      store,
      clock,
      log,
      leaseMs: options.leaseMs,
      onLost: () => this.#loseAll(),
      onRenewed: () => this.#sender.pump(),
    })
    this.#sender = new Sender({
      clock,
      random: options.random,
      log,
      models: options.models,
      upstreams: options.upstreams,
      retry: options.retry,
      maySend: () => this.#session.isCertain && options.answers.hasRoom,
      onBegun: (chunk) => this.#starts.begun(chunk),
      funds: this.#funds,
      onShort: (chunk) => {
        if (this.#gate.short(chunk)) this.#recheckLimits()
      },
      onOutcome: (chunk, outcome) => {
        this.#funds.ended(chunk, outcome)
        this.#learner.ended(chunk, outcome)
        this.#recorder.record(chunk, outcome)
        if (this.#sender.isBelowLowWaterMark(outcome.model)) this.#claimer.refill()
      },
      onIdle: () => this.#checkQuiet(),
      observe: options.observe,
    })
    this.#starts = new BatchStarts({ store, clock, log, isOpen: (chunk) => this.#open.has(chunk) })
    this.#recorder = new Recorder({
      ...options,
      onClosed: (chunk, how) => this.#close(chunk, how),
      onSettled: (chunk, outcomes) => this.#funds.committed(chunk, outcomes),
      onCommitted: () => {
        if (this.#funds.isLow) return this.#recheckLimits()
        for (const chunk of this.#open.keys()) if (chunk.waiting.size > 0) return this.#recheckLimits()
      },
      onRefused: (chunk) => this.#sender.stop(chunk, 'lost', true),
      onEnded: (batch) => this.#onEnded(batch),
    })
    options.answers.onRoom = () => this.#sender.pump()
    this.#gate = new LimitGate({
      store,
      clock,
      random: options.random,
      sender: this.#sender,
      funds: this.#funds,
      settle: (chunks) => this.#recorder.settle(chunks),
      openChunks: () => this.#open.keys(),
      park: (chunk, run_at) => void this.#recorder.park(chunk, run_at, 'usage_limit'),
      onLost: (chunk) => {
        this.#recorder.untrack(chunk)
        this.#close(chunk, 'lost')
      },
    })
    this.#blocked = new BlockedChunks({
      clock,
      random: options.random,
      sender: this.#sender,
      openChunks: () => this.#open.keys(),
      park: (chunk, run_at, model) =>
        void this.#recorder.park(chunk, run_at, 'model_unavailable', model ?? undefined),
    })
    this.#reporter = new LaneReporter({
      store,
      clock,
      sessionId: () => this.#session.id,
      lanes: () => this.#sender.lanes,
    })
    const reader = new ChunkReader({ store, sealed, clock, log, models: options.models })
    this.#claimer = new Claimer({
      store,
      reader,
      clock,
      log,
      memoryBytes: options.memoryBytes,
      sessionId: () => this.#session.id,
      demand: () => this.#sender.demand(),
      atRisk: () => this.#atRisk,
      onCrowded: () => this.#blocked.park(),
      openChunks: () => this.#open.keys(),
      admit: async (chunk, version) => {
        const rest = this.#stopReason(chunk) === null ? await this.#gate.admit(chunk, version) : null
        // Claimed under a session that has ended: it is not going to be opened.
        if (chunk.claim.worker_id !== this.#session.id) this.#funds.close(chunk)
        return rest
      },
      paused: () => this.#gate.pausedProjects(),
      onOpened: (chunk) => this.#take(chunk),
    })
    this.#closer = new Closer({
      store,
      sealed,
      reader,
      clock,
      log,
      rules: options.rules,
      sessionId: () => this.#session.id,
      leased: () => this.#claimer.leased(),
      plan: options.tasks.plan,
      onEnded: (batch) => this.#onEnded(batch),
      onDoubt: () => this.#claimer.doubt(),
      observe: options.observe,
    })
    this.#tasks = new TaskRunner({
      store,
      clock,
      log,
      handlers: options.tasks,
      sessionId: () => this.#session.id,
      onDone: (task) => {
        options.onTask?.(task)
        this.#claimer.look()
      },
    })
  }

  /** How it stands, for metrics. */
  get standing(): { open_chunks: number; stores_failing: boolean } {
    return { open_chunks: this.#open.size, stores_failing: this.#recorder.failingSince !== null }
  }

  /** What the lanes look like: for metrics and for saying why a batch waits. */
  get lanes(): Sender['lanes'] {
    return this.#sender.lanes
  }

  async start(): Promise<void> {
    const { store, clock } = this.#options
    await this.#session.open()
    // Before anything else: what a worker held that has died just now may be free already.
    this.#loop(MAINTENANCE_MS, () => this.#options.maintenance(), 0)
    this.#loop(STATUS_MS, () => this.#readBatchStatuses())
    this.#loop(POLL_MS, async () => this.wake())
    this.#loop(REPORT_MS, () => this.#reporter.report())
    this.#loop(LEARN_MS, () => this.#learner.share(), 0)
    this.#loop(RISK_MS, async () => {
      this.#atRisk = await batchesAtRisk(store.read, clock.now())
      this.#sender.prioritize(this.#atRisk)
    })
    this.wake()
  }

  /** There may be something new to do. */
  wake(): void {
    if (this.#stopping) return
    this.#closer.look()
    this.#tasks.look()
    if (this.#recorder.failingSince === null) this.#claimer.look()
    if (this.#open.size > 0) void this.#readBatchStatuses()
  }

  /** Resolves when it has ended, whoever asked first. */
  stop(): Promise<void> {
    this.#ended ??= this.#end()
    return this.#ended
  }

  async #end(): Promise<void> {
    this.#stopping = true
    for (const cancel of this.#loops) cancel()
    // Nothing more is sent from here on, whatever the claims and tasks that are just being made still wait for.
    const drained = this.#drain()
    await Promise.all([this.#claimer.close(), this.#closer.close(), this.#tasks.close(), drained])
    await Promise.all([this.#recorder.flush(), this.#starts.close()])
    await this.#learner.share().catch((error: unknown) => {
      this.#options.log.warn({ err: error }, 'what was learned of prompts could not be stored')
    })
    await this.#session.close()
    for (const cancelAlarm of this.#open.values()) cancelAlarm()
    this.#sender.close()
    const upstreams = [...this.#options.upstreams.values()].flat()
    await Promise.all(upstreams.map((upstream) => upstream.backend.close()))
  }

  #loop(everyMs: number, work: () => Promise<void>, firstMs = everyMs): void {
    const { clock, random, log } = this.#options
    const slot = this.#loops.length
    const arm = (waitMs: number): void => {
      this.#loops[slot] = clock.after(waitMs * (0.75 + random() / 2), () => {
        work()
          .catch((error: unknown) => log.error({ err: error }, 'background work failed; it is tried again'))
          .finally(() => {
            if (!this.#stopping) arm(everyMs)
          })
      })
    }
    arm(firstMs)
  }

  #take(chunk: OpenChunk): void {
    const { clock } = this.#options
    const leftMs = chunk.claim.deadline - clock.now()
    const cancelAlarm = clock.after(leftMs, () => this.#sender.stop(chunk, 'batch_expired', true))
    this.#open.set(chunk, cancelAlarm)
    this.#funds.open(chunk)
    this.#recorder.track(chunk)
    const reason = this.#stopReason(chunk)
    if (reason) this.#stop(chunk, reason)
    else if (this.#stopping) this.#sender.stop(chunk, 'drained', false)
    else this.#sender.start(chunk)
  }

  /** Lines in flight may finish; those whose input was deleted not for long, for it is destroyed only after them. */
  #stop(chunk: OpenChunk, reason: StopReason): void {
    this.#sender.stop(chunk, reason, reason === 'batch_expired')
    if (reason !== 'input_file_deleted' || !this.#open.has(chunk)) return
    const cancelAlarm = this.#open.get(chunk)
    const cancelAbort = this.#options.clock.after(DELETED_MS, () => this.#sender.stop(chunk, reason, true))
    this.#open.set(chunk, () => {
      cancelAlarm?.()
      cancelAbort()
    })
  }

  #stopReason(chunk: OpenChunk): StopReason | null {
    return stopReason(chunk.batch, this.#options.clock.now())
  }

  #onEnded(batch: BatchRow): void {
    this.#options.onEnded?.(batch)
    // Its end is an event, which may have to be delivered.
    this.#tasks.look()
  }

  #recheckLimits(versions?: ReadonlyMap<string, number>): void {
    this.#gate
      .recheck(versions)
      .catch((error: unknown) => this.#options.log.error({ err: error }, 'limits could not be checked again'))
  }

  #close(chunk: OpenChunk, how: 'sealed' | 'parked' | 'lost'): void {
    if (how === 'lost') {
      this.#options.log.warn(
        { batch: chunk.batch.id, chunk: chunk.claim.idx },
        'a chunk was taken over by another worker',
      )
      this.#sender.stop(chunk, 'lost', true)
    }
    if (how === 'parked') this.#sender.park(chunk)
    this.#open.get(chunk)?.()
    this.#open.delete(chunk)
    this.#funds.close(chunk)
    this.#checkQuiet()
    if (!this.#stopping) this.#claimer.refill()
  }

  #loseAll(): void {
    for (const [chunk, cancelAlarm] of this.#open) {
      cancelAlarm()
      this.#recorder.untrack(chunk)
      this.#sender.stop(chunk, 'lost', true)
    }
    this.#funds.closeAll()
    this.#open.clear()
    this.#tasks.abandon()
    this.wake()
  }

  async #readBatchStatuses(): Promise<void> {
    const ids = new Set<string>()
    for (const chunk of this.#open.keys()) if (chunk.stopped === null) ids.add(chunk.batch.id)
    if (ids.size === 0) return
    const rows = await readBatchStatuses(this.#options.store.read, [...ids])
    const standing = new Map(rows.map((row) => [row.id, row]))
    for (const chunk of [...this.#open.keys()]) {
      const now = standing.get(chunk.batch.id)
      const reason = now && stopReason({ ...chunk.batch, ...now }, this.#options.clock.now())
      if (reason && chunk.stopped === null) this.#stop(chunk, reason)
    }
    this.#recheckLimits(new Map(rows.map((row) => [row.project_id, row.limit_version])))
  }

  /** Lines in flight may finish, for `drainMs`; then they are aborted. */
  async #drain(): Promise<void> {
    for (const chunk of this.#open.keys()) this.#sender.stop(chunk, 'drained', false)
    if (this.#isQuiet()) return
    await new Promise<void>((resolve) => {
      this.#onQuiet = resolve
      const cancel = this.#options.clock.after(this.#options.drainMs, () => {
        for (const chunk of this.#open.keys()) this.#sender.stop(chunk, 'drained', true)
      })
      this.#loops.push(cancel)
    })
    this.#loops.pop()?.()
  }

  #isQuiet(): boolean {
    for (const chunk of this.#open.keys()) if (chunk.inFlight > 0) return false
    return true
  }

  #checkQuiet(): void {
    if (this.#onQuiet && this.#isQuiet()) this.#onQuiet()
  }
}
