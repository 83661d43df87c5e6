// Applies spending limits to lines before they are sent. When a chunk is opened, the projected cost of its lines is
// reserved. A line that no limit can ever allow fails at once; a line that a limit may allow later waits with its
// chunk, without a reservation.
//
// Waiting lines are checked again after every commit. All unsent lines are checked again when a limit was changed, when
// another day has begun, when spent and reserved amounts exceed a limit, and when lines cost so much more than estimated that the reserved
// funds do not cover the next line (reserved-funds.ts). A project without a matching limit costs one indexed read.
import type { Clock } from '../../domain/clock.ts'
import { WHOLE_PROJECT } from '../../domain/limit.ts'
import { counted } from '../../domain/spend.ts'
import { dayOf } from '../../domain/utc-day.ts'
import { limitSubjects } from '../../ledger/counters.ts'
import { languageOf, lineLimitError } from '../../ledger/limit-error.ts'
import { overcommittedLimits, type Reservation, type ReserveLine } from '../../ledger/reserve.ts'
import type { LimitsSeen, OpenChunk } from '../../results/open-chunk.ts'
import { matchingLimits } from '../../store/limits.ts'
import type { Store } from '../../store/store.ts'
import type { Sender, Unsent } from '../send/sender.ts'
import { ReservationQueue } from './reservation-queue.ts'
import type { ReservedFunds } from './reserved-funds.ts'

/** How long a chunk of which no line is allowed stays parked, at least; with jitter. */
const PARK_MS = 1_000
/** How long no chunk of a project is claimed after one of its chunks was parked. */
const PROJECT_PAUSE_MS = 250

export interface LimitGateOptions {
  store: Store
  clock: Clock
  /** In [0, 1). */
  random: () => number
  sender: Pick<Sender, 'withdraw' | 'resume' | 'refuse'>
  funds: ReservedFunds
  /** Commits the finished lines of these chunks. */
  settle: (chunks: readonly OpenChunk[]) => Promise<void>
  openChunks: () => Iterable<OpenChunk>
  /** Parks an open chunk until `runAt` (Unix ms). */
  park: (chunk: OpenChunk, runAt: number) => void
  /** The lease of the chunk is lost. */
  onLost: (chunk: OpenChunk) => void
}

/** Lines of a chunk to check, including those withdrawn from the sender. */
interface CheckRequest {
  chunk: OpenChunk
  unsent: Unsent
  lines: readonly ReserveLine[]
}

