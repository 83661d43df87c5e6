// The worker: opens a session, claims chunks, sends their lines, records their results, and runs background tasks and
// maintenance beside that. It shuts down in order: it claims nothing more, lines in flight may finish within a limit,
// finished lines are committed, and unfinished work is requeued. worker-parts.ts says what it is made of.
import { type StopReason, stopReason } from '../domain/batch.ts'
import { batchesAtRisk } from '../progress/deadline-risk.ts'
import type { OpenChunk } from '../results/open-chunk.ts'
import type { Outcome } from '../results/outcome.ts'
import { readBatchStatuses } from '../store/batches.ts'
import { reachableByOthers } from '../store/lane-reports.ts'
import type { BatchRow } from '../store/schema.ts'
import type { Sender } from './send/sender.ts'
import type { Spill } from './send/tiers.ts'
import type { Upstream } from './send/upstream.ts'
import { makeWorkerParts, type WorkerOptions, type WorkerParts } from './worker-parts.ts'

/** How often an idle worker looks for work without being woken. */
const POLL_MS = 500
/** How often the statuses of batches with open chunks are read: cancelled, input deleted. */
const STATUS_MS = 300
/** How long lines in flight may take after their input was deleted. */
const DELETED_MS = 5_000
const MAINTENANCE_MS = 1_000
/** How often unavailable models are reported, if the report has changed. */
const REPORT_MS = 1_000
/** How often it is asked whether batches at batch APIs are due to be looked at. */
const REMOTE_MS = 100
/** A worker that could not reach a model's servers for this long hands its chunks over to workers that can. */
const HAND_OVER_MS = 5_000
/** How often it is reported how the worker and its model servers do. */
const WORKER_REPORT_MS = 2_000
/** How often the shares of servers that answer others too are looked at. */
const TRAFFIC_MS = 200
/** How often learned token sizes are shared with other workers. */
const LEARN_MS = 5_000
/** How often the batches at risk are determined. */
const RISK_MS = 1_000

export class Worker {
  readonly #options: WorkerOptions
  readonly #parts: WorkerParts
  readonly #loops: (() => void)[] = []
  /** As of the last time they were determined. */
  #atRisk: readonly string[] = []
  #stopping = false
  #ended: Promise<void> | null = null
  #onDrained: (() => void) | null = null

