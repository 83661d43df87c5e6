// One model server as the dispatcher sees it: its backend, its concurrency limit and its circuit breaker, and whether
// the line or the server is to blame when an attempt fails.
import type { Backend, BackendResult, ServerOnDemand } from '../../backends/backend.ts'
import type { BatchApi } from '../../backends/batch-api/batch-api.ts'
import type { OpeningHours } from '../../domain/hours.ts'
import type { Price } from '../../domain/money.ts'
import { Circuit, type Miss, type Probe, type Ticket } from './circuit.ts'
import { ConcurrencyLimit, type Sent } from './concurrency.ts'
import type { LiveServer } from './live-server.ts'
import type { Blame, MissedResult } from './retry-policy.ts'

/** The pause of an upstream that throttles its only line in flight and names no time. */
const THROTTLE_PAUSE_MS = 250
/** The longest pause: the server may have meant that one line, which waits as long as the server asked. */
const THROTTLE_PAUSE_MS_MAX = 60_000

/** What the configuration may change while lines are in flight. */
export interface UpstreamTerms {
  concurrency_max: number
  /** Lines go to the lowest tier that can take them; 0 by default. */
  tier?: number
  /** Null or absent: the model's. */
  price?: Price | null
  /** Null or absent: always open. */
  hours?: OpeningHours | null
}

export interface UpstreamOptions extends UpstreamTerms {
  backend: Backend
  /** What this server calls the model; null when it is the model's own ID. */
  modelAlias: string | null
  /** The server that answers other requests too; null or absent: only lines. */
  live?: LiveServer | null
  /** Added to the body of every line; null or absent: nothing is added. */
  priority?: number | null
}

/** An attempt under way. */
export interface Call {
  ticket: Ticket
  sent: Sent
}

export class Upstream {
  readonly backend: Backend
  readonly limit: ConcurrencyLimit
  #terms: UpstreamTerms
  readonly circuit = new Circuit()
  /** The JSON string that replaces `model` in the body; null to send the body untouched. */
  readonly modelJson: Buffer | null
  /** Takes the place of the brace that ends the body; null to send the body untouched. */
  readonly bodyEnd: Buffer | null
  readonly live: LiveServer | null
  /** Lines that a batch API has, as seen last, and those that are on their way to it. */
  #linesOpen = 0
  #linesOnTheirWay = 0
  /** The concurrency limit before the current misses. */
  #limitBefore = 0
  #retired = false

  constructor(options: UpstreamOptions) {
    this.backend = options.backend
    this.#terms = options
    this.live = options.live ?? null
    const max = options.concurrency_max
    // Lines at a shared server are bounded by their share of it.
    this.limit = new ConcurrencyLimit(this.live === null ? { max } : { max, start: max, seeksPlateau: false })
    this.modelJson = options.modelAlias === null ? null : Buffer.from(JSON.stringify(options.modelAlias))
    const { priority = null } = options
    this.bodyEnd = priority === null ? null : Buffer.from(`,"priority":${priority}}`)
    const { onDemand } = options.backend
    onDemand?.onChange(() => {
      if (onDemand.isUp) this.circuit.onStarted()
    })
  }

  get name(): string {
    return this.backend.name
  }

  get tier(): number {
    return this.#terms.tier ?? 0
  }

  get price(): Price | null {
    return this.#terms.price ?? null
  }

  /** From now on; what is in flight is not affected. */
  setTerms(terms: UpstreamTerms): void {
    this.#terms = terms
    this.limit.setMax(terms.concurrency_max)
  }

  /** The most lines that may be in flight at this time of the day; 0: it is closed. */
  placesAllowed(now: number): number {
    const { hours, concurrency_max } = this.#terms
    return Math.min(concurrency_max, hours?.at(now).concurrency_max ?? concurrency_max)
  }

  /** What its hours allow just now and until when (Unix ms); null where it has none. */
  openingAt(now: number): { places: number; until: number | null } | null {
    const { hours } = this.#terms
    if (!hours) return null
    const { until } = hours.at(now)
    return { places: this.placesAllowed(now), until: Number.isFinite(until) ? until : null }
  }

  /** The lines that it takes at once now: as found, and as its hours and the requests of others allow. */
  concurrency(now: number): number {
    const { limit, inFlight } = this.limit
    return Math.min(limit, this.placesAllowed(now), this.live?.places(inFlight, now) ?? limit)
  }

  /** Places for further lines. */
  freePlaces(now: number): number {
    return this.isAvailable ? Math.max(0, this.concurrency(now) - this.limit.inFlight) : 0
  }

  /** Whether any line may be sent. */
  accepts(now: number): boolean {
    return this.circuit.closed && this.freePlaces(now) > 0
  }

  /** Whether its server takes lines, or is not one that is started on demand. */
  get isAvailable(): boolean {
    return this.backend.onDemand?.isAvailable ?? true
  }

  /** Of an upstream that takes lines by the chunk, and answers them in a batch. */
  get batches(): BatchApi | null {
    return this.backend.batches ?? null
  }

  /** Lines that a batch API has; 0 of a model server. */
  get linesThere(): number {
    return this.#linesOpen + this.#linesOnTheirWay
  }

  /** All workers together. */
  sawLines(open: number): void {
    this.#linesOpen = open
  }