export class LimitGate {
  readonly #options: LimitGateOptions
  readonly #queue: ReservationQueue
  /** Projects whose reserved funds did not cover a line. */
  readonly #insufficient = new Set<string>()
  readonly #pausedUntil = new Map<string, number>()
  readonly #checking = new Map<string, Promise<void>>()

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
   * Reserves for a chunk that is about to be opened, and marks the lines of it that wait or are rejected. If no line
   * can be sent now, it returns the time (Unix ms) of the next try. `version` is that of the project's limits when the
   * chunk was claimed; `recheck` finds later changes.
   */
  async admit(chunk: OpenChunk, version: number): Promise<{ retryAt: number } | null> {
    const { store } = this.#options
    const project_id = chunk.claim.project_id
    chunk.limitsSeen = { version, day: this.#today }
    if (version === 0) return null
    const wanted = { project_id, action: 'block' as const, ...limitSubjects(chunk.entities) }
    if ((await matchingLimits(store.read, wanted)).length === 0) return null
    const lines = chunk.runnable().map((position) => candidate(chunk, position, false))
    if (lines.length === 0) return null
    const { funds } = this.#options
    // Before the reservation, so that excess of other chunks that is not committed yet counts against it.
    funds.open(chunk)
    try {
      const reservation = await this.#queue.reserve(chunk, lines)
      if (!reservation) return null
      for (const [position, error] of this.#applyReservation(chunk, lines, reservation))
        chunk.refused.set(position, error)
    } catch (error) {
      funds.close(chunk)
      throw error
    }
    if (chunk.waiting.size < chunk.unfinished) return null
    funds.close(chunk)
    return { retryAt: this.#parkUntil(chunk) }
  }

  /**
   * Checks the open chunks again where there is a reason to. `versions`: the current versions of the limits of
   * projects; without them only newly settled amounts are considered.
   */
  async recheck(versions: ReadonlyMap<string, number> = new Map()): Promise<void> {
    const projects = new Set([...this.#options.openChunks()].map((chunk) => chunk.claim.project_id))
    await Promise.all(
      [...projects].map((project_id) => this.#check(project_id, versions.get(project_id) ?? 0)),
    )
  }

  /** Checks one project; callers share a check that is running. */
  #check(project_id: string, version: number): Promise<void> {
    const running = this.#checking.get(project_id)
    if (running) return running
    const checking = this.#recheckProject(project_id, version).finally(() => {
      this.#checking.delete(project_id)
    })
    this.#checking.set(project_id, checking)
    return checking
  }

  /** Records that the reserved funds do not cover a line of the chunk. True if the caller has to call `recheck`. */
  insufficientFor(chunk: OpenChunk): boolean {
    const { project_id } = chunk.claim
    if (this.#insufficient.has(project_id)) return false
    this.#insufficient.add(project_id)
    return true
  }

  async #recheckProject(project_id: string, read: number): Promise<void> {
    do await this.#recheckOnce(project_id, read)
    while (this.#insufficient.has(project_id))
  }

  async #recheckOnce(project_id: string, read: number): Promise<void> {
    const isInsufficient = this.#insufficient.delete(project_id)
    const chunks = [...this.#options.openChunks()].filter(
      (chunk) => chunk.claim.project_id === project_id && isCheckable(chunk) && chunk.unfinished > 0,
    )
    // A chunk may have been admitted meanwhile under a later version than the one that was read.
    const version = Math.max(read, ...chunks.map(({ limitsSeen }) => limitsSeen.version))
    if (version === 0) return
    const seen = { version, day: this.#today }
    const isNew = chunks.some(
      ({ limitsSeen }) => limitsSeen.version !== seen.version || limitsSeen.day !== seen.day,
    )
    // Committing the finished lines may show that the limit is far away.
    if (isInsufficient && !isNew) await this.#settle(project_id)
    const comparison = isNew ? 'unclear' : await this.#compareWithLimits(project_id, chunks)
    if (isNew || comparison === 'over' || (isInsufficient && comparison === 'unclear'))
      return await this.#checkAll(project_id, chunks, seen, isNew)
    const waiting = chunks.filter((chunk) => chunk.waiting.size > 0)
    const none: Unsent = { fresh: [], tried: [] }
    await this.#checkLines(
      waiting.map((chunk) => ({ chunk, unsent: none, lines: linesOf(chunk, none, false) })),
      seen,
    )
  }

  /** Whether what is spent and reserved passes a limit on lines of the chunk. */
  async isOver({ claim, entities, limitsSeen }: OpenChunk): Promise<boolean> {
    if (limitsSeen.version === 0) return false
    const { store, clock } = this.#options
    return (await overcommittedLimits(store.read, claim.project_id, entities, clock.now())).length > 0
  }

  /**
   * Compares the spent and reserved amounts of all workers with the limits. `within`: no limit is exceeded, so the
   * committed excess is forgiven. `over`: an unsent line counts towards an exceeded limit.
   */
  async #compareWithLimits(
    project_id: string,
    chunks: readonly OpenChunk[],
  ): Promise<'within' | 'over' | 'unclear'> {
    const { store, clock, funds } = this.#options
    const waiting = chunks.filter((chunk) => chunk.reservedUnsent.size > 0)
    if (waiting.length === 0) return 'unclear'
    const forgiveExcess = funds.beginExcessCheck(project_id)
    const entities = new Set(waiting.flatMap((chunk) => [...chunk.entities]))
    const over = await overcommittedLimits(store.read, project_id, entities, clock.now())
    if (over.length === 0) {
      forgiveExcess()
      return 'within'
    }
    const concerns = ({ entity, projected }: OpenChunk['lines'][number]): boolean =>
      over.some(
        ({ limit, spender }) =>
          (spender === WHOLE_PROJECT || spender === entity) && counted(projected, limit.metric) > 0,
      )
    const isOver = waiting.some((chunk) =>
      [...chunk.reservedUnsent].some((position) => concerns(chunk.lines[position]!)),
    )
    return isOver ? 'over' : 'unclear'
  }

  /** Commits the finished lines of the project's open chunks. */
  async #settle(project_id: string): Promise<void> {
    const { settle, openChunks } = this.#options
    await settle([...openChunks()].filter((chunk) => chunk.claim.project_id === project_id))
  }

  /**
   * Checks all unsent lines. Finished lines are committed first, so that their actual cost counts for every worker
   * before reservations of this worker are released.
   */
  async #checkAll(
    project_id: string,
    chunks: readonly OpenChunk[],
    seen: LimitsSeen,
    isNew: boolean,
  ): Promise<void> {
    const { sender, funds } = this.#options
    const withdrawn = chunks.map((chunk) => [chunk, sender.withdraw(chunk)] as const)
    await this.#settle(project_id)
    const forgiveExcess = funds.beginExcessCheck(project_id)
    const requests = withdrawn.map(([chunk, unsent]) => ({
      chunk,
      unsent,
      lines: linesOf(chunk, unsent, true),
    }))
    await this.#checkLines(requests, seen, () => {
      // A chunk that is being opened may have been granted its reservation before this check.
      const missed = funds
        .chunksOf(project_id)
        .filter((chunk) => isCheckable(chunk) && !chunks.includes(chunk))
      if (missed.every((chunk) => chunk.unfinished === 0)) forgiveExcess()
    })
    if (isNew) funds.capAsReserved(project_id)
  }

  /** `onChecked` is called once all reservations are known, before any line is sent. */
  async #checkLines(
    requests: readonly CheckRequest[],
    seen: LimitsSeen,
    onChecked = (): void => {},
  ): Promise<void> {
    const open = requests.filter(({ chunk }) => isCheckable(chunk))
    for (const { chunk, lines } of open) if (lines.length === 0) chunk.limitsSeen = seen
    const reserving = open.filter(({ lines }) => lines.length > 0)
    const answers = await Promise.allSettled(
      reserving.map(({ chunk, lines }) => this.#queue.reserve(chunk, lines)),
    )
    const done: (() => void)[] = []
    let failure: { reason: unknown } | null = null
    for (const [i, answer] of answers.entries()) {
      const one = reserving[i]!
      if (answer.status === 'rejected') failure ??= answer
      done.push(
        answer.status === 'rejected' ? () => this.#restore(one) : this.#conclude(one, answer.value, seen),
      )
    }
    if (!failure) onChecked()
    for (const conclude of done) conclude()
    if (failure) throw failure.reason
  }

  /** Applies the reservation; the function that it returns sends the allowed lines and fails the rejected ones. */
  #conclude(
    { chunk, unsent, lines }: CheckRequest,
    reservation: Reservation | null,
    seen: LimitsSeen,
  ): () => void {
    const { sender, park, onLost } = this.#options
    // The chunk may have been parked meanwhile: its reservations were released with its lease.
    if (chunk.parking) return () => {}
    if (!reservation) return () => onLost(chunk)
    const refused = this.#applyReservation(chunk, lines, reservation)
    chunk.limitsSeen = seen
    const inFlight = new Set(lines.filter((line) => line.isSent).map((line) => line.position))
    return () => {
      if (!isCheckable(chunk)) return
      const allowed = reservation.allowed.filter((position) => !inFlight.has(position))
      sender.resume(chunk, allowed, unsent.tried)
      for (const [position, error] of refused) sender.refuse(chunk, position, error)
      // Finished lines that are not settled yet, or another check, may make room for the waiting lines.
      const settled = !chunk.hasFresh && !chunk.journalling && !this.#insufficient.has(chunk.claim.project_id)
      if (
        settled &&
        chunk.unfinished > 0 &&
        chunk.inFlight === 0 &&
        chunk.waiting.size > 0 &&
        chunk.waiting.size + chunk.remote.size === chunk.unfinished
      )
        park(chunk, this.#parkUntil(chunk))
    }
  }

  /** The outcome of the reservation is unknown: none of these lines is sent before the next check. */
  #restore({ chunk, unsent }: CheckRequest): void {
    for (const position of positionsOf(unsent)) {
      chunk.waiting.add(position)
      this.#options.funds.release(chunk, position)
    }
  }

  /** Updates the chunk and the funds, and returns the errors of rejected lines by position. */
  #applyReservation(chunk: OpenChunk, lines: readonly ReserveLine[], reservation: Reservation) {
    const { funds } = this.#options
    const { allowed, refused, waiting, isReserved, capped, day } = reservation
    chunk.capped = capped
    funds.cap(chunk.claim.project_id, capped)
    const inFlight = new Set(lines.filter((line) => line.isSent).map((line) => line.position))
    for (const { position } of lines) chunk.unchecked.delete(position)
    for (const position of allowed) {
      chunk.waiting.delete(position)
      if (isReserved) chunk.reserved.add(position)
      else chunk.reserved.delete(position)
      chunk.reserveOn(position, isReserved ? day : null)
      if (isReserved && !inFlight.has(position) && !chunk.isFinished(position)) funds.reserve(chunk, position)
      else funds.release(chunk, position)
    }
    for (const position of waiting) {
      chunk.waiting.add(position)
      chunk.reserved.delete(position)
      funds.release(chunk, position)
    }
    const language = languageOf(chunk.batch.language)
    return [...refused].map(([position, meter]) => {
      chunk.waiting.delete(position)
      chunk.reserved.delete(position)
      funds.release(chunk, position)
      const needed = counted(chunk.lines[position]!.projected, meter.limit.metric)
      return [position, lineLimitError(meter, needed, language)] as const
    })
  }

  get #today(): number {
    return dayOf(this.#options.clock.now())
  }

  #parkUntil(chunk: OpenChunk): number {
    const { clock, random } = this.#options
    const now = clock.now()
    this.#pausedUntil.set(chunk.claim.project_id, now + PROJECT_PAUSE_MS)
    return now + Math.ceil(PARK_MS * (1 + random()))
  }
}

/** Lines of a chunk that is being parked may not be sent, so nothing is reserved for them. */
function isCheckable(chunk: OpenChunk): boolean {
  return chunk.stopped === null && !chunk.parking
}

function positionsOf({ tried, fresh }: Unsent): number[] {
  return [...tried.map(({ job }) => job.position), ...fresh]
}

function candidate(chunk: OpenChunk, position: number, isSent: boolean): ReserveLine {
  const { entity, projected } = chunk.lines[position]!
  return { position, entity, projected, isSent, isReserved: chunk.reserved.has(position) }
}

/** The lines to check: withdrawn and waiting lines; with `all`, also lines in flight without a reservation. */
function linesOf(chunk: OpenChunk, unsent: Unsent, all: boolean): ReserveLine[] {
  const withdrawn = new Set(positionsOf(unsent))
  const lines = [...withdrawn, ...chunk.waiting].map((position) => candidate(chunk, position, false))
  if (!all) return lines
  for (const position of chunk.runnable())
    if (!withdrawn.has(position) && !chunk.waiting.has(position) && !chunk.reserved.has(position))
      lines.push(candidate(chunk, position, true))
  return lines
}
