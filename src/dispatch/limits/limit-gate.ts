// Lets lines through as far as spending limits allow. Before a chunk's lines are sent their worst case is
// reserved; a line that has met a cap ends there and then, and one for which there may be room later waits
// with its chunk, holding nothing. While chunks are open, lines that wait are judged again whenever something
// settled. All that is not sent is judged again when a limit was changed, when what is spent and reserved has
// passed a cap after all, and when lines cost so much more than estimated that too little is left of what is
// reserved (reserved-funds.ts). Where no limit matches, all this is one indexed read.
import type { Clock } from '../../domain/clock.ts'
import { WHOLE_PROJECT } from '../../domain/limit.ts'
import { counted } from '../../domain/spend.ts'
import { limitSubjects } from '../../ledger/counters.ts'
import { languageOf, lineLimitError } from '../../ledger/limit-error.ts'
import { overcommittedLimits, type Reservation, type ReserveLine } from '../../ledger/reserve.ts'
import type { OpenChunk } from '../../results/open-chunk.ts'
import { matchingLimits } from '../../store/limits.ts'
import type { Store } from '../../store/store.ts'
import type { Sender, Unsent } from '../send/sender.ts'
import { ReservationQueue } from './reservation-queue.ts'
import type { ReservedFunds } from './reserved-funds.ts'

/** How long a chunk that nothing fits rests before it is looked at again; chance spreads them. */
const REST_MS = 1_000
/** How long nothing further is claimed of a project after one of its chunks had to rest. */
const PROJECT_PAUSE_MS = 250

export interface LimitGateOptions {
  store: Store
  clock: Clock
  /** In [0, 1). */
  random: () => number
  sender: Pick<Sender, 'withdraw' | 'resume' | 'refuse'>
  funds: ReservedFunds
  /** Commits what these chunks have finished by now. */
  settle: (chunks: readonly OpenChunk[]) => Promise<void>
  openChunks: () => Iterable<OpenChunk>
  /** Gives back an open chunk of which nothing can be sent before `run_at` (Unix ms). */
  park: (chunk: OpenChunk, run_at: number) => void
  /** The chunk's lease turned out to be lost. */
  onLost: (chunk: OpenChunk) => void
}

/** Lines of a chunk that are judged, those that were taken back from the sender among them. */
interface Asked {
  chunk: OpenChunk
  unsent: Unsent
  lines: readonly ReserveLine[]
}

export class LimitGate {
  readonly #options: LimitGateOptions
  readonly #queue: ReservationQueue
  /** Projects of which lines were not sent because their reserved funds did not cover them. */
  readonly #insufficient = new Set<string>()
  readonly #pausedUntil = new Map<string, number>()
  readonly #checking = new Map<string, Promise<void>>()

  constructor(options: LimitGateOptions) {
    this.#options = options
    this.#queue = new ReservationQueue(options)
  }

