// A run is a chunk that this worker has leased. It alone stores the state of each of its lines (line-state.ts), and the
// data of each line by position. Queues, groups and timers have entries (run, position), which are valid only if the
// run confirms them.
import { setMaxListeners } from 'node:events'
import { type Reask, readReask, type StopReason } from '../domain/batch.ts'
import { base32, lineRequestIdPrefix } from '../domain/ids.ts'
import { accountsOf, type LimitMetric, type Payer, payerKey } from '../domain/limit.ts'
import type { Price } from '../domain/money.ts'
import type { ChunkLine } from '../jsonl/chunk-lines.ts'
import { ChunkResults, chunkKey } from '../results/chunk-results.ts'
import type { Journalled } from '../results/journal.ts'
import type { AttemptRecord, LineAttempts, SharedFrom } from '../results/line-record.ts'
import type { Answered, Answerer, Earlier, SentLine } from '../results/record-line.ts'
import type { Upstream } from '../servers/upstream.ts'
import type { BatchRow, ChunkRow } from '../store/schema.ts'
import {
  COMMITTED,
  FINISHED,
  IllegalTransition,
  IN_FLIGHT,
  isLegal,
  LINE_STATES,
  type LineState,
  RETRYING,
  UNFUNDED,
  UNSENT,
} from './line-state.ts'

/** The reason to send no line of a run. `lost`: of its lease. `drained`: this worker requeues the chunk. */
export type RunStop = StopReason | 'lost' | 'drained'

/** The last answer of a line that is asked again. It counts without a further answer. */
interface KeptAnswer extends Answered {
  /** The bytes of the worker's memory of answers that the answer holds. */
  bytes: number
  by: Answerer
  /** The usage of earlier answers; `spent`: this answer included. */
  earlier: Earlier
  spent: Earlier
  /** The number of times that the line is asked again, the coming attempt included. */
  asked: number
  /** The messages in addition to the request in the next attempt; null: the attempt has another seed. */
  messages: Buffer | null
}

/** The number of times that a line missed an answer, as gates/retries.ts counts them. */
export interface TryCount {
  failures: number
  /** Misses that were the line's own fault. */
  own: number
  throttles: number
  /** Throttles; weighted, if other lines were answered meanwhile. */
  weightedThrottles: number
  /** The time spent waiting after throttles. */
  throttledMs: number
  /** The time of the first failure since the upstream's last answer; Unix ms. */
  firstFailureAt: number | null
}

export interface LineTries extends LineAttempts {
  readonly count: TryCount
  listed: AttemptRecord[]
  /** The upstream of the last failed attempt; the next attempt goes to another one if possible. */
  avoid: Upstream | null
  kept: KeptAnswer | null
}

/** An account and a metric that a limit caps. */
export interface Capped {
  account: string
  metric: LimitMetric
}

/** The limits of a project at a time: they change with their version, and their windows with the UTC day. */
export interface LimitsSeen {
  /** 0: the project has none. */
  version: number
  day: number
}

/** The line's projected spend is part of the run's reservation. */
const RESERVED = 1
/** The last check of the limits allows it. */
const ALLOWED = 2
/** An identical line's answer was searched for and not found; there is no second search. */
export const SEARCHED = 4
/** The line is not asked again: it was in flight when the limits were checked. */
export const LAST = 8
/** A caller has cancelled it: it is sent no more. */
export const CANCELLED = 16

interface Paying {
  payer: Payer
  accounts: readonly string[]
}

export class Run {
  readonly key: string
  readonly claim: ChunkRow
  readonly batch: BatchRow
  readonly requestIdPrefix: string
  readonly reask: Reask | null
  readonly results: ChunkResults
  #lines: readonly ChunkLine[]
  #bytes: Buffer
  readonly #states: Uint8Array
  readonly #counts = new Uint32Array(LINE_STATES.length)
  readonly #flags: Uint8Array
  /** The tries of lines by position, from the first miss on. */
  #tries: (LineTries | undefined)[] | null = null
  /** The UTC day under whose limits a line was reserved last, by position; 0: under no limits. */
  #days: Uint32Array | null = null
  /** The time at which a line may be sent again (Unix ms), by position. */
  #due: Float64Array | null = null
  #abort: AbortController | null = null
  #stopped: RunStop | null = null
  #recorded: SentLine | null = null
  #phase: 'open' | 'parking' | 'closed' = 'open'
  /** The payers of its lines, by entity and model, and the accounts to which their spend counts. */
  readonly #payers = new Map<string, Paying>()
  /** The payer of the last requested line: most chunks have one payer. */
  #lastPayer: Paying | null = null
  /** The limits of its last reservation. */
  capped: readonly Capped[] = []
  /** The limits at the last check of its lines. */
  limitsSeen: LimitsSeen = { version: 0, day: 0 }
  /** The prices at which its lines are projected, by model. */
  prices: ReadonlyMap<string, Price> = new Map()
  /** Whether its batch was paused at the last read. */
  isPaused: boolean
  /** Whether its lines may be sent only when limits allow them. */
  isLimited = false
  /** Whether a batch API would answer its lines too late. */
  isLate = false
  /** The batch's `line_cancels` when cancelled lines were last read. */
  lineCancels = 0
  /** Work on remote batches that is under way: the run is neither parked nor ended before it is done. */
  remoteWork = 0
  /** Alarms of the run, such as the end of its window. */
  readonly alarms: (() => void)[] = []
  /** The functions that are called when the run is stopped or closed. */
  readonly watchers = new Set<() => void>()
  /** Whether it is in the list of the turn (turn.ts). */
  isTouched = false

