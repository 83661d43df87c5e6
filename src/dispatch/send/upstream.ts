// One model server as the dispatcher sees it: where to send, how much at once, whether it is up, and whose fault it
// is when a line gets no answer.
import type { Backend, BackendResult } from '../../backends/backend.ts'
import { Circuit, type Miss, type Probe, type Ticket } from './circuit.ts'
import { ConcurrencyLimit, type Sent } from './concurrency.ts'
import type { Blame } from './retry-policy.ts'

/** A throttled upstream that names no time is left alone this long once nothing else is in flight there. */
const THROTTLE_PAUSE_MS = 250
/** No longer, whatever it asks for: it may have meant that one line. The line itself waits as long as asked. */
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
  /** How much it got at once before the misses that nothing has followed yet. */
  #limitBefore = 0

  constructor(options: UpstreamOptions) {
    this.backend = options.backend
    this.limit = new ConcurrencyLimit({ max: options.concurrency_max })
    this.modelJson = options.modelAlias === null ? null : Buffer.from(JSON.stringify(options.modelAlias))
  }

  get name(): string {
    return this.backend.name
  }

  /** Whether any line may be sent. */
  get accepts(): boolean {
    return this.limit.free > 0 && this.circuit.closed
  }

  /** Whether nothing can be sent for reasons that time heals: down, or told to wait. Of one batch, or of any. */
  blocked(now: number, batch_id?: string): boolean {
    return this.circuit.blocks(now, batch_id)
  }

  /** When more may be sent by the passing of time alone; null when only an answer can bring it. */
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

  /** What came of the attempt; whose fault it is, if it missed. */
  end({ sent, ticket }: Call, result: BackendResult, now: number): Blame | null {
    const { limit, circuit } = this
    if (result.kind === 'answered' || result.kind === 'refused') {
      limit.onAnswered(sent, now)
      if (circuit.isOnlyOthers(ticket.batch_id)) limit.restore(this.#limitBefore)
      circuit.onAnswered(ticket, now)
      return null
    }
    if (circuit.trouble === null) this.#limitBefore = limit.limit
    // Judged by what was known before: the miss itself is no proof.
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

/** Whether there may be no server at all: a connection that broke, or a proxy that found nobody behind it. */
function isGone(result: BackendResult): boolean {
  if (result.kind !== 'failed' || result.code !== 'upstream_unavailable') return false
  return result.status === null || result.status === 502
}
