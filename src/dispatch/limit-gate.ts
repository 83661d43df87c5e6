// Lets lines through as far as spending limits allow. Before a chunk's lines are sent their worst case is
// reserved; a line that has met a cap ends there and then, and one for which there may be room later waits
// with its chunk, holding nothing. While chunks are open they are judged again when a limit was changed, when
// spending has passed a cap after all, and, for lines that wait, whenever something settled. Where no limit
// matches, all this is one indexed read.
import type { Clock } from '../domain/clock.ts'
import { WHOLE_PROJECT } from '../domain/limit.ts'
import { counted } from '../domain/spend.ts'
import { readCounters } from '../ledger/counters.ts'
import { languageOf, lineRefused } from '../ledger/limit-error.ts'
import { named } from '../ledger/named.ts'
import { type Reservation, type ReserveLine, reserve } from '../ledger/reserve.ts'
import { limitCrossed } from '../notify/limit-crossed.ts'
import { recordEvent } from '../notify/record-event.ts'
import { matchingLimits } from '../store/limits.ts'
import type { Store } from '../store/store.ts'
import type { OpenChunk } from './open-chunk.ts'
import type { Sender, Unsent } from './sender.ts'

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
  held: () => Iterable<OpenChunk>
  /** Gives back an open chunk of which nothing can be sent before `run_at` (Unix ms). */
  park: (chunk: OpenChunk, run_at: number) => void
  /** The chunk's lease turned out to be lost. */
  onLost: (chunk: OpenChunk) => void
}

interface Pending {
  chunk: OpenChunk
  lines: readonly ReserveLine[]
  resolve: (reservation: Reservation | null) => void
  reject: (error: unknown) => void
}

export class LimitGate {
  readonly #options: LimitGateOptions
  #queue: Pending[] = []
  #reserving = false
  readonly #judging = new Set<OpenChunk>()
  /** Spenders past their cap for whom the chunk was judged already. */
  readonly #judgedFor = new WeakMap<OpenChunk, Set<string>>()
  readonly #pausedUntil = new Map<string, number>()
  #checking: Promise<void> | null = null

  constructor(options: LimitGateOptions) {
    this.#options = options
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
  async admit(chunk: OpenChunk, version: number): Promise<{ rest_until: number } | null> {
    const { store } = this.#options
    const project_id = chunk.claim.project_id
    chunk.limit_version = version
    if (version === 0) return null
    const wanted = { project_id, action: 'block' as const, ...named(chunk.entities) }
    if ((await matchingLimits(store.read, wanted)).length === 0) return null
    const lines = chunk.runnable().map((position) => candidate(chunk, position, false))
    if (lines.length === 0) return null
    const reservation = await this.#reserve(chunk, lines)
    if (!reservation) return null
    for (const [position, error] of this.#note(chunk, reservation)) chunk.refused.set(position, error)
    return chunk.waiting.size === chunk.unfinished ? { rest_until: this.#rest(chunk) } : null
  }

  /**
   * Judges the open chunks again where there is a reason to. `versions`: of the limits of projects, where they
   * were read just now; otherwise only what has settled since is looked at.
   */
  recheck(versions: ReadonlyMap<string, number> = new Map()): Promise<void> {
    this.#checking ??= this.#recheckAll(versions).finally(() => {
      this.#checking = null
    })
    return this.#checking
  }

  async #recheckAll(versions: ReadonlyMap<string, number>): Promise<void> {
    const open = [...this.#options.held()].filter((chunk) => chunk.stopped === null && chunk.unfinished > 0)
    for (const [project_id, chunks] of Map.groupBy(open, (chunk) => chunk.claim.project_id))
      await this.#recheckProject(project_id, chunks, versions.get(project_id) ?? 0)
  }

  async #recheckProject(project_id: string, chunks: readonly OpenChunk[], read: number): Promise<void> {
    // What was read may be older than what a chunk was admitted under meanwhile.
    const version = Math.max(read, ...chunks.map((chunk) => chunk.limit_version))
    if (version === 0) return
    const limited = chunks.filter((chunk) => chunk.held.size > 0 || chunk.waiting.size > 0)
    const over = limited.length > 0 ? await this.#overspent(project_id, limited) : new Set<string>()
    for (const chunk of chunks) {
      const isNew = chunk.limit_version !== version
      if (isNew) this.#judgedFor.delete(chunk)
      if (isNew || this.#concerns(chunk, over)) await this.#judge(chunk, version, true)
      else if (chunk.waiting.size > 0) await this.#judge(chunk, version, false)
    }
  }

  /** Spenders that are past a cap: real usage may exceed the estimate that was held. */
  async #overspent(project_id: string, chunks: readonly OpenChunk[]): Promise<Set<string>> {
    const { store, clock } = this.#options
    const entities = new Set(chunks.flatMap((chunk) => [...chunk.entities]))
    const limits = await matchingLimits(store.read, { project_id, action: 'block', ...named(entities) })
    const counters = await readCounters(store.read, project_id, limits, entities, clock.now())
    return new Set(
      counters.filter(({ limit, spent }) => spent > limit.amount).map((counter) => counter.spender),
    )
  }