  constructor(
    claim: ChunkRow,
    batch: BatchRow,
    lines: readonly ChunkLine[],
    bytes: Buffer,
    journalled: readonly Journalled[] = [],
  ) {
    this.key = chunkKey(claim.batch_id, claim.idx)
    this.claim = claim
    this.batch = batch
    this.isPaused = batch.paused_at !== null
    this.#lines = lines
    this.#bytes = bytes
    this.requestIdPrefix = lineRequestIdPrefix(batch.id)
    this.reask = readReask(batch.reask)
    this.results = new ChunkResults(claim, lines, journalled)
    this.#states = new Uint8Array(lines.length)
    this.#flags = new Uint8Array(lines.length)
    this.#counts[UNFUNDED] = lines.length
    for (let position = 0; position < lines.length; position++)
      if (this.results.isFinished(position)) this.move(position, COMMITTED, 'it is in a journal')
  }

  get lines(): readonly ChunkLine[] {
    return this.#lines
  }

  /** The bytes of the input, to which positions in the lines refer. */
  get bytes(): Buffer {
    return this.#bytes
  }

  stateOf(position: number): LineState {
    return this.#states[position]!
  }

  count(state: LineState): number {
    return this.#counts[state]!
  }

  get unfinished(): number {
    return this.#states.length - this.#counts[FINISHED]! - this.#counts[COMMITTED]!
  }

  isFinished(position: number): boolean {
    return this.#states[position]! >= FINISHED
  }

  /** Unfinished lines in one of these states, or in any; none once the run is closed. */
  positions(...states: readonly LineState[]): number[] {
    const found: number[] = []
    for (let position = 0; position < this.#lines.length; position++) {
      const state = this.#states[position]!
      if (states.length === 0 ? state < FINISHED : states.includes(state)) found.push(position)
    }
    return found
  }

  /** Changes the state of a line; throws an IllegalTransition, and changes nothing, if the table has no such transition. */
  move(position: number, to: LineState, cause: string): void {
    const from = this.#states[position]!
    if (!isLegal(from, to)) throw new IllegalTransition(this.nameOf(position), from, to, cause)
    this.#states[position] = to
    this.#counts[from]!--
    this.#counts[to]!++
  }

  /** Whether an entry in a queue of unsent lines counts. */
  isUnsent(position: number): boolean {
    return this.#states[position] === UNSENT && this.mayMove
  }

  /** Whether an entry in a list of lines between attempts counts. */
  isRetrying(position: number): boolean {
    return this.#states[position] === RETRYING && this.mayMove
  }

  nameOf(position: number): string {
    const { batch_id, idx } = this.claim
    return `line ${this.#lines[position]?.line} of chunk ${idx} of ${batch_id}`
  }

  // What belongs to a line beside its state.

