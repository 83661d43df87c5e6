// A chunk that this worker has leased: its lines, which of them are finished, and whether the others may be sent. A
// line is finished at most once.
import { setMaxListeners } from 'node:events'
import type { StopReason } from '../domain/batch.ts'
import type { WireError } from '../domain/errors.ts'
import { lineRequestIdPrefix } from '../domain/ids.ts'
import type { LimitMetric } from '../domain/limit.ts'
import { dayOf } from '../domain/utc-day.ts'
import type { ChunkLine } from '../jsonl/chunk-lines.ts'
import type { BatchRow, ChunkRow } from '../store/schema.ts'
import type { ChunkTrace } from './chunk-trace.ts'
import { type FinishedLine, isInMemory, type Journalled } from './journal.ts'
import { type Outcome, weight } from './outcome.ts'

/** Why a chunk's lines are no longer sent. `lost`: another worker has the lease. `drained`: this worker is shutting down. */
export type ChunkStop = StopReason | 'lost' | 'drained'

/** A spender and a metric that a limit caps. */
export interface Capped {
  spender: string
  metric: LimitMetric
}

/** The limits of a project at a time: they change with their version, and their windows with the UTC day. */
export interface LimitsSeen {
  version: number
  day: number
}

export class OpenChunk {
  readonly claim: ChunkRow
  readonly batch: BatchRow
  readonly lines: readonly ChunkLine[]
  readonly bytes: Buffer
  readonly requestIdPrefix: string
  readonly #abort = new AbortController()
  readonly #position = new Map<number, number>()
  /** By position: the line's outcome, or its place in a journal. */
  readonly #outcomes: (FinishedLine | undefined)[]
  #fresh: Outcome[] = []
  #freshBytes = 0
  #keptBytes = 0
  #unfinished: number
  #stop: ChunkStop | null = null
  #entities: ReadonlySet<string> | null = null
  /** Of the last commit that took effect; each commit names the previous one. */
  commitSeq: number
  /** Positions of lines with a reservation. */
  readonly reserved = new Set<number>()
  /** By position, the UTC day under whose limits the line was reserved last, also of lines that a batch API has. */
  readonly #days = new Map<number, number>()
  /** Those of them that are not in flight. */
  readonly reservedUnsent = new Set<number>()
  /** The limits that its last reservation met. */
  capped: readonly Capped[] = []
  /** Whether reservations were ever requested for it under this lease. */
  hasReservations = false
  /** Positions of lines that wait for a reservation. */
  readonly waiting = new Set<number>()
  /** Lines that a limit rejected before the chunk was opened, by position, and their errors. */
  readonly refused = new Map<number, WireError>()
  /** The limits that its lines were last checked under. */
  limitsSeen: LimitsSeen = { version: 0, day: 0 }
  /** Positions of lines that a batch API has, or has results of that are not recorded. */
  readonly remote = new Set<number>()
  /** Positions of lines that came back from there: limits may have changed, and are checked before the next attempt. */
  readonly unchecked = new Set<number>()
  /** It is being parked; none of its lines may be queued again. */
  parking = false
  /** When its first line was sent (Unix ms), if its batch was still queued when it was opened. */
  begunAt: number | null = null
  /** How often its unfinished lines have been tried, for the worker that claims it next; set by the sender. */
  lineTries: () => string | null = () => null
  /** Lines with an attempt under way. */
  inFlight = 0
  /** Its spans; null where it is not sampled. */
  trace: ChunkTrace | null = null
  /** The journal write of this chunk that is under way; sealing waits for it. */
  journalling: Promise<void> | null = null

