// One upstream as the dispatcher sees it: name, tier, hours, price, concurrency limit and circuit breaker, and whether
// the line or the server caused a failed attempt. Model servers answer single lines; dispatch/senders/batch-apis/batch-api-upstream.ts adds
// what batch APIs need.
import type { Backend, BackendResult, ServerOnDemand, ServerTraffic } from '../backends/backend.ts'
import type { EndpointPath } from '../domain/endpoint.ts'
import type { OpeningHours } from '../domain/hours.ts'
import type { Price } from '../domain/money.ts'
import type { OperatorFields, Priority } from '../jsonl/request-body.ts'
import type { RecordObserver } from '../results/commit-queue.ts'
import { Circuit, type Miss, type Ticket } from './circuit.ts'
import { ConcurrencyLimit, type ConcurrencyOptions, type Sent } from './concurrency.ts'
import type { LiveServer } from './live/live-server.ts'

/** The pause of an upstream that throttles its only line in flight and names no time. */
const THROTTLE_PAUSE_MS = 250
/** The longest pause of an upstream; the throttled line itself waits for as long as the server asked. */
const THROTTLE_PAUSE_MS_MAX = 60_000

/** The interval at which a server with room is asked for more: at first, and at most. */
const ROOM_READ_MS = 200
const ROOM_READ_MS_MAX = 300_000
/** The share of the lines in flight that a server with room works on; some are on their way. */
const ROOM_RUNNING_MIN = 0.9
/** The share of the KV cache that may be in use: answers get longer. */
const ROOM_CACHE_MAX = 0.5
/** The rate of each running request, in tokens per second, below which answers to many more requests could time out. */
const ROOM_TOKENS_PER_S_MIN = 10
/** The number of lines up to which the limit doubles also where requests are slower, or their rate is unknown. */
const ROOM_LINES_ANYWAY = 32

/** Settings that a reload may change while lines are in flight. */
export interface UpstreamTerms {
  concurrency_max: number
  /** The tier; lines go to the lowest tier that can take them; 0 by default. */
  tier?: number
  /** The price; null or absent: the model's. */
  price?: Price | null
  /** The opening hours; null or absent: always open. */
  hours?: OpeningHours | null
}

export interface UpstreamOptions extends UpstreamTerms {
  /** The model's name at the upstream; null when it is the model's own ID. */
  modelAlias: string | null
  /** The same server with other settings, whose lines in flight and health are kept. */
  before?: Upstream | null
}

export interface Call extends Ticket, Sent {}

export type MissedResult = Extract<BackendResult, { kind: 'throttled' | 'failed' }>

/**
 * The cause of a missing answer. `line`: the server answers other lines. `server`: the server answers no line.
 * `unlucky`: the line was throttled while others were answered.
 */
export type Blame = 'line' | 'server' | 'unlucky'

export interface EndedAttempt {
  upstream: Upstream
  /** The times at which the attempt began and ended (Unix ms). */
  at: number
  now: number
  /** The ID of the batch at the batch API that had the line. */
  remote_batch?: string
  /** The random part of the line's backoff, in [0, 1): equal for lines that are to be tried again together. */
  draw?: number
  /** Whether this worker aborted the attempt, which costs the line no try. */
  isAborted?: boolean
  /** Whether the next attempt may go to the same upstream in spite of this miss. */
  mayStay?: boolean
}

export abstract class Upstream {
  readonly limit: ConcurrencyLimit
  readonly circuit: Circuit
  abstract readonly name: string
  /** The control of a server that runs only while lines wait for it. */
  readonly onDemand: ServerOnDemand | null = null
  /** The provider, by its address (domain/gen-ai.ts); null: it does not tell. */
  provider: string | null = null
  /** The JSON string that replaces `model` in the body; null to send the body untouched. */
  readonly modelJson: Buffer | null
  #terms: UpstreamTerms
  /** Lines in flight over this upstream's connections; its server may have others, sent with earlier settings. */
  #inFlight = 0
  /** The concurrency limit before the current misses. */
  #limitBefore = 0
  #retired = false

