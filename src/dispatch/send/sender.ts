// Sends lines and decides after each attempt what comes next: an outcome, another attempt, or nothing because the
// chunk was stopped.
import type { BackendResult } from '../../backends/backend.ts'
import { type WireError, wireError } from '../../domain/errors.ts'
import type { OpenChunk } from '../../results/open-chunk.ts'
import { type Demand, demandOf, isBelowLowWaterMark } from '../claim/demand.ts'
import { attemptOf, exhausted, recordAttempt } from './attempts.ts'
import { Duplicates } from './duplicates.ts'
import { freshJob, type Job, Lane, type Waiting } from './lane.ts'
import { LikelyRejections } from './likely-rejections.ts'
import { failed, outcomeOf } from './line-outcome.ts'
import { byPrefix, pushTo } from './line-request.ts'
import { LineWarnings } from './line-warnings.ts'
import { jobsOfLineTries, lineTriesOf, ParkedTries } from './parked-tries.ts'
import { PausedLines } from './paused-lines.ts'
import type { RemoteEnd } from './remote-end.ts'
import { type Blame, backoffMs, countMiss, isExhausted, type MissedResult } from './retry-policy.ts'
import { sendLine } from './send-line.ts'
import type { SenderOptions } from './sender-options.ts'
import { NO_SPILL, type Spill } from './tiers.ts'
import type { Upstream } from './upstream.ts'

/** Lines of a chunk that are not in flight: without an attempt, or waiting for another one. */
export interface Unsent {
  fresh: number[]
  tried: Waiting[]
}

export class Sender {
  readonly #options: SenderOptions
  readonly #lanes = new Map<string, Lane>()
  /** Withdrawn lines that were tried before, whose records must list the earlier attempts. */
  readonly #tried = new WeakMap<OpenChunk, Map<number, Job>>()
  readonly #parked = new ParkedTries()
  readonly #paused: PausedLines
  readonly #warnings: LineWarnings
  readonly #duplicates: Duplicates
  readonly #rejections = new LikelyRejections()

  constructor(options: SenderOptions) {
    this.#options = options
    this.#duplicates = new Duplicates({ ...options, requeue: (job) => this.#requeue(job) })
    this.#warnings = new LineWarnings(options.log)
    this.#paused = new PausedLines((chunk, model) => options.isPaused?.(chunk, model) ?? false)
    this.setUpstreams(options.upstreams, options.spills ?? new Map(), [])
  }

  /**
   * The models and upstreams that are configured from now on. Unsent lines of the open chunks that name a model which is
   * gone end as those of an unknown model do.
   */
  setUpstreams(
    upstreams: ReadonlyMap<string, readonly Upstream[]>,
    spills: ReadonlyMap<string, Spill>,
    openChunks: Iterable<OpenChunk>,
  ): void {
    for (const [model, servers] of upstreams) {
      const spill = spills.get(model) ?? NO_SPILL
      const lane = this.#lanes.get(model)
      if (lane) lane.setUpstreams(servers, spill)
      else this.#lanes.set(model, this.#newLane(model, servers, spill))
    }
    const gone = [...this.#lanes.values()].filter(({ model }) => !upstreams.has(model))
    for (const lane of gone) {
      lane.close()
      this.#lanes.delete(lane.model)
    }
    for (const chunk of gone.length === 0 ? [] : [...openChunks]) {
      for (const lane of gone) {
        const { fresh, tried } = lane.remove(chunk)
        for (const position of fresh) this.#endUnknown(freshJob(chunk, position))
        for (const { job } of tried) this.#endUnknown(job)
      }
    }
    this.pump()
  }

  #newLane(model: string, upstreams: readonly Upstream[], spill: Spill): Lane {
    const { clock, maySend } = this.#options
    return new Lane(
      model,
      upstreams,
      clock,
      (job, upstream) =>
        upstream.batches === null ? void this.#attempt(job, upstream) : this.#handOver(job, upstream),
      maySend,
      spill,
    )
  }

