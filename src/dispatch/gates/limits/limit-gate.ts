// Applies spending limits to lines before they are sent. When a chunk is opened, the projected cost of its lines is
// reserved. A line that no limit can ever allow fails at once; a line that a limit may allow later waits with its
// chunk, unfunded.
//
// Waiting lines are checked again after every commit. All unsent lines are checked again when a limit was changed, when
// another day has begun, when spent and reserved amounts exceed a limit, and when lines cost so much more than
// estimated that the reserved funds do not cover the next line (reserved-funds.ts). A project without a matching limit
// costs one indexed read.
import { BoundedMap } from '../../../domain/bounded-map.ts'
import { dayOf, startOfDay } from '../../../domain/days.ts'
import { type Model, projectedPrice } from '../../../domain/model.ts'
import { counted, isDearer } from '../../../domain/money.ts'
import { hasBlockingLimit } from '../../../ledger/counters.ts'
import { languageOf, lineLimitError } from '../../../ledger/limit-error.ts'
import { overcommittedLimits, type Reservation, type ReserveLine } from '../../../ledger/reserve.ts'
import type { Recorder } from '../../../results/recorder.ts'
import type { Ports } from '../../../store/store.ts'
import { IN_FLIGHT, isKeptBack, PAUSED, UNFUNDED } from '../../line-state.ts'
import type { Lines } from '../../lines.ts'
import type { LimitsSeen, Run } from '../../run.ts'
import type { Turn } from '../../turn.ts'
import { ReservationQueue } from './reservation-queue.ts'
import { isUnsentReserved, type ReservedFunds } from './reserved-funds.ts'

/** The least time in ms for which a chunk without an allowed line stays parked; jittered, doubled each time. */
const PARK_MS = 1_000
const PARK_MS_MAX = 60_000
const PARKED_MAX = 10_000
/** The time in ms without claims of a project's chunks after one of its chunks was parked. */
const PROJECT_PAUSE_MS = 250

interface LimitGateOptions extends Pick<Ports, 'store' | 'clock'> {
  random: () => number
  lines: Pick<Lines, 'holdForCheck' | 'checked' | 'reject' | 'requeue'>
  funds: ReservedFunds
  turn: Pick<Turn, 'push'>
  recorder: Pick<Recorder<Run>, 'settle'>
  runs: { values(): Iterable<Run> }
  models: ReadonlyMap<string, Model>
}

interface CheckRequest {
  run: Run
  lines: readonly ReserveLine[]
}

export class LimitGate {
  readonly #options: LimitGateOptions
  readonly #queue: ReservationQueue
  readonly #pausedUntil = new Map<string, number>()
  readonly #checking = new Map<string, Promise<void>>()
  /** The number of times in a row that a chunk was parked, by chunk, in the order in which they were first parked. */
  readonly #parks = new BoundedMap<string, number>(PARKED_MAX)

  constructor(options: LimitGateOptions) {
    this.#options = options
    this.#queue = new ReservationQueue(options)
  }