  constructor(options: UpstreamOptions, limit: ConcurrencyOptions) {
    const { modelAlias, before = null, ...terms } = options
    this.#terms = terms
    this.modelJson = modelAlias === null ? null : Buffer.from(JSON.stringify(modelAlias))
    this.limit = before?.limit ?? new ConcurrencyLimit(limit)
    this.limit.setMax(limit.max)
    this.circuit = before?.circuit ?? new Circuit()
    if (before) this.#limitBefore = before.#limitBefore
  }

  /** Closes connections; attempts still in flight are aborted. */
  abstract close(): Promise<void>

  get tier(): number {
    return this.#terms.tier ?? 0
  }

  get price(): Price | null {
    return this.#terms.price ?? null
  }

  /** Applies other settings; lines in flight are not affected. */
  setTerms(terms: UpstreamTerms): void {
    this.#terms = terms
    this.limit.setMax(terms.concurrency_max)
  }

  /** The limit of lines in flight at this time of the day; 0: the upstream is closed. */
  placesAllowed(now: number): number {
    const { hours, concurrency_max } = this.#terms
    if (!hours) return concurrency_max
    return Math.min(concurrency_max, hours.at(now).concurrency_max ?? concurrency_max)
  }

  /** The slots that the hours allow now, and their end (Unix ms); null without hours. */
  openingAt(now: number): { places: number; until: number | null } | null {
    const { hours } = this.#terms
    if (!hours) return null
    const { until } = hours.at(now)
    return { places: this.placesAllowed(now), until: Number.isFinite(until) ? until : null }
  }

  /** The number of lines that the upstream takes at once now, by its limit and its hours. */
  concurrency(now: number): number {
    return Math.min(this.limit.limit, this.placesAllowed(now))
  }

  /** Whether the upstream's server takes lines, or always runs. */
  get isAvailable(): boolean {
    return this.onDemand?.isAvailable ?? true
  }

  /** The time since which live traffic has taken the whole server (Unix ms); else null. */
  takenSince(_now: number): number | null {
    return null
  }

  freePlaces(now: number): number {
    return this.isAvailable ? Math.max(0, this.concurrency(now) - this.limit.inFlight) : 0
  }

  accepts(now: number): boolean {
    return this.circuit.closed && this.freePlaces(now) > 0
  }

  /** Whether no line, or no line of one batch, can be sent for a while. */
  blocked(now: number, batch_id?: string): boolean {
    if (this.placesAllowed(now) === 0 || this.takenSince(now) !== null) return true
    return this.circuit.blocks(now, batch_id)
  }

  /** The time since which the upstream is unreachable or fails (Unix ms); null while it answers or is throttled. */
  get downSince(): number | null {
    const { missStreak, open } = this.circuit
    if (missStreak === null) return null
    const { since, last } = missStreak
    return open || last === 'unreachable' || last === 'unavailable' ? since : null
  }

  /** The time at which the circuit's pause ends or the hours change (Unix ms); null if neither does. */
  opensAt(now: number): number | null {
    const { hours } = this.#terms
    const at = this.circuit.retryAt
    const retryAt = at !== null && at > now ? at : Number.POSITIVE_INFINITY
    const first = Math.min(retryAt, hours?.at(now).until ?? Number.POSITIVE_INFINITY)
    return first === Number.POSITIVE_INFINITY ? null : first
  }

  /** Ends the upstream's use; its connections are closed when nothing is in flight. */
  retire(): void {
    this.#retired = true
    this.#closeIfRetired()
  }

  #closeIfRetired(): void {
    if (this.#retired && this.#inFlight === 0) void this.close()
  }

  begin(call: Call): void {
    this.#inFlight++
    this.limit.acquire(call)
    this.circuit.onSent(call)
  }

  /** Ends an attempt that the worker aborted, or failed by a mistake of its own: that says nothing about the server. */
  withdraw(call: Call, now: number): void {
    this.#inFlight--
    this.limit.onAborted(call, now)
    this.circuit.endProbe(call)
    this.#closeIfRetired()
  }

