// One model server as the dispatcher sees it: its backend, its concurrency limit and its circuit breaker, and whether
// the line or the server is to blame when an attempt fails.
import type { Backend, BackendResult, ServerOnDemand } from '../../backends/backend.ts'
import { Circuit, type Miss, type Probe, type Ticket } from './circuit.ts'
import { ConcurrencyLimit, type Sent } from './concurrency.ts'
import type { Blame } from './retry-policy.ts'

/** The pause of an upstream that throttles its only line in flight and names no time. */
const THROTTLE_PAUSE_MS = 250
/** The longest pause: the server may have meant that one line, which waits as long as the server asked. */
const THROTTLE_PAUSE_MS_MAX = 60_000

export interface UpstreamOptions {
  backend: Backend
  concurrency_max: number
  /** What this server calls the model; null when it is the model's own ID. */
  modelAlias: string | null
}

/** An attempt under way. */
export interface Call {
  ticket: Ticket
  sent: Sent
}

export class Upstream {
  readonly backend: Backend
  readonly limit: ConcurrencyLimit
  readonly circuit = new Circuit()
  /** The JSON string that replaces `model` in the body; null to send the body untouched. */
  readonly modelJson: Buffer | null
  /** The concurrency limit before the current misses. */
  #limitBefore = 0

  constructor(options: UpstreamOptions) {
    this.backend = options.backend
    this.limit = new ConcurrencyLimit({ max: options.concurrency_max })
    this.modelJson = options.modelAlias === null ? null : Buffer.from(JSON.stringify(options.modelAlias))
    const { onDemand } = options.backend
    onDemand?.onChange(() => {
      if (onDemand.isUp) this.circuit.onStarted()
    })
  }

  get name(): string {
    return this.backend.name
  }

  /** Whether any line may be sent. */
  get accepts(): boolean {
    return this.isAvailable && this.limit.free > 0 && this.circuit.closed
  }

  /** Whether its server takes lines, or is not one that is started on demand. */
  get isAvailable(): boolean {
    return this.backend.onDemand?.isAvailable ?? true
  }

  get onDemand(): ServerOnDemand | null {
    return this.backend.onDemand ?? null
  }

  /** Whether no line, or no line of one batch, can be sent until the circuit's pause is over. */
  blocked(now: number, batch_id?: string): boolean {
    return this.circuit.blocks(now, batch_id)
  }

  /** When the circuit's pause ends (Unix ms); null if it is not waiting for that. */
  opensAt(now: number): number | null {
    const at = this.circuit.retryAt
    return at !== null && at > now ? at : null
  }

  begin(line: Probe, now: number): Call {
    return { sent: this.limit.acquire(now), ticket: this.circuit.onSent(line, now) }
  }

  withdraw({ sent, ticket }: Call, now: number): void {
    this.limit.onAborted(sent, now)
    this.circuit.onAborted(ticket)
  }

  /** Records the result of an attempt; returns whether the line or the server is to blame if it missed. */
  end({ sent, ticket }: Call, result: BackendResult, now: number): Blame | null {
    const { limit, circuit } = this
    if (result.kind === 'answered' || result.kind === 'refused') {
      limit.onAnswered(sent, now)
      if (circuit.isOnlyOthers(ticket.batch_id)) limit.restore(this.#limitBefore)
      circuit.onAnswered(ticket, now)
      return null
    }
    if (circuit.missStreak === null) this.#limitBefore = limit.limit
    // As known before this miss, which is no evidence itself.
    const isUp = circuit.isUp(now, ticket.line)
    const isLast = limit.inFlight === 1
    const miss = missOf(result)
    const pauseMs =
      result.kind === 'throttled' && isLast
        ? Math.min(result.retry_after_ms ?? THROTTLE_PAUSE_MS, THROTTLE_PAUSE_MS_MAX)
        : null
    const counts = circuit.onMissed(ticket, miss, result.reason, now, pauseMs)
    if (!counts) limit.onAborted(sent, now)
    else if (miss === 'throttled') limit.onThrottled(sent)
    else limit.onFailed(sent, now)
    return this.#blame(ticket, result, miss, isUp)
  }

  #blame({ batch_id }: Ticket, result: BackendResult, miss: Miss, isUp: boolean): Blame {
    if (miss === 'unreachable') return 'server'
    if (miss === 'throttled') return this.circuit.isHopeless(batch_id) ? 'line' : isUp ? 'unlucky' : 'server'
    if (!isGone(result) || isUp || this.circuit.isAtFault(batch_id)) return 'line'
    return 'server'
  }
}

function missOf(result: Extract<BackendResult, { kind: 'throttled' | 'failed' }>): Miss {
  if (result.kind === 'throttled') return 'throttled'
  return result.unreachable === true ? 'unreachable' : 'failed'
}

/** Whether the server may be gone: a broken connection, or a proxy that cannot reach it. */
function isGone(result: BackendResult): boolean {
  if (result.kind !== 'failed' || result.code !== 'upstream_unavailable') return false
  return result.status === null || result.status === 502
}