  /** Projects of which no chunk should be claimed now: their limits have no room. */
  pausedProjects(): string[] {
    const now = this.#options.clock.now()
    for (const [project, until] of this.#pausedUntil) if (until <= now) this.#pausedUntil.delete(project)
    return [...this.#pausedUntil.keys()]
  }

  /**
   * Reserves for a run that is about to be opened, and marks the lines of it that are allowed. Lines that no limit can
   * ever allow end. If no line can be sent now, it returns the time (Unix ms) of the next try. `version` is that of the
   * project's limits when the chunk was claimed; `recheck` finds later changes. `isEnding`: nothing is reserved.
   */
  async admit(run: Run, version: number, isEnding: boolean): Promise<{ retryAt: number } | null> {
    const { store, clock, funds } = this.#options
    const { project_id } = run.claim
    run.limitsSeen = { version, day: dayOf(clock.now()) }
    if (version === 0) return null
    run.isLimited = true
    const positions = run.positions(UNFUNDED).filter((position) => run.lines[position]!.fault === null)
    if (positions.length === 0) return null
    if (!(await hasBlockingLimit(store.read, project_id, run.payers))) {
      for (const position of positions) run.setAllowed(position, true)
      return null
    }
    if (isEnding) return null
    // Before the reservation, so that excess of other runs that is not committed yet counts against it.
    funds.open(run)
    const lines = positions.map((position) => candidate(run, position))
    const reservation = await this.#queue.reserve(run, lines)
    if (!reservation) return null
    this.#apply(run, lines, reservation)
    const waits = positions.filter(
      (position) => run.stateOf(position) === UNFUNDED && !run.isAllowed(position),
    )
    if (waits.length === 0) this.#parks.delete(run.key)
    return waits.length > 0 && waits.length === run.unfinished ? { retryAt: this.parkUntil(run) } : null
  }

  /** Checks open runs again where necessary; without `versions` of limits, only for settled amounts. */
  async recheck(versions: ReadonlyMap<string, number> = new Map()): Promise<void> {
    const projects = new Set([...this.#options.runs.values()].map((run) => run.claim.project_id))
    await Promise.all(
      [...projects].map((project_id) => this.#check(project_id, versions.get(project_id) ?? 0)),
    )
  }

  /** Requeues runs whose lines are reserved at lower prices. `limited`: also runs without a limit so far. */
  requeueUnderpriced(runs: Iterable<Run> = this.#options.runs.values(), limited = false): void {
    const { models, lines } = this.#options
    for (const run of runs)
      if (run.mayMove && (limited || run.limitsSeen.version > 0) && isUnderpriced(run, models))
        lines.requeue(run)
  }

  get isAwaited(): boolean {
    for (const run of this.#options.runs.values()) if (run.count(UNFUNDED) > 0) return true
    return false
  }

  /** Checks one project; callers share a check that is running. */
  #check(project_id: string, version: number): Promise<void> {
    const end = (): unknown => this.#checking.delete(project_id)
    const checking = this.#checking.get(project_id) ?? this.#recheckProject(project_id, version).finally(end)
    this.#checking.set(project_id, checking)
    return checking
  }

  async #recheckProject(project_id: string, read: number): Promise<void> {
    do await this.#recheckOnce(project_id, read)
    while (this.#options.funds.isShort(project_id))
  }

  async #recheckOnce(project_id: string, read: number): Promise<void> {
    const isShort = this.#options.funds.takeShort(project_id)
    const open = [...this.#options.runs.values()].filter(
      (run) => run.claim.project_id === project_id && run.mayMove && run.unfinished > 0,
    )
    // A chunk may have been admitted meanwhile under a later version than the one that was read.
    const version = Math.max(read, ...open.map(({ limitsSeen }) => limitsSeen.version))
    if (version === 0) return
    this.requeueUnderpriced(open, true)
    const runs = open.filter((run) => run.mayMove)
    const seen = { version, day: dayOf(this.#options.clock.now()) }
    const isNew = runs.some(({ limitsSeen }) => limitsSeen.version !== version || limitsSeen.day !== seen.day)
    // Committing the finished lines may show that the limit is far away.
    if (isShort && !isNew) await this.#settle(project_id)
    const comparison = isNew ? 'unclear' : await this.#compareWithLimits(project_id, runs)
    if (isNew || comparison === 'over' || (isShort && comparison === 'unclear'))
      return await this.#checkAll(project_id, runs, seen, isNew)
    const waiting = runs.filter((run) => run.count(UNFUNDED) > 0)
    await this.#checkLines(
      waiting.map((run) => ({
        run,
        lines: run.positions(UNFUNDED).map((position) => candidate(run, position)),
      })),
      seen,
    )
  }

  /** Whether spent and reserved amounts pass a limit on lines that are charged to that day; null: to the day of their end. */
  async isOver({ claim, payers, limitsSeen }: Run, day: number | null): Promise<boolean> {
    if (limitsSeen.version === 0) return false
    const { store, clock } = this.#options
    const at = day === null ? clock.now() : startOfDay(day)
    return (await overcommittedLimits(store.read, claim.project_id, payers, at)).length > 0
  }

  /**
   * Compares the spent and reserved amounts of all workers with the limits. `within`: no limit is exceeded, so the
   * committed excess is forgiven. `over`: an unsent line counts towards an exceeded limit.
   */
  async #compareWithLimits(project_id: string, runs: readonly Run[]): Promise<'within' | 'over' | 'unclear'> {
    const { store, clock, funds } = this.#options
    const reserved = runs.flatMap((run) =>
      run
        .positions()
        .filter((position) => isUnsentReserved(run, position))
        .map((position) => ({
          projected: run.lines[position]!.projected,
          accounts: run.accountsOf(position),
        })),
    )
    if (reserved.length === 0) return 'unclear'
    const forgiveExcess = funds.beginExcessCheck(project_id)
    const payers = runs.flatMap((run) => run.payers)
    const over = await overcommittedLimits(store.read, project_id, payers, clock.now())
    if (over.length === 0) {
      forgiveExcess()
      return 'within'
    }
    const isOver = reserved.some(({ accounts, projected }) =>
      over.some(({ limit, account }) => accounts.includes(account) && counted(projected, limit.metric) > 0),
    )
    return isOver ? 'over' : 'unclear'
  }

  async #settle(project_id: string): Promise<void> {
    const { recorder, runs } = this.#options
    await recorder.settle([...runs.values()].filter((run) => run.claim.project_id === project_id))
  }

  /** Checks all unsent lines; finished ones are committed first, to count everywhere before reservations are released. */
  async #checkAll(project_id: string, runs: readonly Run[], seen: LimitsSeen, isNew: boolean): Promise<void> {
    const { lines, funds } = this.#options
    for (const run of runs) lines.holdForCheck(run)
    await this.#settle(project_id)
    const forgiveExcess = funds.beginExcessCheck(project_id)
    const requests = runs
      .filter((run) => run.mayMove)
      .map((run) => ({
        run,
        lines: run
          .positions(UNFUNDED, PAUSED, IN_FLIGHT)
          .filter(
            (position) =>
              run.lines[position]!.fault === null &&
              !(run.stateOf(position) === IN_FLIGHT && run.isReserved(position)),
          )
          .map((position) => candidate(run, position)),
      }))
    await this.#checkLines(requests, seen, () => {
      // A chunk that is being opened may have been granted its reservation before this check.
      const missed = funds.runsOf(project_id).filter((run) => run.mayMove && !runs.includes(run))
      if (missed.every((run) => run.unfinished === 0)) forgiveExcess()
    })
    if (isNew) funds.capAsReserved(project_id)
  }