  /** Records the result of an attempt; returns whether the line or the server is to blame if it missed. */
  end(call: Call, result: BackendResult, now: number): Blame | null {
    const blame =
      result.kind === 'answered' || result.kind === 'refused' ? null : this.#judge(call, result, now)
    if (blame === null) this.took(call, now)
    else {
      this.#inFlight--
      this.#closeIfRetired()
    }
    return blame
  }

  /** Notes that the upstream accepted the call's lines. */
  took(call: Call, now: number): void {
    const { limit, circuit } = this
    this.#inFlight--
    limit.onAnswered(call, now)
    if (circuit.isOnlyOthers(call.batch_id)) limit.restore(this.#limitBefore)
    circuit.onAnswered(call, now)
    this.#closeIfRetired()
  }

  #judge(call: Call, result: MissedResult, now: number): Blame {
    const { limit, circuit } = this
    if (circuit.missStreak === null) this.#limitBefore = limit.limit
    const isLast = limit.atServer === 1
    const miss = missOf(result, isLast)
    // As known before this miss, which is no evidence itself. Where a proxy answers for a server, so is no earlier one.
    // A server that refuses this service is to blame, unless it has answered others since this line missed.
    const isUp =
      circuit.isUp(now, call.line) &&
      (miss !== 'unavailable' || circuit.missStreak === null) &&
      (call.missedBefore || !refusesService(result))
    const pauseMs =
      result.kind === 'throttled' && isLast
        ? Math.min(result.retry_after_ms ?? THROTTLE_PAUSE_MS, THROTTLE_PAUSE_MS_MAX)
        : null
    const counts = circuit.onMissed(call, miss, result, now, pauseMs)
    if (!counts) limit.onAborted(call, now)
    else if (result.kind === 'throttled') limit.onThrottled(call)
    else limit.onFailed(call, now)
    return this.#blame(call, result, miss, isUp)
  }

  #blame({ batch_id }: Ticket, result: MissedResult, miss: Miss, isUp: boolean): Blame {
    if (miss === 'unreachable') return 'server'
    if (result.kind === 'throttled')
      return this.circuit.faults.isHopeless(batch_id) ? 'line' : isUp ? 'unlucky' : 'server'
    const mayBeGone = miss === 'unavailable' || isBroken(result)
    return !mayBeGone || isUp || this.circuit.faults.isAtFault(batch_id) ? 'line' : 'server'
  }
}

/** The kind of a miss. `isLast`: the line was alone in flight; a server that takes no single line counts as gone. */
function missOf(result: MissedResult, isLast: boolean): Miss {
  if (result.kind === 'throttled') return result.isOfGateway && isLast ? 'unavailable' : 'throttled'
  if (result.unreachable === true) return 'unreachable'
  return result.isOfGateway || result.refusesService ? 'unavailable' : 'failed'
}

function refusesService(result: MissedResult): boolean {
  return result.kind === 'failed' && result.refusesService === true
}

function isBroken(result: MissedResult): boolean {
  return result.kind === 'failed' && result.status === null && result.code === 'upstream_unavailable'
}

interface ModelServerOptions extends UpstreamOptions {
  backend: Backend
  /** The live traffic of the server; null or absent: it answers only lines. */
  live?: LiveServer | null
  /** The priority in the body of every line; null or absent: none. */
  priority?: Priority | null
  service_tier?: string | null
  provider?: string | null
}

/** Answers single lines. */
export class ModelServer extends Upstream {
  readonly name: string
  override readonly onDemand: ServerOnDemand | null
  readonly backend: Backend
  readonly operatorFields: OperatorFields | null
  readonly live: LiveServer | null
  /** The last reading of metrics in search of room, the time of the next one (Unix ms), and the interval after it. */
  #room: { traffic: ServerTraffic | null; at: number } = { traffic: null, at: 0 }
  #roomDueAt = 0
  #roomEveryMs = ROOM_READ_MS
  /** Lines in flight that missed before, and their limit. */
  #again = 0
  #againMax = Number.POSITIVE_INFINITY