  constructor(options: WorkerOptions) {
    this.#options = options
    this.#parts = makeWorkerParts(options, {
      sessionLost: () => this.#onSessionLost(),
      sendable: () => this.#parts.sender.pump(),
      begun: (chunk) => this.#parts.starts.begun(chunk),
      lineEnded: (chunk, outcome) => this.#onLineEnded(chunk, outcome),
      insufficientFunds: (chunk) => {
        if (this.#parts.gate.insufficientFor(chunk)) this.#recheckLimits()
      },
      chunkIdle: (chunk) => {
        this.#parts.remote.parkIfIdle(chunk)
        this.#checkDrained()
      },
      chunkClosed: (chunk, how) => this.#onChunkClosed(chunk, how),
      committed: () => this.#onCommitted(),
      batchEnded: (batch) => this.#onBatchEnded(batch),
      taskDone: (task) => {
        options.onTask?.(task)
        this.#parts.claimer.look()
      },
      admit: (chunk, limitVersion) => this.#admit(chunk, limitVersion),
      chunkOpened: (chunk) => this.#onChunkOpened(chunk),
      atRisk: () => this.#atRisk,
    })
  }

  /** For metrics and readiness. */
  get status(): { openChunks: number; storesFailing: boolean } {
    const { open, recorder } = this.#parts
    return { openChunks: open.size, storesFailing: recorder.failingSince !== null }
  }

  /** For metrics and waiting reasons. */
  get lanes(): Sender['lanes'] {
    return this.#parts.sender.lanes
  }

  async start(): Promise<void> {
    const { store, clock, models, maintenance } = this.#options
    const { session, reporter, workerReporter, learner, sender, liveTraffic } = this.#parts
    await session.open()
    // First, because the leases of a crashed worker may have expired.
    this.#loop(MAINTENANCE_MS, maintenance, 0)
    this.#loop(STATUS_MS, () => this.#readBatchStatuses())
    this.#loop(POLL_MS, async () => this.wake())
    this.#loop(REPORT_MS, async () => {
      sender.updateServers()
      await reporter.report()
      await this.#handOver()
    })
    this.#loop(WORKER_REPORT_MS, () => workerReporter.report(), 0)
    this.#loop(REMOTE_MS, () => this.#parts.poller.look(), 0)
    this.#loop(TRAFFIC_MS, () => liveTraffic.tick())
    this.#loop(LEARN_MS, () => learner.share(), 0)
    this.#loop(RISK_MS, async () => {
      this.#atRisk = await batchesAtRisk(store.read, clock.now(), models)
      sender.prioritize(this.#atRisk)
    })
    this.wake()
  }

  /** Takes up other upstreams; lines in flight end where they are. */
  setUpstreams(
    upstreams: ReadonlyMap<string, readonly Upstream[]>,
    spills: ReadonlyMap<string, Spill>,
  ): void {
    const { sender, open, claimer } = this.#parts
    this.#options.observe?.configured?.(upstreams)
    sender.setUpstreams(upstreams, spills, open)
    claimer.look()
  }

  /** Looks for new work. */
  wake(): void {
    if (this.#stopping) return
    const { closer, tasks, recorder, claimer, open } = this.#parts
    closer.look()
    tasks.look()
    if (recorder.failingSince === null) claimer.look()
    if (open.size > 0) this.#readBatchStatuses().catch((error: unknown) => this.#tryAgain(error))
  }

  /** Shuts down; every call resolves when that is done. */
  stop(): Promise<void> {
    this.#ended ??= this.#end()
    return this.#ended
  }

  async #end(): Promise<void> {
    const { claimer, closer, tasks, recorder, starts, learner, session, open, sender, poller } = this.#parts
    this.#stopping = true
    for (const cancel of this.#loops) cancel()
    // Stops sending at once, before claims and tasks under way have ended.
    const drained = this.#drain()
    await Promise.all([claimer.close(), closer.close(), tasks.close(), poller.close(), drained])
    await Promise.all([recorder.flush(), starts.close()])
    await learner.share().catch((error: unknown) => {
      this.#options.log.warn({ err: error }, 'learned token sizes could not be stored')
    })
    await session.close()
    for (const chunk of open) {
      open.cancelAlarms(chunk)
      chunk.trace?.end(this.#options.clock.now(), { 'offpeak.chunk.end': 'drained' })
    }
    sender.close()
    const upstreams = [...sender.lanes.values()].flatMap((lane) => lane.upstreams)
    await Promise.all(upstreams.map((upstream) => upstream.backend.close()))
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

  async #admit(chunk: OpenChunk, limitVersion: number): Promise<{ retryAt: number } | null> {
    const { gate, session, funds, pauses, remote } = this.#parts
    await pauses.load()
    await remote.attach(chunk)
    const postponed = this.#stopReason(chunk) === null ? await gate.admit(chunk, limitVersion) : null
    // A chunk that was claimed under an expired session is not opened.
    if (chunk.claim.worker_id !== session.id) funds.close(chunk)
    return postponed
  }

  #onChunkOpened(chunk: OpenChunk): void {
    const { clock } = this.#options
    const { sender, open, funds, recorder, remote } = this.#parts
    const leftMs = chunk.claim.deadline - clock.now()
    chunk.trace?.enter('send', clock.now())
    open.add(
      chunk,
      clock.after(leftMs, () => sender.stop(chunk, 'batch_expired', true)),
    )
    funds.open(chunk)
    recorder.track(chunk)
    const reason = this.#stopReason(chunk)
    if (reason) this.#stop(chunk, reason)
    else if (this.#stopping) sender.stop(chunk, 'drained', false)
    else sender.start(chunk)
    remote.opened(chunk)
  }

  /** Lines in flight may finish; if their input was deleted, only for DELETED_MS, because it is destroyed after them. */
  #stop(chunk: OpenChunk, reason: StopReason): void {
    const { sender, open } = this.#parts
    sender.stop(chunk, reason, reason === 'batch_expired')
    if (reason !== 'input_file_deleted' || !open.has(chunk)) return
    open.addAlarm(
      chunk,
      this.#options.clock.after(DELETED_MS, () => sender.stop(chunk, reason, true)),
    )
  }

  #stopReason(chunk: OpenChunk): StopReason | null {
    return stopReason(chunk.batch, this.#options.clock.now())
  }

  #onLineEnded(chunk: OpenChunk, outcome: Outcome): void {
    const { funds, learner, recorder, sender, claimer, remote } = this.#parts
    funds.ended(chunk, outcome)
    remote.rows.ended(chunk, outcome)
    learner.ended(chunk, outcome)
    recorder.record(chunk, outcome)
    if (sender.isBelowLowWaterMark(outcome.model)) claimer.refill()
  }

  /** Settled lines may leave room under a limit. */
  #onCommitted(): void {
    const { funds, open } = this.#parts
    if (funds.isLow || [...open].some((chunk) => chunk.waiting.size > 0)) this.#recheckLimits()
  }

  #onBatchEnded(batch: BatchRow): void {
    this.#options.onEnded?.(batch)
    // Its event may have to be delivered.
    this.#parts.tasks.look()
  }

  /** A broken network of one worker must not delay a batch that another worker could run. */
  async #handOver(): Promise<void> {
    const { reporter, session, blocked, open } = this.#parts
    const { store } = this.#options
    const models = open.size === 0 ? [] : reporter.unavailableFor(HAND_OVER_MS)
    if (models.length > 0)
      blocked.handOver(await reachableByOthers(store.read, store.claimSql, session.id, models))
  }

  #recheckLimits(versions?: ReadonlyMap<string, number>): void {
    this.#parts.gate
      .recheck(versions)
      .catch((error: unknown) => this.#options.log.error({ err: error }, 'limits could not be checked again'))
  }

  #onChunkClosed(chunk: OpenChunk, how: 'sealed' | 'parked' | 'lost'): void {
    const { sender, open, funds, claimer } = this.#parts
    if (how === 'lost') {
      this.#options.log.warn(
        { batch: chunk.batch.id, chunk: chunk.claim.idx },
        'a chunk was taken over by another worker',
      )
      sender.stop(chunk, 'lost', true)
    }
    if (how === 'parked') sender.park(chunk)
    open.delete(chunk)
    funds.close(chunk)
    this.#checkDrained()
    if (!this.#stopping) claimer.refill()
  }

  #onSessionLost(): void {
    const { open, recorder, sender, funds, tasks } = this.#parts
    for (const chunk of open) {
      chunk.trace?.end(this.#options.clock.now(), { 'offpeak.chunk.end': 'lost' })
      open.cancelAlarms(chunk)
      recorder.untrack(chunk)
      sender.stop(chunk, 'lost', true)
    }
    funds.closeAll()
    open.clear()
    tasks.abandon()
    this.wake()
  }

  async #readBatchStatuses(): Promise<void> {
    const { open, remote } = this.#parts
    for (const chunk of [...open]) remote.parkIfIdle(chunk)
    const ids = new Set<string>()
    for (const chunk of open) if (chunk.stopped === null) ids.add(chunk.batch.id)
    if (ids.size === 0) return
    const rows = await readBatchStatuses(this.#options.store.read, [...ids])
    const statuses = new Map(rows.map((row) => [row.id, row]))
    for (const chunk of [...open]) {
      const status = statuses.get(chunk.batch.id)
      const reason = status && stopReason({ ...chunk.batch, ...status }, this.#options.clock.now())
      if (reason && chunk.stopped === null) this.#stop(chunk, reason)
    }
    await this.#parts.pauses.refresh([...open], rows)
    this.#recheckLimits(new Map(rows.map((row) => [row.project_id, row.limit_version])))
  }

  /** Lines in flight may finish for `drainMs`; then they are aborted. */
  async #drain(): Promise<void> {
    const { open, sender, remote } = this.#parts
    for (const chunk of open) sender.stop(chunk, 'drained', false)
    if (this.#isDrained()) return
    await new Promise<void>((resolve) => {
      this.#onDrained = resolve
      const cancel = this.#options.clock.after(this.#options.drainMs, () => {
        for (const chunk of open) sender.stop(chunk, 'drained', true)
        remote.abort()
      })
      this.#loops.push(cancel)
    })
    this.#loops.pop()?.()
  }

  #isDrained(): boolean {
    for (const chunk of this.#parts.open) if (chunk.inFlight > 0) return false
    return true
  }

  #checkDrained(): void {
    if (this.#onDrained && this.#isDrained()) this.#onDrained()
  }
}