  handOver(lines: number): void {
    this.#linesOnTheirWay += lines
  }

  handedOver(lines: number, areThere: boolean): void {
    this.#linesOnTheirWay -= lines
    if (areThere) this.#linesOpen += lines
  }

  get onDemand(): ServerOnDemand | null {
    return this.backend.onDemand ?? null
  }

  /** Whether no line, or no line of one batch, can be sent for a while: its hours, its circuit, or others' requests. */
  blocked(now: number, batch_id?: string): boolean {
    if (this.placesAllowed(now) === 0 || this.takenSince(now) !== null) return true
    return this.circuit.blocks(now, batch_id)
  }

  /** Since when other requests have taken all of its server (Unix ms); else null. */
  takenSince(now: number): number | null {
    return this.live?.takenSince(now) ?? null
  }

  /** Since when it has answered nothing, being unreachable or failing (Unix ms); null while it answers or is throttled. */
  get downSince(): number | null {
    const { missStreak, open } = this.circuit
    if (missStreak === null) return null
    const { since, last } = missStreak
    return open || last === 'unreachable' || last === 'unavailable' ? since : null
  }

  /** When the circuit's pause ends or its hours change (Unix ms); null if it waits for neither. */
  opensAt(now: number): number | null {
    const { hours } = this.#terms
    const at = this.circuit.retryAt
    const retryAt = at !== null && at > now ? at : Number.POSITIVE_INFINITY
    const first = Math.min(retryAt, hours?.at(now).until ?? Number.POSITIVE_INFINITY)
    return first === Number.POSITIVE_INFINITY ? null : first
  }

  /** Nothing more is sent; its connections are closed when nothing is in flight. */
  retire(): void {
    this.#retired = true
    this.#closeIfRetired()
  }

  #closeIfRetired(): void {
    if (this.#retired && this.limit.inFlight === 0) void this.backend.close()
  }

  begin(line: Probe, now: number): Call {
    this.live?.begin()
    return { sent: this.limit.acquire(now), ticket: this.circuit.onSent(line, now) }
  }

  withdraw({ sent, ticket }: Call, now: number): void {
    this.live?.end(now - sent.at, null)
    this.limit.onAborted(sent, now)
    this.circuit.onAborted(ticket)
    this.#closeIfRetired()
  }

  /** Records the result of an attempt; returns whether the line or the server is to blame if it missed. */
  end(call: Call, result: BackendResult, now: number): Blame | null {
    const usage = result.kind === 'answered' ? result.answer.usage : null
    this.live?.end(now - call.sent.at, usage?.completion_tokens ?? null)
    const blame = this.#judge(call, result, now)
    this.#closeIfRetired()
    return blame
  }

  /** The batch API took lines. */
  took({ sent, ticket }: Call, now: number): void {
    this.limit.onAnswered(sent, now)
    this.circuit.onAnswered(ticket, now)
    this.#closeIfRetired()
  }

  #judge({ sent, ticket }: Call, result: BackendResult, now: number): Blame | null {
    const { limit, circuit } = this
    if (result.kind === 'answered' || result.kind === 'refused') {
      limit.onAnswered(sent, now)
      if (circuit.isOnlyOthers(ticket.batch_id)) limit.restore(this.#limitBefore)
      circuit.onAnswered(ticket, now)
      return null
    }
    if (circuit.missStreak === null) this.#limitBefore = limit.limit
    const isLast = limit.inFlight === 1
    const miss = missOf(result, isLast)
    // As known before this miss, which is no evidence itself. Where a proxy answers for a server, so is no earlier one.
    const isUp = circuit.isUp(now, ticket.line) && (miss !== 'unavailable' || circuit.missStreak === null)
    const pauseMs =
      result.kind === 'throttled' && isLast
        ? Math.min(result.retry_after_ms ?? THROTTLE_PAUSE_MS, THROTTLE_PAUSE_MS_MAX)
        : null
    const counts = circuit.onMissed(ticket, miss, result, now, pauseMs)
    if (!counts) limit.onAborted(sent, now)
    else if (result.kind === 'throttled') limit.onThrottled(sent)
    else limit.onFailed(sent, now)
    return this.#blame(ticket, result, miss, isUp)
  }

  #blame({ batch_id }: Ticket, result: MissedResult, miss: Miss, isUp: boolean): Blame {
    if (miss === 'unreachable') return 'server'
    if (result.kind === 'throttled')
      return this.circuit.isHopeless(batch_id) ? 'line' : isUp ? 'unlucky' : 'server'
    const mayBeGone = miss === 'unavailable' || isBroken(result)
    return !mayBeGone || isUp || this.circuit.isAtFault(batch_id) ? 'line' : 'server'
  }
}

/**
 * `isLast`: of a line that was alone in flight. A server that is full has others under way when it throttles; one that
 * takes not even a single line is as good as gone, whoever says so.
 */
function missOf(result: MissedResult, isLast: boolean): Miss {
  if (result.kind === 'throttled') return result.isOfGateway && isLast ? 'unavailable' : 'throttled'
  if (result.unreachable === true) return 'unreachable'
  return result.isOfGateway ? 'unavailable' : 'failed'
}

/** Whether the connection broke. */
function isBroken(result: MissedResult): boolean {
  return result.kind === 'failed' && result.status === null && result.code === 'upstream_unavailable'
}