  constructor(options: ModelServerOptions) {
    const { backend, live = null, concurrency_max: max } = options
    const { priority = null, service_tier = null } = options
    // Lines at a shared server are bounded by their share of it.
    super(options, live === null ? { max } : { max, start: max, seeksPlateau: false })
    this.backend = backend
    this.live = live
    this.provider = options.provider ?? null
    this.operatorFields = priority === null && service_tier === null ? null : { priority, service_tier }
    this.name = backend.name
    this.onDemand = backend.onDemand ?? null
    this.onDemand?.onChange(() => {
      if (this.onDemand?.isUp) this.circuit.onStarted()
    })
  }

  async close(): Promise<void> {
    await this.backend.close()
  }

  /** The number of lines that the server takes at once now, by its limit, its hours and its live traffic. */
  override concurrency(now: number): number {
    const places = super.concurrency(now)
    return this.live === null ? places : Math.min(places, this.live.places(this.limit.inFlight, now))
  }

  override takenSince(now: number): number | null {
    return this.live?.takenSince(now) ?? null
  }

  /**
   * Raises the limit where the server's metrics say that it works on all lines in flight, and has room for more: answers
   * would say so too, but each of them may take a minute. Returns whether it did.
   */
  async seekRoom(now: () => number): Promise<boolean> {
    const { limit, backend } = this
    const begun = now()
    if (!backend.readTraffic || begun < this.#roomDueAt || !limit.seeksRoom(begun)) return false
    this.#roomDueAt = Number.POSITIVE_INFINITY
    const { inFlight } = limit
    const traffic = await backend.readTraffic()
    const before = this.#room
    const at = now()
    this.#room = { traffic, at }
    const tokens = (traffic?.tokens ?? 0) - (before.traffic?.tokens ?? Number.POSITIVE_INFINITY)
    const tokensPerS = (1000 * tokens) / (at - before.at)
    const hasRoom =
      traffic !== null &&
      traffic.waiting + (traffic.deferred ?? 0) === 0 &&
      traffic.running >= ROOM_RUNNING_MIN * inFlight &&
      (tokensPerS >= ROOM_TOKENS_PER_S_MIN * traffic.running || inFlight <= ROOM_LINES_ANYWAY) &&
      (traffic.cache ?? 0) <= ROOM_CACHE_MAX &&
      limit.seeksRoom(at)
    this.#roomEveryMs = hasRoom ? ROOM_READ_MS : Math.min(ROOM_READ_MS_MAX, 2 * this.#roomEveryMs)
    this.#roomDueAt = at + this.#roomEveryMs
    if (hasRoom) limit.onRoom()
    return hasRoom
  }

  /** Whether a failed line, which may have crashed the server, may be sent: one at first, twice as many per answer. */
  get takesAgain(): boolean {
    return this.#again < this.#againMax
  }

  override begin(call: Call): void {
    this.live?.begin()
    if (call.missedBefore) this.#again++
    super.begin(call)
  }

  override withdraw(call: Call, now: number): void {
    this.live?.end(now - call.sentAt, null)
    if (call.missedBefore) this.#again--
    super.withdraw(call, now)
  }

  override end(call: Call, result: BackendResult, now: number): Blame | null {
    if (this.live !== null) {
      const usage = result.kind === 'answered' ? result.answer.usage : null
      this.live.end(now - call.sentAt, usage?.completion_tokens ?? null)
    }
    if (call.missedBefore) {
      this.#again--
      if (result.kind === 'answered') this.#againMax *= 2
    }
    if (result.kind === 'failed' && isBroken(result) && result.unreachable !== true) this.#againMax = 1
    return super.end(call, result, now)
  }
}

/** Receives what the worker reports to metrics. It is called for every line, so it must be cheap. */
export interface Observer extends RecordObserver {
  /** Called with the upstreams in use from now on, by model. */
  configured?(upstreams: ReadonlyMap<string, readonly Upstream[]>): void
  /** Called when an attempt has ended; `aborted`: by the worker. */
  attempted(
    upstream: Upstream,
    result: BackendResult['kind'] | 'aborted',
    durationMs: number,
    /** The attempt of a line that was sent alone. */
    call?: { endpoint: EndpointPath; result: BackendResult },
  ): void
  /** Called when a line is retried because of this upstream. */
  retried(upstream: Upstream): void
}
