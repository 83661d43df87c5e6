// Moves the lines of runs: places those that wait where the decision says (line-state.ts), begins to send them, and ends them. The
// state of a line is in its run; whatever follows from a transition is done here.
import type { BackendResult } from '../backends/backend.ts'
import type { ResponseMemory } from '../backends/response-memory.ts'
import { wrongForm } from '../backends/verdict/classify.ts'
import { type WireError, wireError } from '../domain/errors.ts'
import type { Model } from '../domain/model.ts'
import { inPromptOrder } from '../jsonl/prompt-prefixes.ts'
import type { PromptLearner } from '../ledger/prompt-learner.ts'
import type { EarlierAnswers } from '../results/earlier-answers.ts'
import { type LineAttempts, NO_ATTEMPTS, type SharedFrom } from '../results/line-record.ts'
import {
  type Answered,
  type Answerer,
  type Earlier,
  misplacedEntries,
  NO_EARLIER,
  recordAnswer,
  recordFailure,
  recordShared,
} from '../results/record-line.ts'
import type { Blame, EndedAttempt, MissedResult, Observer } from '../servers/upstream.ts'
import type { Ports } from '../store/store.ts'
import { Duplicates, isOwn } from './gates/duplicates.ts'
import type { ReservedFunds } from './gates/limits/reserved-funds.ts'
import {
  type AnswerChecks,
  type CheckedAnswer,
  type Examined,
  type Fault,
  isLastAsked,
  Reasks,
} from './gates/reasks.ts'
import {
  ANSWERED,
  addAttempt,
  attemptOf,
  countMiss,
  ParkedTries,
  Retries,
  type RetryPolicy,
} from './gates/retries.ts'
import {
  FINISHED,
  FOLLOWING,
  type Gate,
  IllegalTransition,
  IN_FLIGHT,
  type LineState,
  next,
  PAUSED,
  REMOTE,
  RETRYING,
  SEARCHING,
  UNFUNDED,
  UNSENT,
  UNSUBMITTED,
} from './line-state.ts'
import { CANCELLED, LAST, type Run, type RunStop, SEARCHED } from './run.ts'
import type { Entry } from './senders/fair-queue.ts'
import type { Lane } from './senders/lane.ts'
import type { Turn } from './turn.ts'

/** The states of lines that are neither in flight, nor at a batch API, nor finished. */
const WAITING = [UNFUNDED, PAUSED, UNSENT, RETRYING, FOLLOWING, SEARCHING, UNSUBMITTED] as const
/** The states of lines that are placed anew when facts about them may have changed. */
const PLACED = [UNFUNDED, PAUSED, UNSENT, RETRYING, UNSUBMITTED] as const

const CANCELLED_BY_CALLER = wireError('request_cancelled')
const NOT_NOW = 'the line that it followed is not sent now'

export interface LinesOptions extends Pick<Ports, 'clock' | 'log'> {
  random: () => number
  models: ReadonlyMap<string, Model>
  retry: RetryPolicy
  /** Lanes by model; changed by reloads. */
  lanes: ReadonlyMap<string, Lane>
  turn: Turn
  funds: ReservedFunds
  pauses: Gate<Run>
  learner?: Pick<PromptLearner, 'ended'> | undefined
  /** The search for answers of identical lines in other workers; absent: only answers of this worker are shared. */
  earlier?: Pick<EarlierAnswers, 'firstOf' | 'find'> | undefined
  checks: AnswerChecks
  answers: ResponseMemory
  observe?: Pick<Observer, 'attempted' | 'retried'> | undefined
}

export class Lines {
  readonly #options: LinesOptions
  readonly duplicates: Duplicates
  readonly parked = new ParkedTries()
  readonly #reasks: Reasks
  /** Each model as it was last configured: lines that were in flight when a model was removed still have a price. */
  readonly #known: Map<string, Model>
  /** Gates in the order in which they count. */
  readonly #gates: readonly Gate<Run>[]
  readonly #retries: Retries

  constructor(options: LinesOptions) {
    this.#options = options
    this.#known = new Map(options.models)
    const { turn, answers: memory, pauses, funds, checks } = options
    this.#retries = new Retries(options)
    this.#gates = [pauses, funds, this.#retries]
    this.duplicates = new Duplicates(memory)
    this.#reasks = new Reasks({ checks, memory, turn })
  }