  is(position: number, flag: number): boolean {
    return (this.#flags[position]! & flag) !== 0
  }

  set(position: number, flag: number, is = true): void {
    if (is) this.#flags[position]! |= flag
    else this.#flags[position]! &= ~flag
  }

  isReserved(position: number): boolean {
    return this.is(position, RESERVED)
  }

  setReserved(position: number, is: boolean): void {
    this.set(position, RESERVED, is)
  }

  /** The UTC day of the line's last reservation, to which it is charged; null: without a limit. */
  reservedOn(position: number): number | null {
    return this.#days?.[position] || null
  }

  reserveOn(position: number, day: number | null): void {
    if (day === null && this.#days === null) return
    this.#days ??= new Uint32Array(this.#lines.length)
    this.#days[position] = day ?? 0
  }

  isAllowed(position: number): boolean {
    return !this.isLimited || this.is(position, ALLOWED)
  }

  setAllowed(position: number, is: boolean): void {
    this.set(position, ALLOWED, is)
  }

  triesOf(position: number): LineTries | undefined {
    return this.#tries?.[position]
  }

  setTries(position: number, tries: LineTries): void {
    this.#tries ??= new Array(this.#lines.length).fill(undefined)
    this.#tries[position] = tries
  }

  /** The tries of unfinished lines. */
  *allTries(): Generator<[position: number, tries: LineTries]> {
    for (const [position, tries] of this.#tries?.entries() ?? [])
      if (tries && !this.isFinished(position)) yield [position, tries]
  }

  dueOf(position: number): number {
    return this.#due?.[position] ?? 0
  }

  setDue(position: number, at: number): void {
    this.#due ??= new Float64Array(this.#lines.length)
    this.#due[position] = at
  }

  /** Whether the line ends with its present answer rather than wait for long, or without a reservation. */
  mayStandIn(position: number): boolean {
    // A line that was sent has a model; one without is not known any more, or the database rejects its results.
    return this.#tries?.[position]?.kept != null && this.#lines[position]!.model !== null
  }

  // The run as a whole.

  get stopped(): RunStop | null {
    return this.#stopped
  }

  /** Stops the run; the first reason stands, but `lost` overrides. */
  stop(reason: RunStop): void {
    if (this.#stopped === null || reason === 'lost') this.#stopped = reason
    for (const watch of this.watchers) watch()
  }

  get isParking(): boolean {
    return this.#phase === 'parking'
  }

  get isClosed(): boolean {
    return this.#phase === 'closed'
  }

  /** Whether its lines may be placed and sent. */
  get mayMove(): boolean {
    return this.#stopped === null && this.#phase === 'open'
  }

  /** Whether nothing of the run is under way. */
  get isIdle(): boolean {
    return this.#counts[IN_FLIGHT] === 0 && this.remoteWork === 0
  }

  /** Begins to end the lease: from here on the run's lines move only to an end. */
  park(): void {
    this.#phase = 'parking'
  }

  /** Frees the memory of a run whose lease has ended: entries in queues outlive the run. */
  close(): void {
    this.#phase = 'closed'
    for (const cancel of this.alarms.splice(0)) cancel()
    this.#lines = []
    this.#bytes = NOTHING
    this.#tries = null
    for (const watch of this.watchers) watch()
  }

  abort(): void {
    this.#controller.abort()
  }

  get isAborted(): boolean {
    return this.#abort?.signal.aborted ?? false
  }

  get signal(): AbortSignal {
    return this.#controller.signal
  }

  get #controller(): AbortController {
    if (this.#abort === null) {
      this.#abort = new AbortController()
      setMaxListeners(0, this.#abort.signal)
    }
    return this.#abort
  }

  /** The `traceparent` of lines without a span of their own; null without tracing. */
  get traceparent(): string | null {
    return this.results.trace?.traceparent ?? this.batch.traceparent
  }

  get payers(): readonly Payer[] {
    return [...new Set(this.#lines.map((_, position) => this.#paidBy(position).payer))]
  }

  /** The accounts to which the line's spend counts: the same list for all lines of a payer. */
  accountsOf(position: number): readonly string[] {
    return this.#paidBy(position).accounts
  }

  #paidBy(position: number): Paying {
    const { entity, known_model: model } = this.#lines[position]!
    const last = this.#lastPayer
    if (last !== null && last.payer.entity === entity && last.payer.model === model) return last
    const payer = { entity, model, key_id: this.claim.key_id }
    const key = payerKey(payer)
    const found = this.#payers.get(key) ?? { payer, accounts: accountsOf(payer) }
    this.#payers.set(key, found)
    this.#lastPayer = found
    return found
  }

  /** The model of its unfinished lines; null if they name several. */
  get onlyModel(): string | null {
    const [first = null, ...others] = this.models
    return others.length === 0 ? first : null
  }

  /** The models of its unfinished lines. */
  get models(): ReadonlySet<string> {
    const models = new Set<string>()
    for (let position = 0; position < this.#lines.length; position++) {
      const { model } = this.#lines[position]!
      if (model !== null && !this.isFinished(position)) models.add(model)
    }
    return models
  }

  /** The line for the record of its end; one object for all lines of the run, to be read before the next call. */
  recorded(position: number): SentLine {
    const { batch, requestIdPrefix, results, bytes } = this
    const line = this.#lines[position]!
    this.#recorded ??= {
      batch,
      requestIdPrefix,
      results,
      bytes,
      line,
      position,
      isReserved: false,
      isHeld: false,
      reservedOn: null,
    }
    this.#recorded.line = line
    this.#recorded.position = position
    this.#recorded.isReserved = this.isReserved(position)
    this.#recorded.isHeld = !this.isAllowed(position) && !this.isReserved(position)
    this.#recorded.reservedOn = this.reservedOn(position)
    return this.#recorded
  }

  /** The reference to the line in lines that share its answer. */
  sharedFrom(position: number): SharedFrom {
    const { line, custom_id_json } = this.#lines[position]!
    return { request_id: this.requestIdPrefix + base32(line), custom_id_json }
  }
}

const NOTHING = Buffer.alloc(0)
