// The worker: opens a session, claims chunks, has their lines answered and recorded (dispatch.ts), and runs background tasks
// and maintenance beside that. It shuts down in order: it claims nothing more, lines in flight may finish within a limit,
// finished lines are committed, and unfinished work is requeued.

import { Dispatch, type DispatchOptions } from '../dispatch/dispatch.ts'
import { storedTries } from '../dispatch/gates/retries.ts'
import { Poller } from '../dispatch/senders/batch-apis/poller.ts'
import type { Lane } from '../dispatch/senders/lane.ts'
import type { Spill } from '../dispatch/senders/routes.ts'
import { type Change, Turn, type TurnEnd } from '../dispatch/turn.ts'
import type { AuditLog } from '../domain/audit-log.ts'
import { every } from '../domain/clock.ts'
import type { Log } from '../domain/log.ts'
import type { Model } from '../domain/model.ts'
import type { Tracing } from '../domain/tracing.ts'
import { Leases, Session } from '../leases/leases.ts'
import { TaskRunner } from '../leases/task-runner.ts'
import { PromptLearner } from '../ledger/prompt-learner.ts'
import { batchesAtRisk } from '../progress/completion.ts'
import { LiveTraffic } from '../servers/live/live-server.ts'
import type { Observer, Upstream } from '../servers/upstream.ts'
import { storeLineTries } from '../store/chunks.ts'
import type { BatchRow, TaskRow } from '../store/schema.ts'
import type { TaskHandler, TaskHandlers } from '../store/tasks.ts'
import { listLiveWorkers, reachableByOthers } from '../store/workers.ts'
import { ChunkReader } from './claim/chunk-reader.ts'
import { Claimer } from './claim/claimer.ts'
import { ModelsElsewhere } from './claim/demand.ts'
import { EndingBatches } from './ending-batches.ts'
import { WorkerReporter } from './worker-reporter.ts'

/** The interval in ms at which an idle worker looks for work without being woken. */
const POLL_MS = 500
/** The interval in ms at which the statuses of batches with open runs are read: cancelled, input deleted, paused. */
const STATUS_MS = 300
const MAINTENANCE_MS = 1_000
const REPORT_MS = 1_000
/** The interval in ms of checks whether remote batches are to be polled, and whether lines may go to batch APIs. */
const REMOTE_MS = 100
/** The time in ms without reaching a model's servers after which a worker leaves its chunks to other workers. */
const UNREACHABLE_MS = 5_000
const WORKER_REPORT_MS = 2_000
/** The interval in ms of reviews of servers' live shares. */
const TRAFFIC_MS = 200
const LEARN_MS = 5_000
const RISK_MS = 1_000

export interface WorkerOptions extends Omit<DispatchOptions, 'learner' | 'turn' | 'session' | 'leases'> {
  /** The models; changed in place when the worker learns the bytes of a token. */
  models: Map<string, Model>
  upstreams: ReadonlyMap<string, readonly Upstream[]>
  /** The rules of spill-over to higher tiers, by model. */
  spills?: ReadonlyMap<string, Spill> | undefined
  leaseMs: number
  drainMs: number
  memoryBytes: number
  tasks: TaskHandlers & { plan: TaskHandler }
  /** The only batches whose lines are sent or ended; `wake` looks for batches that were added. Absent: all batches. */
  onlyBatches?: ReadonlySet<string> | undefined
  /** Whether the blob store fails, or does not answer. */
  blobsFail?: (() => boolean) | undefined
  /** The maintenance tasks; every worker runs them about once a second. */
  maintenance: () => Promise<void>
  onEnded?: (batch: BatchRow) => void
  onTask?: (task: TaskRow) => void
  /** The tracing; absent: nothing is traced. */
  tracing?: Tracing | undefined
  /** Receives the end of each line. */
  auditLog?: AuditLog | undefined
}

/** An observer whose errors are logged, and stop no work. */
function guarded(log: Log, observer: Observer): Observer {
  const guard =
    (measure: (...values: unknown[]) => void) =>
    (...values: unknown[]): void => {
      try {
        measure(...values)
      } catch (error) {
        log.error({ err: error }, 'a measurement failed')
      }
    }
  const guards = Object.entries(observer).map(([name, measure]) => [name, guard(measure)])
  return Object.fromEntries(guards)
}

const UNOBSERVED: Observer = { attempted() {}, retried() {}, committed() {}, recorded() {} }