  /** Checks limits for lines. `onChecked` is called once all reservations are known, before any line is sent. */
  async #checkLines(
    requests: readonly CheckRequest[],
    seen: LimitsSeen,
    onChecked = (): void => {},
  ): Promise<void> {
    const { lines, turn } = this.#options
    const open = requests.filter(({ run }) => run.mayMove)
    for (const one of open) if (one.lines.length === 0) one.run.limitsSeen = seen
    const reserving = open.filter((one) => one.lines.length > 0)
    const answers = await Promise.allSettled(reserving.map((one) => this.#queue.reserve(one.run, one.lines)))
    const checked: Run[] = []
    let failure: { reason: unknown } | null = null
    for (const [i, answer] of answers.entries()) {
      const { run, lines: wanted } = reserving[i]!
      // The outcome of a reservation that failed is unknown: its lines wait for the next check.
      if (answer.status === 'rejected') failure ??= answer
      else if (run.isClosed || run.isParking) continue
      else if (answer.value === null) turn.push({ kind: 'stopped', run, reason: 'lost' })
      else {
        this.#apply(run, wanted, answer.value)
        run.limitsSeen = seen
        checked.push(run)
      }
    }
    if (!failure) onChecked()
    for (const run of checked) {
      if (!run.mayMove) continue
      lines.checked(run)
      if (!isKeptBack(run)) this.#parks.delete(run.key)
    }
    if (failure) throw failure.reason
  }

  /** Whether unsettled finished lines, or another check, may make room for the waiting lines. */
  mayFree({ results, claim }: Run): boolean {
    return results.hasFresh || results.journalling !== null || this.#options.funds.isShort(claim.project_id)
  }

  /** Marks the lines that are allowed and reserved; lines that no limit can ever allow end. */
  #apply(run: Run, lines: readonly ReserveLine[], reservation: Reservation): void {
    const { funds } = this.#options
    const { allowed, refused, waiting, isReserved, capped, day } = reservation
    run.capped = capped
    funds.cap(run.claim.project_id, capped)
    const checked = new Set(lines.map(({ position }) => position))
    for (const position of checked) if (run.isFinished(position)) checked.delete(position)
    for (const position of allowed) {
      if (!checked.has(position)) continue
      run.setAllowed(position, true)
      run.reserveOn(position, isReserved ? day : null)
      funds.setReserved(run, position, isReserved)
    }
    for (const position of waiting) {
      if (!checked.has(position)) continue
      run.setAllowed(position, false)
      funds.setReserved(run, position, false)
    }
    const language = languageOf(run.batch.language)
    for (const [position, meter] of refused) {
      if (!checked.has(position)) continue
      funds.setReserved(run, position, false)
      run.setAllowed(position, false)
      if (run.stateOf(position) === IN_FLIGHT) continue
      const needed = counted(run.lines[position]!.projected, meter.limit.metric)
      this.#options.lines.reject(
        run,
        position,
        lineLimitError(meter, needed, run.triesOf(position) !== undefined, language),
      )
    }
  }

  /** The time of the next claim (Unix ms) of a run without a line that has room under its limits: each time later. */
  parkUntil(run: Run): number {
    const { clock, random } = this.#options
    const now = clock.now()
    this.#pausedUntil.set(run.claim.project_id, now + PROJECT_PAUSE_MS)
    const parks = this.#parks.get(run.key) ?? 0
    this.#parks.set(run.key, parks + 1)
    const waitMs = Math.min(PARK_MS_MAX, PARK_MS * 2 ** Math.min(parks, 10))
    return now + Math.ceil(waitMs * (1 + random()))
  }
}

function isUnderpriced({ prices }: Run, models: ReadonlyMap<string, Model>): boolean {
  return [...prices].some(([id, price]) => {
    const model = models.get(id)
    return model !== undefined && isDearer(projectedPrice(model), price)
  })
}

function candidate(run: Run, position: number): ReserveLine {
  const { entity, known_model: model, projected } = run.lines[position]!
  const isSent = run.stateOf(position) === IN_FLIGHT
  return { position, entity, model, projected, isSent, isReserved: run.isReserved(position) }
}