  #concerns(chunk: OpenChunk, spenders: ReadonlySet<string>): boolean {
    const judged = this.#judgedFor.get(chunk) ?? new Set()
    this.#judgedFor.set(chunk, judged)
    let isNew = false
    for (const spender of spenders) {
      if (judged.has(spender) || !(spender === WHOLE_PROJECT || chunk.entities.has(spender))) continue
      judged.add(spender)
      isNew = true
    }
    return isNew
  }

  /** `all`: every line that has not been sent; else only those that wait. */
  async #judge(chunk: OpenChunk, version: number, all: boolean): Promise<void> {
    const { sender } = this.#options
    if (this.#judging.has(chunk) || chunk.stopped !== null) return
    this.#judging.add(chunk)
    const unsent: Unsent = all ? sender.withdraw(chunk) : { fresh: [], tried: [] }
    try {
      const lines = linesOf(chunk, unsent, all)
      const reservation = await this.#reserve(chunk, lines)
      if (!reservation) return this.#options.onLost(chunk)
      const refused = this.#note(chunk, reservation)
      chunk.limit_version = version
      if (chunk.stopped !== null) return
      const inFlight = new Set(lines.filter((line) => line.sent).map((line) => line.position))
      sender.resume(
        chunk,
        reservation.allowed.filter((position) => !inFlight.has(position)),
        unsent.tried,
      )
      for (const [position, error] of refused) sender.refuse(chunk, position, error)
      // What it has finished and not yet settled may make room for the rest.
      const settled = !chunk.hasFresh && !chunk.journalling
      if (settled && chunk.unfinished > 0 && chunk.waiting.size === chunk.unfinished)
        this.#options.park(chunk, this.#rest(chunk))
    } catch (error) {
      // What was granted stays granted; what could not be judged waits.
      const granted = positionsOf(unsent).filter((position) => chunk.held.has(position))
      if (chunk.stopped === null) sender.resume(chunk, granted, unsent.tried)
      for (const position of positionsOf(unsent)) if (!chunk.held.has(position)) chunk.waiting.add(position)
      throw error
    } finally {
      this.#judging.delete(chunk)
    }
  }

  /** Writes down what became of each line, and returns the errors of those that are refused. */
  #note(chunk: OpenChunk, { allowed, refused, waiting, held }: Reservation) {
    for (const position of allowed) {
      chunk.waiting.delete(position)
      if (held) chunk.held.add(position)
      else chunk.held.delete(position)
    }
    for (const position of waiting) {
      chunk.waiting.add(position)
      chunk.held.delete(position)
    }
    const language = languageOf(chunk.batch.language)
    return [...refused].map(([position, meter]) => {
      chunk.waiting.delete(position)
      chunk.held.delete(position)
      const needed = counted(chunk.lines[position]!.projected, meter.limit.metric)
      return [position, lineRefused(meter, needed, language)] as const
    })
  }

  #rest(chunk: OpenChunk): number {
    const { clock, random } = this.#options
    const now = clock.now()
    this.#pausedUntil.set(chunk.claim.project_id, now + PROJECT_PAUSE_MS)
    return now + Math.ceil(REST_MS * (1 + random()))
  }

  /** What is asked for while a transaction runs goes into the next one together. */
  #reserve(chunk: OpenChunk, lines: readonly ReserveLine[]): Promise<Reservation | null> {
    chunk.mayHold = true
    return new Promise((resolve, reject) => {
      this.#queue.push({ chunk, lines, resolve, reject })
      if (!this.#reserving) void this.#reserveQueued()
    })
  }

  async #reserveQueued(): Promise<void> {
    this.#reserving = true
    while (this.#queue.length > 0) {
      const group = this.#queue
      this.#queue = []
      try {
        const reservations = await this.#reserveGroup(group)
        for (const [i, pending] of group.entries()) pending.resolve(reservations[i] ?? null)
      } catch (error) {
        for (const pending of group) pending.reject(error)
      }
    }
    this.#reserving = false
  }

  async #reserveGroup(group: readonly Pending[]): Promise<(Reservation | null)[]> {
    const { store, clock } = this.#options
    return await store.write(async (tx) => {
      const now = clock.now()
      const reservations: (Reservation | null)[] = []
      for (const { chunk, lines } of group) {
        const reservation = await reserve(tx, { claim: chunk.claim, lines }, now)
        for (const crossing of reservation?.crossings ?? [])
          await recordEvent(tx, limitCrossed(crossing), now)
        reservations.push(reservation)
      }
      return reservations
    })
  }
}

function positionsOf({ tried, fresh }: Unsent): number[] {
  return [...tried.map(({ job }) => job.position), ...fresh]
}

function candidate(chunk: OpenChunk, position: number, sent: boolean): ReserveLine {
  const { entity, projected } = chunk.lines[position]!
  return { position, entity, need: projected, sent, held: chunk.held.has(position) }
}

/** What is to be judged: lines that wait; with `all`, also those withdrawn and, where nothing holds them, those in flight. */
function linesOf(chunk: OpenChunk, unsent: Unsent, all: boolean): ReserveLine[] {
  const back = new Set(positionsOf(unsent))
  const lines = [...back, ...chunk.waiting].map((position) => candidate(chunk, position, false))
  if (!all) return lines
  for (const position of chunk.runnable())
    if (!back.has(position) && !chunk.waiting.has(position) && !chunk.held.has(position))
      lines.push(candidate(chunk, position, true))
  return lines
}