  /** Its model is no longer configured. */
  #endUnknown(job: Job): void {
    const error = wireError('model_not_found', undefined, { param: 'model' })
    this.#duplicates.fail(job, error, this.#options.clock.now())
  }

  get lanes(): ReadonlyMap<string, Lane> {
    return this.#lanes
  }

  /** Queues every unfinished line of the chunk; lines that cannot run end at once. */
  start(chunk: OpenChunk): void {
    const earlier = this.#parked.take(chunk) ?? jobsOfLineTries(chunk)
    this.remember(chunk, earlier)
    chunk.lineTries = () => lineTriesOf(chunk, this.#tried.get(chunk)?.values() ?? [])
    const tried = new Map(earlier.map((job) => [job.position, job]))
    const byModel = new Map<string, number[]>()
    for (const [position, line] of chunk.lines.entries()) {
      if (chunk.isFinished(position) || chunk.waiting.has(position) || chunk.remote.has(position)) continue
      const lane = line.model === null ? undefined : this.#lanes.get(line.model)
      const apiError = line.fault ?? chunk.refused.get(position) ?? null
      const fault = apiError ?? (lane ? null : wireError('model_not_found', undefined, { param: 'model' }))
      if (fault || !lane) {
        this.refuse(chunk, position, fault ?? wireError('model_not_found'))
        continue
      }
      const job = tried.get(position)
      if (this.#paused.withholds(chunk, position)) continue
      if (job) lane.retry(job, this.#options.clock.now())
      else pushTo(byModel, lane.model, position)
    }
    this.#enqueue(chunk, byModel)
    if (tried.size > 0) this.pump()
  }

  /** Keeps the attempts of a parked chunk's lines, for the case that this worker claims it again. */
  park(chunk: OpenChunk): void {
    this.#parked.keep(chunk, [...(this.#tried.get(chunk)?.values() ?? [])])
  }

  #enqueue(chunk: OpenChunk, byModel: ReadonlyMap<string, number[]>): void {
    for (const [model, positions] of byModel) {
      const lane = this.#lanes.get(model)!
      lane.add(chunk, byPrefix(chunk, positions))
      lane.pump()
    }
  }

  /** Removes the chunk's unsent lines from the lanes, until `resume` queues them again. */
  withdraw(chunk: OpenChunk): Unsent {
    const unsent: Unsent = { fresh: [], tried: [] }
    for (const lane of this.#lanes.values()) {
      const { fresh, tried } = lane.remove(chunk)
      unsent.fresh.push(...fresh)
      unsent.tried.push(...tried)
    }
    unsent.fresh.push(...this.#duplicates.leave(chunk))
    for (const { job } of unsent.tried) this.#duplicates.release(job)
    this.remember(
      chunk,
      unsent.tried.map(({ job }) => job),
    )
    return unsent
  }

  /** Queues these lines; lines that were tried before keep their attempts. */
  resume(chunk: OpenChunk, positions: readonly number[], tried: Unsent['tried']): void {
    if (chunk.parking) return
    const now = this.#options.clock.now()
    const earlier = new Map<number, Waiting>()
    for (const [position, job] of this.#tried.get(chunk) ?? []) earlier.set(position, { job, due: now })
    for (const waiting of tried) earlier.set(waiting.job.position, waiting)
    const byModel = new Map<string, number[]>()
    for (const position of positions) {
      const { model } = chunk.lines[position]!
      const lane = model === null ? undefined : this.#lanes.get(model)
      if (model === null || !lane || chunk.isFinished(position)) continue
      if (this.#paused.withholds(chunk, position)) continue
      const waiting = earlier.get(position)
      if (waiting) lane.retry(waiting.job, waiting.due)
      else pushTo(byModel, model, position)
    }
    this.#enqueue(chunk, byModel)
    if (earlier.size > 0) this.pump()
  }

  /** What is paused has changed: lines that are go out of the queue, lines that no longer are go in. */
  applyPauses(chunk: OpenChunk): void {
    if (chunk.stopped !== null) return
    const withheld = this.#paused.take(chunk)
    const { fresh, tried } = this.withdraw(chunk)
    this.resume(chunk, [...fresh, ...tried.map(({ job }) => job.position), ...withheld], tried)
  }

  /** How many of its unsent lines are paused. */
  withheld(chunk: OpenChunk): number {
    return this.#paused.count(chunk)
  }

  /** Ends a line that was withdrawn or never queued. */
  refuse(chunk: OpenChunk, position: number, error: WireError): void {
    const job = this.#tried.get(chunk)?.get(position) ?? freshJob(chunk, position)
    this.#options.onOutcome(chunk, failed(job, error, this.#options.clock.now()))
  }

  /** Keeps the attempts of these lines for their records. */
  remember(chunk: OpenChunk, jobs: readonly Job[]): void {
    const tried = this.#tried.get(chunk) ?? new Map<number, Job>()
    for (const job of jobs) tried.set(job.position, job)
    this.#tried.set(chunk, tried)
  }

  /**
   * Sends no further line of the chunk. Unsent lines end with the reason, unless it is `lost` or `drained`. Lines in
   * flight continue, unless `abort`.
   */
  stop(chunk: OpenChunk, reason: NonNullable<OpenChunk['stopped']>, abort: boolean): void {
    const wasStopped = chunk.stopped !== null
    chunk.stop(reason, abort)
    if (!wasStopped) this.withdraw(chunk)
    if (chunk.inFlight === 0) this.#endUnsent(chunk)
  }

  /** Sets the at-risk batches. */
  prioritize(batchIds: readonly string[]): void {
    const atRisk = new Set(batchIds)
    for (const lane of this.#lanes.values()) lane.prioritize(atRisk)
  }

  /** What should be claimed next. */
  demand(): Demand {
    return demandOf(this.#lanes, this.#options.clock.now())
  }

  /** Whether the model's lane needs more lines. */
  isBelowLowWaterMark(model: string | null): boolean {
    const lane = model === null ? undefined : this.#lanes.get(model)
    return lane === undefined || isBelowLowWaterMark(lane)
  }

  /** To be called about once a second. */
  updateServers(): void {
    for (const lane of this.#lanes.values()) lane.updateServers()
  }

  pump(): void {
    for (const lane of this.#lanes.values()) lane.pump()
  }

  close(): void {
    for (const lane of this.#lanes.values()) lane.close()
  }

  #handOver(job: Job, upstream: Upstream): void {
    const { chunk } = job
    const { fresh, tried } = this.#lanes.get(chunk.lines[job.position]!.model!)!.remove(chunk)
    const others = [...tried.map((one) => one.job), ...fresh.map((position) => freshJob(chunk, position))]
    this.#options.onHandOver?.(upstream, [job, ...others])
  }

  /** An unfinished line with the attempts that are known of it. */
  jobOf(chunk: OpenChunk, position: number): Job {
    return this.#tried.get(chunk)?.get(position) ?? freshJob(chunk, position)
  }

  /** Ends a line that a batch API had, or queues it again. */
  concludeRemote(job: Job, end: RemoteEnd): void {
    const { upstream, result, at, remote_batch, blame } = end
    const now = this.#options.clock.now()
    this.#options.observe?.attempted(upstream, result.kind, now - at)
    this.#warnings.failsForOperators(upstream, result, now)
    recordAttempt(job, attemptOf(upstream, result, at, now, remote_batch))
    this.#conclude(job, upstream, result, blame, now, end)
    if (result.kind === 'answered') this.#duplicates.learn(job, result)
  }

  /** Ends a line whose answer is known from an identical one. */
  readonly share = (job: Job): boolean => this.#duplicates.share(job, this.#options.clock.now())

  async #attempt(job: Job, upstream: Upstream): Promise<void> {
    const { clock } = this.#options
    const { chunk } = job
    const at = clock.now()
    if (at >= chunk.claim.deadline) {
      // The deadline's alarm is late if the clock was set forward or the process was suspended.
      this.#duplicates.release(job)
      this.remember(chunk, [job])
      this.stop(chunk, 'batch_expired', true)
      return
    }
    if (!this.#duplicates.take(job, at)) return
    if (!this.#options.funds.draw(chunk, job.position)) {
      this.#duplicates.release(job)
      if (job.attempts.length > 0) this.remember(chunk, [job])
      chunk.waiting.add(job.position)
      this.#options.onInsufficientFunds(chunk)
      return
    }
    const missedBefore = job.tries.failures + job.tries.throttles > 0
    const sent = upstream.begin({ batch_id: chunk.batch.id, missedBefore, line: job.tries }, at)
    chunk.inFlight++
    if (chunk.begunAt === null && chunk.batch.status === 'queued') {
      chunk.begunAt = at
      this.#options.onBegun(chunk)
    }
    const result = await sendLine(job, upstream, { log: this.#options.log, clock, at })
    const now = clock.now()
    chunk.inFlight--
    const aborted = chunk.signal.aborted && result.kind === 'failed'
    this.#options.observe?.attempted(upstream, aborted ? 'aborted' : result.kind, now - at)
    const isOurs = result.kind === 'failed' && result.code === 'internal_error'
    let blame: Blame | null = null
    if (aborted || isOurs) upstream.withdraw(sent, now)
    else blame = upstream.end(sent, result, now)
    if (blame === 'line' && job.tries.own > 0) this.#warnings.failsOnBatch(chunk, upstream, result, now)
    if (!aborted) this.#warnings.failsForOperators(upstream, result, now)
    recordAttempt(job, attemptOf(upstream, result, at, now))
    if (chunk.stopped === 'lost') this.#duplicates.release(job)
    else this.#conclude(job, upstream, result, isOurs ? 'line' : (blame ?? 'server'), now)
    this.endIfIdle(chunk)
    this.#lanes.get(chunk.lines[job.position]!.model!)?.pump()
  }

  #conclude(
    job: Job,
    upstream: Upstream,
    result: BackendResult,
    blame: Blame,
    now: number,
    remote?: RemoteEnd,
  ): void {
    const { chunk } = job
    if (result.kind === 'answered') {
      this.#rejections.onAnswered(job, upstream)
      const outcome = outcomeOf(job, upstream, result, this.#options, now)
      this.#options.onOutcome(chunk, outcome)
      if (outcome.part === 'error') this.#duplicates.release(job)
      else this.#duplicates.answered(job, result, now)
      return
    }
    if (result.kind === 'refused') {
      const details = result.param === undefined ? {} : { param: result.param }
      this.#duplicates.fail(job, wireError(result.code, result.message, details), now)
      return
    }
    countMiss(job.tries, result, blame, upstream.circuit.answeredAt, now)
    if (chunk.stopped !== null) this.#endStopped(job, now)
    else this.#retry(job, upstream, result, now, remote)
  }

  /** Queues the line for another attempt, unless its attempts are exhausted. */
  #retry(job: Job, upstream: Upstream, result: MissedResult, now: number, remote?: RemoteEnd): void {
    const { retry, random, observe } = this.#options
    const { chunk, tries } = job
    const windowMs = chunk.claim.deadline - chunk.batch.created
    const rejection = this.#rejections.find(job, upstream)
    if (rejection !== null || isExhausted(retry, tries, result, now, windowMs)) {
      this.#duplicates.fail(job, rejection ?? exhausted(job, result), now)
      return
    }
    if (result.kind === 'failed') job.avoid = remote?.stays ? null : upstream
    observe?.retried(upstream)
    const waitMs = backoffMs(retry, tries, result, remote?.draw ?? random(), windowMs)
    if (result.kind === 'throttled') tries.throttledMs += waitMs
    if (chunk.reserved.has(job.position)) this.#options.funds.reserve(chunk, job.position)
    const lane = this.#lanes.get(chunk.lines[job.position]!.model!)
    if (!lane) this.#endUnknown(job)
    else if (this.#paused.withholds(chunk, job.position)) this.remember(chunk, [job])
    else lane.retry(job, now + waitMs)
  }

  /** It followed an identical line that is not sent now. */
  #requeue(job: Job): void {
    const { chunk, position } = job
    if (this.#paused.withholds(chunk, position)) return
    const lane = this.#lanes.get(chunk.lines[position]!.model!)
    if (lane) lane.retry(job, this.#options.clock.now())
    else this.#endUnknown(job)
    lane?.pump()
  }

  /** Ends a line of a stopped chunk that got no answer, unless the chunk is lost or drained. */
  #endStopped(job: Job, now: number): void {
    this.#duplicates.release(job)
    const reason = job.chunk.stopped
    if (reason === null || reason === 'lost' || reason === 'drained') return
    this.#options.onOutcome(job.chunk, failed(job, wireError(reason), now))
  }

  /** A stopped chunk has no line in flight any more. */
  endIfIdle(chunk: OpenChunk): void {
    if (chunk.stopped !== null && chunk.inFlight === 0) this.#endUnsent(chunk)
  }

  #endUnsent(chunk: OpenChunk): void {
    const reason = chunk.stopped
    const tried = this.#tried.get(chunk)
    if (reason !== null && reason !== 'lost' && reason !== 'drained') {
      const now = this.#options.clock.now()
      for (let position = 0; position < chunk.lines.length; position++) {
        if (chunk.isFinished(position) || chunk.remote.has(position)) continue
        const job = tried?.get(position) ?? freshJob(chunk, position)
        // A line that could never run keeps its own error, even if the batch expired.
        const error = chunk.lines[position]!.fault ?? wireError(reason)
        this.#options.onOutcome(chunk, { ...failed(job, error, now), expired: reason === 'batch_expired' })
      }
    }
    this.#options.onIdle(chunk)
  }
}