  constructor(
    claim: ChunkRow,
    batch: BatchRow,
    lines: readonly ChunkLine[],
    bytes: Buffer,
    journalled: readonly Journalled[],
  ) {
    this.claim = claim
    this.commitSeq = claim.commit_seq
    this.batch = batch
    this.lines = lines
    this.bytes = bytes
    this.requestIdPrefix = lineRequestIdPrefix(batch.id)
    this.#outcomes = new Array(lines.length).fill(undefined)
    this.#unfinished = lines.length
    for (const [position, { line }] of lines.entries()) this.#position.set(line, position)
    for (const written of journalled) this.#place(written)
    setMaxListeners(0, this.#abort.signal)
  }

  /** What the next commit names. */
  get lease(): ChunkRow {
    return { ...this.claim, commit_seq: this.commitSeq }
  }

  /** What model servers are told of its lines that have no span; null where nobody traces. */
  get traceparent(): string | null {
    return this.trace?.traceparent ?? this.batch.traceparent
  }

  get signal(): AbortSignal {
    return this.#abort.signal
  }

  get stopped(): ChunkStop | null {
    return this.#stop
  }

  get unfinished(): number {
    return this.#unfinished
  }

  /** Bytes of results in memory that no commit has counted yet. */
  get freshBytes(): number {
    return this.#freshBytes
  }

  /** Bytes of results in memory, committed ones included. */
  get keptBytes(): number {
    return this.#keptBytes
  }

  /** The entities of its lines. */
  get entities(): ReadonlySet<string> {
    this.#entities ??= new Set(this.lines.map((line) => line.entity).filter((entity) => entity !== null))
    return this.#entities
  }

  /** Positions of unfinished lines that can be sent if limits allow it, or are in flight. */
  runnable(): number[] {
    const positions: number[] = []
    for (const [position, line] of this.lines.entries())
      if (line.fault === null && !this.isFinished(position) && !this.remote.has(position))
        positions.push(position)
    return positions
  }

  /** Throws if the line is not in the chunk. */
  positionOf(line: number): number {
    const position = this.#position.get(line)
    if (position === undefined)
      throw new Error(`chunk ${this.claim.idx} of ${this.batch.id} has no line ${line}`)
    return position
  }

  isFinished(position: number): boolean {
    return this.#outcomes[position] !== undefined
  }

  /** The line is reserved under the limits of a day; null: under none. */
  reserveOn(position: number, day: number | null): void {
    if (day === null) this.#days.delete(position)
    else this.#days.set(position, day)
  }

  /** Null if no limit matched the line. */
  reservedOn(position: number): number | null {
    return this.#days.get(position) ?? null
  }

  /** The day to which the line is charged if it ends `now`. */
  dayOf(position: number, now: number): number {
    return this.#days.get(position) ?? dayOf(now)
  }

  finish(outcome: Outcome): void {
    this.#place(outcome)
    this.#fresh.push(outcome)
    this.#freshBytes += weight(outcome)
  }

  /** No further line is sent. `abort` ends those in flight as well. The first reason stands, but `lost` overrides. */
  stop(reason: ChunkStop, abort: boolean): void {
    if (this.#stop === null || reason === 'lost') this.#stop = reason
    if (abort) this.#abort.abort()
  }

  /** Takes the outcomes that the next commit will count. */
  takeFresh(): Outcome[] {
    const fresh = this.#fresh
    this.#fresh = []
    this.#freshBytes = 0
    return fresh
  }

  /** Returns outcomes that could not be committed; the next commit counts them. */
  putBack(fresh: readonly Outcome[]): void {
    this.#fresh.unshift(...fresh)
    for (const outcome of fresh) this.#freshBytes += weight(outcome)
  }

  get hasFresh(): boolean {
    return this.#fresh.length > 0
  }

  /** Drops the bytes of lines that are in a committed journal from memory. */
  forget(journalled: readonly Journalled[]): void {
    for (const line of journalled) {
      const position = this.#position.get(line.line)
      const outcome = position === undefined ? undefined : this.#outcomes[position]
      if (position === undefined || outcome === undefined || !isInMemory(outcome)) continue
      this.#outcomes[position] = line
      this.#keptBytes -= weight(outcome)
    }
  }

  /** Every finished line. */
  allFinished(): FinishedLine[] {
    return this.#outcomes.filter((finished) => finished !== undefined)
  }

  #place(finished: FinishedLine): void {
    const position = this.positionOf(finished.line)
    if (this.#outcomes[position] !== undefined)
      throw new Error(`line ${finished.line} of ${this.batch.id} finished twice`)
    this.#outcomes[position] = finished
    this.#unfinished--
    if (isInMemory(finished)) this.#keptBytes += weight(finished)
  }
}