  /** Gives up a run after a mistake of this program. The next worker continues after the committed lines. */
  broken(run: Run, error: unknown): void {
    const { batch_id: batch, idx: chunk } = run.claim
    this.#options.log.error({ err: error, batch, chunk }, 'a line is in a wrong state; its chunk is given up')
    // From here on none of its lines is sent.
    run.stop('lost')
    this.#options.turn.push({ kind: 'stopped', run, reason: 'broken' })
  }

  #guarded(run: Run, work: () => void): void {
    try {
      work()
    } catch (error) {
      this.broken(run, error)
    }
  }

  /** Places every waiting line of a run; lines that cannot run end at once. */
  open(run: Run): void {
    const now = this.#options.clock.now()
    this.#guarded(run, () => {
      for (let position = 0; position < run.lines.length; position++) {
        const { fault } = run.lines[position]!
        if (fault !== null && run.stateOf(position) === UNFUNDED)
          this.#fail(run, position, fault, now, 'it cannot run')
      }
      this.placeAll(run, 'its chunk was opened')
    })
  }

  /** Closes a run whose lease has ended; followers of its lines are placed. `isParked`: it may be claimed again. */
  close(run: Run, isParked: boolean): void {
    if (isParked) this.parked.keep(run)
    this.#reasks.close(run)
    for (const [, tries] of run.allTries()) this.#reasks.free(tries)
    const followers = this.duplicates.close(run)
    for (const position of run.positions(UNSENT, RETRYING, UNSUBMITTED))
      this.#count(run, position, run.stateOf(position), -1)
    this.#options.funds.close(run)
    run.close()
    this.#placeEach(followers, 'the line that it followed is gone')
  }

  end(): void {
    this.#retries.close()
  }

  placeAll(run: Run, cause: string): void {
    this.#place(run, run.positions(...PLACED), cause)
  }

  /** Places a line. `now`: the same for lines that are to stay together, though each of them is placed by itself. */
  place(run: Run, position: number, cause: string, now = this.#options.clock.now()): void {
    this.#place(run, [position], cause, now, true)
  }

  #placeEach(entries: readonly Entry[], cause: string): void {
    for (const { run, position } of entries) this.place(run, position, cause)
  }

  /** Places a line. `hadTurn`: the line was next in its lane before, and goes before other lines. */
  #place(
    run: Run,
    positions: readonly number[],
    cause: string,
    now = this.#options.clock.now(),
    hadTurn = false,
  ): void {
    if (run.mayMove) this.#guarded(run, () => this.#placeEachOf(run, positions, cause, now, hadTurn))
  }

  #placeEachOf(run: Run, positions: readonly number[], cause: string, now: number, hadTurn: boolean): void {
    const { lanes, turn } = this.#options
    let fresh: Map<Lane, number[]> | null = null
    for (const position of positions) {
      const { model } = run.lines[position]!
      const fault = run.is(position, CANCELLED) ? CANCELLED_BY_CALLER : run.lines[position]!.fault
      const lane = model === null ? undefined : lanes.get(model)
      if (fault !== null || model === null || !lane) {
        // A batch API may have left a line that cannot run any more.
        const error = fault ?? wireError('model_not_found', undefined, { param: 'model' })
        this.#fail(run, position, error, now, cause)
        continue
      }
      const to = next(run, position, lane, this.#gates, now)
      if (to === run.stateOf(position)) continue
      if (to === FINISHED) {
        this.#standIn(run, position, now)
        continue
      }
      this.#move(run, position, to, cause)
      if (run.batch.dedupe !== null && to !== PAUSED && to !== UNFUNDED && run.triesOf(position))
        this.duplicates.lead(run, position)
      // A line that is due stays due, also if the clock is set back: its backoff has ended.
      if ((to === UNSENT || to === UNSUBMITTED) && run.dueOf(position) !== 0) run.setDue(position, 0)
      if (to !== UNSENT) {
        for (const gate of this.#gates) if (gate.state === to) gate.keep?.(run, position)
        turn.touch(run)
        continue
      }
      turn.schedule()
      if (hadTurn || run.triesOf(position)) lane.addAgain(run, position)
      else {
        fresh ??= new Map()
        const own = fresh.get(lane)
        if (own) own.push(position)
        else fresh.set(lane, [position])
      }
    }
    for (const [lane, own] of fresh ?? [])
      lane.add(run, run.batch.line_order === 'file' ? own : inPromptOrder(run, own))
  }

  /** Places lines of models that servers and batch APIs answer: tiers, hours or risk may have changed. */
  review(runs: Iterable<Run>): void {
    const { lanes } = this.#options
    if (![...lanes.values()].some(({ route }) => route.isMixed)) return
    for (const run of runs) {
      if (!run.mayMove) continue
      const positions = run
        .positions(UNSENT, UNSUBMITTED)
        .filter((position) => lanes.get(run.lines[position]!.model ?? '')?.route.isMixed)
      this.#place(run, positions, 'the upstreams of its model have changed')
    }
  }

  /** Ends the lines of removed models, as lines of an unknown model, and places the others. */
  modelsChanged(runs: readonly Run[]): void {
    const { lanes, clock, models } = this.#options
    for (const [id, model] of models) this.#known.set(id, model)
    this.#recount(runs)
    for (const run of runs) {
      if (!run.mayMove) continue
      this.#guarded(run, () => {
        for (const position of run.positions(...WAITING)) {
          const { model } = run.lines[position]!
          // A line that others follow takes them along.
          if (run.isFinished(position) || (model !== null && lanes.has(model))) continue
          const error = wireError('model_not_found', undefined, { param: 'model' })
          this.#fail(run, position, error, clock.now(), 'its model was removed')
        }
        this.placeAll(run, 'the configuration has changed')
      })
    }
  }

  /** Counts the lines of each lane: the lane of a model that was removed and added again is a new one. */
  #recount(runs: readonly Run[]): void {
    for (const lane of this.#options.lanes.values()) lane.unsent = lane.retrying = lane.unsubmitted = 0
    for (const run of runs)
      for (const position of run.positions(UNSENT, RETRYING, UNSUBMITTED))
        this.#count(run, position, run.stateOf(position), 1)
  }

  /** Marks lines that a caller has cancelled (JSON of their numbers): one in flight ends with its attempt, others when they are placed. */
  cancel(run: Run, cancelled: string | null): void {
    const numbers = new Set<number>(JSON.parse(cancelled ?? '[]'))
    for (const position of numbers.size === 0 ? [] : run.positions()) {
      if (!numbers.has(run.lines[position]!.line)) continue
      run.set(position, CANCELLED)
      if (run.stateOf(position) === FOLLOWING) this.place(run, position, 'a caller cancelled it')
    }
  }

  // Limits.

  /** Holds back all waiting lines of the run until a check of the limits allows them. */
  holdForCheck(run: Run): void {
    this.endKept(run)
    // What is in flight keeps its reservation, for which there may be no room any more.
    if (run.reask !== null) for (const position of run.positions(IN_FLIGHT)) run.set(position, LAST)
    run.isLimited = true
    const positions = run.positions(UNSENT, RETRYING, FOLLOWING, SEARCHING, UNSUBMITTED)
    for (const position of positions) run.setAllowed(position, false)
    // A line that others follow takes them along.
    this.#guarded(run, () => {
      for (const position of positions)
        if (run.stateOf(position) !== UNFUNDED) this.#move(run, position, UNFUNDED, 'limits are checked')
    })
  }

  /** Sends no further line of the run, which is parked without lines in flight, and claimed again at once. */
  requeue(run: Run): void {
    this.holdForCheck(run)
    this.stop(run, 'drained', false)
  }

  /** Places the lines that a check of the limits has allowed. */
  checked(run: Run): void {
    this.#place(run, run.positions(UNFUNDED), 'limits were checked')
    // A line that came back from a batch API and has to wait holds back none that limits allow.
    if (run.batch.dedupe !== null && run.mayMove)
      for (const position of run.positions(UNFUNDED))
        this.#placeEach(this.duplicates.dissolve(run, position), NOT_NOW)
    this.#options.turn.push({ kind: 'checked', run })
  }

  /** Fails a line that no limit can ever allow. */
  reject(run: Run, position: number, error: WireError): void {
    this.#fail(run, position, error, this.#options.clock.now(), 'a limit rejects it')
  }

  // A line whose turn has come.

  /** Begins to send the line. False if it follows an identical one, ended with an answer, or waits for funds. */
  begin(run: Run, position: number, now: number, to: typeof IN_FLIGHT | typeof REMOTE): boolean {
    const { earlier, funds, turn } = this.#options
    // What a line has cost already is not shared.
    if (run.batch.dedupe !== null && !run.triesOf(position)?.kept) {
      const isStored = (): boolean =>
        earlier !== undefined && !run.is(position, SEARCHED) && earlier.firstOf(run, position) !== 0
      const found = this.duplicates.turn(run, position, isStored)
      if (found.kind === 'follow') this.#move(run, position, FOLLOWING, 'an identical line is being answered')
      else if (found.kind === 'share') this.#share(run, position, found.answer, now)
      else if (found.kind === 'search') {
        this.#move(run, position, SEARCHING, 'an identical line has an answer')
        this.#search(run, position, found.signal).catch((error: unknown) => this.broken(run, error))
      }
      if (found.kind !== 'send') return false
    }
    if (!funds.covers(run, position)) {
      if (this.#standIn(run, position, now)) return false
      run.setAllowed(position, false)
      this.#move(run, position, UNFUNDED, 'the reserved funds do not cover it')
      funds.fellShort(run)
      return false
    }
    this.#move(run, position, to, 'it is sent')
    if (run.results.begunAt === null && run.batch.status === 'queued') {
      run.results.begunAt = now
      turn.push({ kind: 'begun', run })
    }
    return true
  }

  /** Shares the stored answer of an identical line; if none is found, the line is sent after all. */
  async #search(run: Run, position: number, signal: AbortSignal): Promise<void> {
    const { earlier, clock } = this.#options
    const found = (await earlier?.find(run, position, signal)) ?? null
    if (signal.aborted || !run.mayMove || run.stateOf(position) !== SEARCHING) return
    this.duplicates.searched(run, position)
    const answer = found !== null && isOwn(run, position, found) ? null : found
    if (answer === null) {
      run.set(position, SEARCHED)
      this.place(run, position, 'no earlier answer was found')
      return
    }
    const followers = this.duplicates.found(run, position, answer)
    for (const one of [{ run, position }, ...followers])
      this.#guarded(one.run, () =>
        isOwn(one.run, one.position, answer)
          ? this.place(one.run, one.position, 'its own answer was found, which no commit has counted')
          : this.#share(one.run, one.position, answer, clock.now()),
      )
  }

  // How lines end.

  /** Ends an answered line, or asks again. Returns the cost of the line (nano-dollars), unless it is asked again. */
  answered(run: Run, position: number, result: Answered, attempt: EndedAttempt): number {
    const misplaced = misplacedEntries(run.recorded(position), result.answer)
    if (misplaced !== null) {
      this.refused(run, position, wrongForm(ANSWERED.status, misplaced), attempt)
      return 0
    }
    const tries = run.triesOf(position)
    if (tries) this.#retries.rejections.onAnswered(tries, attempt.upstream)
    const isUnexamined = run.reask === null || attempt.remote_batch !== undefined || run.is(position, LAST)
    if (isUnexamined || !run.mayMove) return this.#end(run, position, result, attempt)
    const { name, tier, price } = attempt.upstream
    const by = { upstream: { name, tier, price }, model: this.#modelOf(run, position) }
    const checked = { run, position, answered: result, by, attempt }
    const fault = this.#reasks.examine(checked)
    return fault === 'checking' ? 0 : this.#conclude(checked, fault)
  }

  examined({ run, checked, fault }: Examined): void {
    if (!run.isClosed) this.#guarded(run, () => void this.#conclude(checked, fault))
  }

  /** Ends a line whose answer was examined, or asks again. */
  #conclude(checked: CheckedAnswer, fault: Fault | null): number {
    const { run, position, answered, by, attempt } = checked
    if (fault === null || !run.mayMove || isLastAsked(run, position))
      return this.#end(run, position, answered, attempt, by, fault)
    if (this.#reasks.keep(checked, fault))
      this.place(run, position, `its answer is asked for again: ${fault.code}`)
    else this.#standIn(run, position, attempt.now)
    return 0
  }

  #modelOf(run: Run, position: number): Model | undefined {
    const id = run.lines[position]!.model ?? ''
    return this.#options.models.get(id) ?? this.#known.get(id)
  }

  /** Ends a line that is asked again with its present answer. */
  #standIn(run: Run, position: number, now: number): boolean {
    const tries = run.triesOf(position)
    const kept = tries?.kept
    if (!kept || !run.mayStandIn(position)) return false
    this.#record(run, position, kept, kept.by, now, tries, kept.earlier)
    return true
  }

  /** Ends lines that are, or may be, asked again with their present answers; returns whether there were any. */
  endKept(run: Run): boolean {
    if (run.reask === null || run.isClosed) return false
    let found = false
    this.#guarded(run, () => {
      for (const { position, answered, attempt, by } of this.#reasks.close(run)) {
        this.#end(run, position, answered, attempt, by)
        found = true
      }
      for (const [position] of run.allTries())
        if (run.stateOf(position) !== IN_FLIGHT && this.#standIn(run, position, this.#options.clock.now()))
          found = true
    })
    return found
  }

  #end(
    run: Run,
    position: number,
    result: Answered,
    attempt: EndedAttempt,
    by: Answerer = { upstream: attempt.upstream, model: this.#modelOf(run, position) },
    fault: Fault | null = null,
  ): number {
    const tries = run.triesOf(position)
    const last = attemptOf(attempt, ANSWERED, fault?.code)
    const attempts = tries
      ? { listed: [...tries.listed, last], omitted: tries.omitted }
      : { listed: [last], omitted: 0 }
    return this.#record(run, position, result, by, attempt.now, attempts, tries?.kept?.spent ?? NO_EARLIER)
  }

  /** Ends the line and its followers with an answer. */
  #record(
    run: Run,
    position: number,
    result: Answered,
    by: Answerer,
    now: number,
    attempts: LineAttempts,
    earlier: Earlier,
  ): number {
    const { learner, lanes, funds, log } = this.#options
    let followers: readonly Entry[] = []
    let cost = 0
    const line = run.lines[position]!
    const tries = run.triesOf(position)
    if (tries) this.#reasks.free(tries)
    try {
      const { cost_nanos, usage, isPromptReported } = recordAnswer(
        run.recorded(position),
        result,
        by,
        attempts,
        now,
        earlier,
      )
      cost = cost_nanos
      if (run.batch.dedupe !== null) followers = this.duplicates.answered(run, position, result, cost)
      this.#finish(run, position, 'it was answered')
      funds.ended(run, position, { cost_nanos, tokens: usage.total_tokens, requests: 1 })
      if (isPromptReported) learner?.ended(line, usage.prompt_tokens)
      lanes.get(line.model ?? '')?.answered(run, position, usage.completion_tokens)
    } catch (error) {
      if (error instanceof IllegalTransition) throw error
      // Another attempt would fail in the same way.
      log.error({ err: error, upstream: by.upstream.name }, 'an answer could not be recorded')
      const fault = wireError('internal_error', 'The service failed to handle this attempt.')
      recordFailure(run.recorded(position), fault, now, { attempts })
      this.#finish(run, position, 'its answer could not be recorded')
      return cost
    }
    if (followers.length === 0) return cost
    const shared = { ...result, cost_nanos: cost, from: run.sharedFrom(position) }
    for (const one of followers) this.#guarded(one.run, () => this.#share(one.run, one.position, shared, now))
    return cost
  }

  /** Fails a line that a server has rejected, and all identical lines. */
  refused(
    run: Run,
    position: number,
    result: Extract<BackendResult, { kind: 'refused' }>,
    attempt: EndedAttempt,
  ): void {
    addAttempt(run, position, attempt, result)
    const details = result.param === undefined ? {} : { param: result.param }
    this.#failAll(run, position, wireError(result.code, result.message, details), attempt.now)
  }

  /** Retries a line without an answer, unless its attempts are exhausted or its run has stopped. */
  missed(run: Run, position: number, result: MissedResult, blame: Blame, attempt: EndedAttempt): void {
    const { upstream, now } = attempt
    const tries = addAttempt(run, position, attempt, result)
    if (!attempt.isAborted) countMiss(tries.count, result, blame, upstream.circuit.answeredAt, now)
    const { stopped } = run
    if (stopped !== null && stopped !== 'lost' && this.#standIn(run, position, now)) return
    if (stopped === 'lost' || stopped === 'drained') {
      this.#move(run, position, UNFUNDED, 'its run has stopped')
      return
    }
    if (stopped !== null) {
      this.#fail(run, position, wireError(stopped), now, 'its run has stopped')
      return
    }
    const due = this.#retries.next(run, tries, result, blame, attempt)
    if (typeof due !== 'number') {
      this.#failAll(run, position, due, now)
      return
    }
    this.#options.observe?.retried(upstream)
    run.setDue(position, due)
    this.place(run, position, 'its attempt missed', now)
  }

  /**
   * Sends no further line of the run. Lines that wait end with the reason, unless it is `lost` or `drained`. Lines in
   * flight continue, unless `abort`. `message`: of their errors, unless it is the usual one.
   */
  stop(run: Run, reason: RunStop, abort: boolean, message?: string): void {
    const { turn, clock } = this.#options
    run.stop(reason)
    if (reason !== 'lost') this.endKept(run)
    if (abort) run.abort()
    if (reason !== 'lost' && reason !== 'drained' && !run.isClosed) {
      const now = clock.now()
      const error = wireError(reason, message)
      this.#guarded(run, () => {
        for (const position of run.positions(...WAITING)) {
          // A line that could never run keeps its own error, even if the batch expired.
          const own = run.lines[position]!.fault ?? error
          this.#fail(run, position, own, now, 'its run has stopped', null, reason === 'batch_expired')
        }
      })
    }
    turn.touch(run)
  }

  /** Fails the line and its followers. */
  #failAll(run: Run, position: number, error: WireError, now: number): void {
    if (this.#standIn(run, position, now)) return
    const from = run.sharedFrom(position)
    const followers = this.duplicates.dissolve(run, position)
    this.#fail(run, position, error, now, 'it failed')
    const cause = 'the line that it followed failed'
    for (const one of followers)
      this.#guarded(one.run, () => this.#fail(one.run, one.position, error, now, cause, from))
  }

  #fail(
    run: Run,
    position: number,
    error: WireError,
    now: number,
    cause: string,
    shared_from: SharedFrom | null = null,
    expired = error.code === 'batch_expired',
  ): void {
    if (this.#standIn(run, position, now)) return
    const attempts = run.triesOf(position) ?? NO_ATTEMPTS
    recordFailure(run.recorded(position), error, now, { attempts, shared_from, expired })
    this.#finish(run, position, cause)
  }

  #share(run: Run, position: number, answer: Parameters<typeof recordShared>[1], now: number): void {
    recordShared(run.recorded(position), answer, run.triesOf(position) ?? NO_ATTEMPTS, now)
    this.#finish(run, position, 'it shares an answer')
  }

  #finish(run: Run, position: number, cause: string): void {
    this.#move(run, position, FINISHED, cause)
    this.#options.turn.touch(run)
  }

  /** Changes the state of a line, and applies the consequences. */
  #move(run: Run, position: number, to: LineState, cause: string): void {
    const from = run.stateOf(position)
    run.move(position, to, cause)
    this.#count(run, position, from, -1)
    this.#count(run, position, to, 1)
    if (run.isReserved(position)) this.#options.funds.moved(run, position, from, to)
    if (run.batch.dedupe === null) return
    const isKept = to === UNSUBMITTED || (to === UNFUNDED && from === REMOTE)
    if (isKept) this.#placeEach(this.duplicates.releaseOthers(run, position), NOT_NOW)
    else if (to === UNFUNDED || to === PAUSED || to === FINISHED)
      this.#placeEach(this.duplicates.dissolve(run, position), NOT_NOW)
  }

  #count(run: Run, position: number, state: LineState, by: 1 | -1): void {
    if (state !== UNSENT && state !== RETRYING && state !== UNSUBMITTED) return
    const lane = this.#options.lanes.get(run.lines[position]!.model ?? '')
    if (!lane) return
    if (state === UNSENT) lane.unsent += by
    else if (state === RETRYING) lane.retrying += by
    else lane.unsubmitted += by
  }
}