export class Worker {
  readonly #options: WorkerOptions
  readonly #turn: Turn
  readonly #session: Session
  readonly #learner: PromptLearner
  readonly #dispatch: Dispatch
  readonly #reporter: WorkerReporter
  readonly #liveTraffic: LiveTraffic
  readonly #poller: Poller
  readonly #claimer: Claimer
  readonly #endingBatches: EndingBatches
  readonly #tasks: TaskRunner
  readonly #loops: (() => unknown)[] = []
  #stopping = false
  #ended: Promise<void> | null = null
  #onDrained: (() => void) | null = null

  constructor(options: WorkerOptions) {
    this.#options = options
    const { store, clock, models, onlyBatches } = options
    const turn = new Turn(clock)
    const session = new Session({
      ...options,
      onLost: () => this.#onSessionLost(),
      onRenewed: () => turn.schedule(),
    })
    const leases = new Leases({ store, clock, session })
    const learner = new PromptLearner(store, models)
    const observe = guarded(options.log, {
      ...(options.observe ?? UNOBSERVED),
      attempted: (upstream, result, durationMs, call) => {
        reporter.attempted(upstream, result, durationMs)
        options.observe?.attempted(upstream, result, durationMs, call)
      },
    })
    const dispatch = new Dispatch({ ...options, learner, turn, session, leases, observe })
    const { runs, lanes, atRisk, batchApis } = dispatch
    const reporter = new WorkerReporter({
      ...{ store, clock, session, lanes, onlyBatches },
      status: () => this.status,
    })
    const reader = new ChunkReader(options)
    const elsewhere = new ModelsElsewhere({ store, clock, session, lanes })
    const claimer = new Claimer({
      ...options,
      ...{ dispatch, elsewhere, reader, leases, session, runs, lanes, atRisk },
    })
    turn.begin({ apply: (change) => this.#apply(change), end: (end) => this.#endTurn(end) })

    this.#turn = turn
    this.#session = session
    this.#learner = learner
    this.#dispatch = dispatch
    this.#reporter = reporter
    this.#liveTraffic = new LiveTraffic({
      clock,
      lanes,
      async reports() {
        const workers = await listLiveWorkers(store.read)
        return workers.flatMap(({ id, report }) => (id === session.id || report === null ? [] : [report]))
      },
    })
    this.#poller = new Poller({ ...options, rows: batchApis.rows, turn })
    this.#claimer = claimer
    this.#endingBatches = new EndingBatches({
      ...options,
      ...{ reader, leases, recorder: dispatch.recorder, tries: dispatch.lines.parked },
      plan: options.tasks.plan,
    })
    this.#tasks = new TaskRunner({
      ...options,
      leases,
      handlers: options.tasks,
      onDone: (task) => {
        options.onTask?.(task)
        claimer.claimNow()
      },
    })
    dispatch.setLanes(options.upstreams, options.spills)
  }

  /** The state of the worker, for metrics and readiness. */
  get status(): { openChunks: number; storesFailing: boolean } {
    const { blobsFail = () => false } = this.#options
    const { runs, recorder } = this.#dispatch
    return { openChunks: runs.size, storesFailing: recorder.failingSince !== null || blobsFail() }
  }

  /** The lanes by model, for metrics and waiting reasons. */
  get lanes(): ReadonlyMap<string, Lane> {
    return this.#dispatch.lanes
  }

  async start(): Promise<void> {
    const { store, clock, models, maintenance } = this.#options
    const { atRisk, lanes, lines, runs } = this.#dispatch
    await this.#session.open()
    // First, because the leases of a crashed worker may have expired.
    this.#loop(MAINTENANCE_MS, maintenance, 0)
    this.#loop(STATUS_MS, () => this.#dispatch.readStatuses())
    this.#loop(POLL_MS, async () => this.wake())
    this.#loop(REPORT_MS, async () => {
      for (const lane of lanes.values()) lane.updateServers()
      await this.#reporter.reportLanes()
      if (this.#reporter.isOverdue) await this.#reporter.report()
      await this.#leaveToOthers()
    })
    this.#loop(WORKER_REPORT_MS, () => this.#reporter.report(), 0)
    this.#loop(
      REMOTE_MS,
      async () => {
        lines.review(runs.values())
        this.#turn.schedule()
        await this.#poller.pollDue()
      },
      0,
    )
    this.#loop(TRAFFIC_MS, async () => {
      if (await this.#liveTraffic.tick()) this.#turn.schedule()
    })
    this.#loop(LEARN_MS, () => this.#learner.share(), 0)
    this.#loop(RISK_MS, async () => {
      const found = await batchesAtRisk(store.read, clock.now(), models)
      atRisk.clear()
      for (const id of found) atRisk.add(id)
    })
    this.wake()
  }

  /** Applies other upstreams; lines in flight end at their servers. */
  setUpstreams(
    upstreams: ReadonlyMap<string, readonly Upstream[]>,
    spills: ReadonlyMap<string, Spill>,
  ): void {
    this.#options.observe?.configured?.(upstreams)
    this.#dispatch.setLanes(upstreams, spills)
    this.#dispatch.modelsChanged()
    this.#claimer.claimNow()
  }

  /** Looks for new work; `chunks`: there are chunks, and nothing else is new. */
  wake(news: 'wake' | 'chunks' = 'wake'): void {
    if (this.#stopping) return
    const { recorder, runs } = this.#dispatch
    if (recorder.failingSince === null) this.#claimer.claimNow(news)
    if (news === 'chunks') return
    this.#endingBatches.endNow()
    this.#tasks.claimNow()
    if (runs.size > 0) this.#dispatch.readStatuses().catch((error: unknown) => this.#tryAgain(error))
  }

  /** Shuts down; every call resolves when that is done. */
  stop(): Promise<void> {
    this.#ended ??= this.#end()
    return this.#ended
  }

  async #end(): Promise<void> {
    const { log } = this.#options
    const { recorder, runs } = this.#dispatch
    this.#stopping = true
    for (const cancel of this.#loops) cancel()
    // Stops sending at once, before claims and tasks under way have ended.
    await Promise.all([this.#drain(), this.#endingBatches.close(), this.#tasks.close(), this.#poller.close()])
    await recorder.flush()
    await this.#learner.share().catch((error: unknown) => {
      log.warn({ err: error }, 'learned token sizes could not be stored')
    })
    await this.#session.close(async (tx) => {
      for (const run of runs.values()) {
        const tries = storedTries(run, true)
        if (tries !== run.claim.line_tries) await storeLineTries(tx, run.claim, tries)
      }
    })
    await this.#dispatch.close()
  }

  #loop(everyMs: number, work: () => Promise<void>, firstMs = everyMs): void {
    const { clock, random } = this.#options
    let waitMs = firstMs
    const look = async (): Promise<void> => {
      waitMs = everyMs
      await work()
    }
    const failed = (error: unknown): void => this.#tryAgain(error)
    this.#loops.push(every(clock, () => waitMs * (0.75 + random() / 2), look, failed))
  }

  #tryAgain(error: unknown): void {
    this.#options.log.error({ err: error }, 'background work failed; it is tried again')
  }

  #apply(change: Change): void {
    if (change.kind === 'ready') this.#claimer.claimNow()
    else this.#dispatch.apply(change)
    if (change.kind === 'committed')
      for (const batch of change.ended) {
        this.#options.onEnded?.(batch)
        // Its event may have to be delivered.
        this.#tasks.claimNow()
      }
    if (change.kind !== 'closed') return
    this.#checkDrained()
    if (!this.#stopping) this.#claimer.refill()
  }

  #endTurn(end: TurnEnd): void {
    const isLow = this.#dispatch.endTurn(end)
    if (isLow && !this.#stopping) this.#claimer.refill()
    this.#checkDrained()
  }

  #onSessionLost(): void {
    this.#dispatch.loseAll()
    this.#tasks.abandon()
    this.wake()
  }

  /** Parks chunks that only other workers can run: a broken network of one worker must not delay them. */
  async #leaveToOthers(): Promise<void> {
    const models = this.#dispatch.runs.size === 0 ? [] : this.#reporter.unavailableFor(UNREACHABLE_MS)
    if (models.length === 0) return
    const reachable = await reachableByOthers(this.#options.store.read, this.#session.id, models)
    this.#dispatch.parkBlocked((model) => reachable.includes(model))
  }

  /** Waits for lines in flight, which are aborted after `drainMs`. */
  async #drain(): Promise<void> {
    const { clock, drainMs } = this.#options
    this.#dispatch.drain()
    const cancel = clock.after(drainMs, () => this.#dispatch.abort())
    // A claim under way may open a run, with work at a batch API.
    await this.#claimer.close()
    if (!this.#dispatch.isIdle)
      await new Promise<void>((resolve) => {
        this.#onDrained = resolve
      })
    cancel()
  }

  #checkDrained(): void {
    if (this.#dispatch.isIdle) this.#onDrained?.()
  }
}