  /** Projects of which nothing should be claimed just now: what they may still spend is all held. */
  pausedProjects(): string[] {
    const now = this.#options.clock.now()
    for (const [project, until] of this.#pausedUntil) if (until <= now) this.#pausedUntil.delete(project)
    return [...this.#pausedUntil.keys()]
  }

  /**
   * Reserves for a chunk that is about to be taken up, and notes on it which lines wait or are refused. When
   * nothing of it can be done now: the time (Unix ms) at which to try again. `version`: of the project's limits,
   * read when the chunk was claimed; a change since then is found by `recheck`.
   */
  async admit(chunk: OpenChunk, version: number): Promise<{ restUntil: number } | null> {
    const { store } = this.#options
    const project_id = chunk.claim.project_id
    chunk.limit_version = version
    if (version === 0) return null
    const wanted = { project_id, action: 'block' as const, ...limitSubjects(chunk.entities) }
    if ((await matchingLimits(store.read, wanted)).length === 0) return null
    const lines = chunk.runnable().map((position) => candidate(chunk, position, false))
    if (lines.length === 0) return null
    const { funds } = this.#options
    // From here on: what is reserved may be granted before excess that others are judged by is committed.
    funds.open(chunk)
    try {
      const reservation = await this.#queue.reserve(chunk, lines)
      if (!reservation) return null
      for (const [position, error] of this.#note(chunk, lines, reservation))
        chunk.refused.set(position, error)
    } catch (error) {
      funds.close(chunk)
      throw error
    }
    if (chunk.waiting.size < chunk.unfinished) return null
    funds.close(chunk)
    return { restUntil: this.#rest(chunk) }
  }

  /**
   * Judges the open chunks again where there is a reason to. `versions`: of the limits of projects, where they
   * were read just now; otherwise only what has settled since is looked at.
   */
  async recheck(versions: ReadonlyMap<string, number> = new Map()): Promise<void> {
    const projects = new Set([...this.#options.openChunks()].map((chunk) => chunk.claim.project_id))
    await Promise.all(
      [...projects].map((project_id) => this.#check(project_id, versions.get(project_id) ?? 0)),
    )
  }

  /** One check of a project at a time: who asks meanwhile waits for it. */
  #check(project_id: string, version: number): Promise<void> {
    const running = this.#checking.get(project_id)
    if (running) return running
    const checking = this.#recheckProject(project_id, version).finally(() => {
      this.#checking.delete(project_id)
    })
    this.#checking.set(project_id, checking)
    return checking
  }

  /** The reserved funds do not cover a line of the chunk. True if that was not known: then `recheck` is due. */
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
    // What was read may be older than what a chunk was admitted under meanwhile.
    const version = Math.max(read, ...chunks.map((chunk) => chunk.limit_version))
    if (version === 0) return
    const isNew = chunks.some((chunk) => chunk.limit_version !== version)
    // What has finished may be all that is needed to see that the cap is far.
    if (isInsufficient && !isNew) await this.#settle(project_id)
    const standing = isNew ? 'unclear' : await this.#standing(project_id, chunks)
    if (isNew || standing === 'over' || (isInsufficient && standing === 'unclear'))
      return await this.#checkAll(project_id, chunks, version, isNew)
    const waiting = chunks.filter((chunk) => chunk.waiting.size > 0)
    const none: Unsent = { fresh: [], tried: [] }
    await this.#checkLines(
      waiting.map((chunk) => ({ chunk, unsent: none, lines: linesOf(chunk, none, false) })),
      version,
    )
  }

  /**
   * How what is spent and reserved, by everybody, compares with the caps. `within` all of them: then there is room for
   * what is committed beside all that is reserved here, and the excess in it is forgiven. `over`: a line that could
   * still be kept back counts for a cap that is passed.
   */
  async #standing(project_id: string, chunks: readonly OpenChunk[]): Promise<'within' | 'over' | 'unclear'> {
    const { store, clock, funds } = this.#options
    const waiting = chunks.filter((chunk) => chunk.reservedUnsent.size > 0)
    if (waiting.length === 0) return 'unclear'
    const seen = funds.beginCheck(project_id)
    const entities = new Set(waiting.flatMap((chunk) => [...chunk.entities]))
    const over = await overcommittedLimits(store.read, project_id, entities, clock.now())
    if (over.length === 0) {
      seen()
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

  /** Commits what the project's chunks have finished by now. */
  async #settle(project_id: string): Promise<void> {
    const { settle, openChunks } = this.#options
    await settle([...openChunks()].filter((chunk) => chunk.claim.project_id === project_id))
  }

  /**
   * Judges whatever is not sent. What has finished is committed first: what it really cost then counts for
   * everybody before anything that is reserved here is given back.
   */
  async #checkAll(
    project_id: string,
    chunks: readonly OpenChunk[],
    version: number,
    isNew: boolean,
  ): Promise<void> {
    const { sender, funds } = this.#options
    const withdrawn = chunks.map((chunk) => [chunk, sender.withdraw(chunk)] as const)
    await this.#settle(project_id)
    const seen = funds.beginCheck(project_id)
    const judged = withdrawn.map(([chunk, unsent]) => ({
      chunk,
      unsent,
      lines: linesOf(chunk, unsent, true),
    }))
    await this.#checkLines(judged, version, () => {
      // A chunk that is being taken up was granted what it has before all this.
      const missed = funds
        .chunksOf(project_id)
        .filter((chunk) => isCheckable(chunk) && !chunks.includes(chunk))
      if (missed.every((chunk) => chunk.unfinished === 0)) seen()
    })
    if (isNew) funds.capAsReserved(project_id)
  }

  /** `seen` is called once all of them are judged, before any line is sent. */
  async #checkLines(asked: readonly Asked[], version: number, seen = (): void => {}): Promise<void> {
    const open = asked.filter(({ chunk }) => isCheckable(chunk))
    for (const { chunk, lines } of open) if (lines.length === 0) chunk.limit_version = version
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
        answer.status === 'rejected' ? () => this.#restore(one) : this.#conclude(one, answer.value, version),
      )
    }
    if (!failure) seen()
    for (const conclude of done) conclude()
    if (failure) throw failure.reason
  }

  /** Notes what was decided; what it returns sends and ends lines accordingly. */
  #conclude({ chunk, unsent, lines }: Asked, reservation: Reservation | null, version: number): () => void {
    const { sender, park, onLost } = this.#options
    // While it was waited for, the chunk may have been given back: what was granted has gone with its lease.
    if (chunk.parking) return () => {}
    if (!reservation) return () => onLost(chunk)
    const refused = this.#note(chunk, lines, reservation)
    chunk.limit_version = version
    const inFlight = new Set(lines.filter((line) => line.isSent).map((line) => line.position))
    return () => {
      if (!isCheckable(chunk)) return
      const allowed = reservation.allowed.filter((position) => !inFlight.has(position))
      sender.resume(chunk, allowed, unsent.tried)
      for (const [position, error] of refused) sender.refuse(chunk, position, error)
      // What it has finished and not yet settled may make room for the rest, and so may another judgment.
      const settled = !chunk.hasFresh && !chunk.journalling && !this.#insufficient.has(chunk.claim.project_id)
      if (settled && chunk.unfinished > 0 && chunk.waiting.size === chunk.unfinished)
        park(chunk, this.#rest(chunk))
    }
  }

  /** Whether anything was reserved or released is not known: nothing that was judged is sent until the next check. */
  #restore({ chunk, unsent }: Asked): void {
    for (const position of positionsOf(unsent)) {
      chunk.waiting.add(position)
      this.#options.funds.release(chunk, position)
    }
  }

  /** Writes down what became of each line, and returns the errors of those that are refused. */
  #note(chunk: OpenChunk, lines: readonly ReserveLine[], reservation: Reservation) {
    const { funds } = this.#options
    const { allowed, refused, waiting, isReserved: held, capped } = reservation
    chunk.capped = capped
    funds.cap(chunk.claim.project_id, capped)
    const inFlight = new Set(lines.filter((line) => line.isSent).map((line) => line.position))
    for (const position of allowed) {
      chunk.waiting.delete(position)
      if (held) chunk.reserved.add(position)
      else chunk.reserved.delete(position)
      if (held && !inFlight.has(position) && !chunk.isFinished(position)) funds.reserve(chunk, position)
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

  #rest(chunk: OpenChunk): number {
    const { clock, random } = this.#options
    const now = clock.now()
    this.#pausedUntil.set(chunk.claim.project_id, now + PROJECT_PAUSE_MS)
    return now + Math.ceil(REST_MS * (1 + random()))
  }
}

/** Of a chunk that is being given back nothing may be sent, so nothing is granted either. */
function isCheckable(chunk: OpenChunk): boolean {
  return chunk.stopped === null && !chunk.parking
}

function positionsOf({ tried, fresh }: Unsent): number[] {
  return [...tried.map(({ job }) => job.position), ...fresh]
}

function candidate(chunk: OpenChunk, position: number, sent: boolean): ReserveLine {
  const { entity, projected } = chunk.lines[position]!
  return { position, entity, projected, isSent: sent, isReserved: chunk.reserved.has(position) }
}

/** What is to be judged: lines that wait; with `all`, also those withdrawn and, where nothing holds them, those in flight. */
function linesOf(chunk: OpenChunk, unsent: Unsent, all: boolean): ReserveLine[] {
  const back = new Set(positionsOf(unsent))
  const lines = [...back, ...chunk.waiting].map((position) => candidate(chunk, position, false))
  if (!all) return lines
  for (const position of chunk.runnable())
    if (!back.has(position) && !chunk.waiting.has(position) && !chunk.reserved.has(position))
      lines.push(candidate(chunk, position, true))
  return lines
}
