// The port of model servers. A Backend is one upstream that answers the endpoints of batches; it makes one attempt and
// reports the outcome. dispatch/ retries, fails over, and chooses the concurrency.
import type { EndpointPath } from '../domain/endpoint.ts'
import type { ErrorCode } from '../domain/errors.ts'
import type { Answer } from '../jsonl/answer-scan.ts'
import type { FailureReason } from './failure-reason.ts'

export interface BackendCall {
  endpoint: EndpointPath
  /** The request: the very bytes to send (a JSON object). */
  body: Uint8Array
  /** Whose request it is: connections carry the requests of one project only. */
  project_id: string
  /** Aborts the attempt: the window closed, or the worker gives up. */
  signal?: AbortSignal
  /** The W3C trace context of the request, as a header. */
  traceparent?: string | null
}

/**
 * What came of one attempt.
 * - `answered`: `body` is the answer's JSON as received, which is the caller's from then on, `answer` what was found in it.
 * - `refused`: this request will never succeed here; the line fails with `code`.
 * - `throttled`: the upstream has no room now (429, 503 with Retry-After, overloaded): try later, send less.
 * - `failed`: it broke (5xx, timeout, broken connection, garbage): worth another attempt, a strike for the circuit.
 *
 * `isOfGateway`: as a proxy answers for a server that it cannot reach. `isOverLimit`: a limit on what this service may spend
 * there; another upstream may answer the line meanwhile. `isFilled`: what it has of this service leaves no room. `refusesService`: for its key, account or address, whatever the
 * request.
 *
 * The caller of the line reads `message`; who reads what of a failure is in failure-reason.ts.
 */
export type BackendResult =
  | { kind: 'answered'; status: number; body: Buffer; answer: Answer }
  | { kind: 'refused'; status: number; code: ErrorCode; message: string; param?: string }
  | ({
      kind: 'throttled'
      status: number
      retry_after_ms?: number
      isOfGateway?: boolean
      isOverLimit?: boolean
      isFilled?: boolean
    } & FailureReason)
  | ({
      kind: 'failed'
      status: number | null
      code: FailureCode
      retry_after_ms?: number
      /** The request reached no server: there was no connection. */
      unreachable?: boolean
      isOfGateway?: boolean
      refusesService?: boolean
    } & FailureReason)

/**
 * The error code of a line whose attempts are exhausted; `internal_error` is a defect of the service, not of the
 * server.
 */
export type FailureCode =
  | 'upstream_unavailable'
  | 'upstream_timeout'
  | 'upstream_invalid_response'
  | 'internal_error'

/** An attempt that got no answer. */
export function unanswered(
  code: FailureCode,
  reason: string,
  more: Partial<Pick<FailedAttempt, 'words' | 'operatorReason' | 'unreachable'>> = {},
): FailedAttempt {
  return { kind: 'failed', status: null, code, reason, ...more }
}

type FailedAttempt = Extract<BackendResult, { kind: 'failed' }>

export interface Backend {
  /** Names the upstream in audit records, logs and metrics: no credentials in it. */
  readonly name: string
  /** One attempt. Never throws for what a server may do; an abort by `signal` is `failed` with status null. */
  send(call: BackendCall): Promise<BackendResult>
  /** The traffic that the server reports; null where it reports none, or none now. */
  readTraffic?(tell?: (problem: string) => void): Promise<ServerTraffic | null>
  /** Asks a server that has no lines for its list of models. Absent where there is nothing to ask. */
  probe?(): Promise<ServerProbe>
  /** Closes connections; attempts still in flight are aborted. */
  close(): Promise<void>
  /** The control of a server that runs only while lines wait for it; absent for others. */
  readonly onDemand?: ServerOnDemand
}

/** `isUp`: null if its answer does not show that. `reason`: why it is not up, for operators. */
export interface ServerProbe {
  isUp: boolean | null
  reason: string | null
}

/** The traffic of a server, lines and other requests together, as the server reports it. */
export interface ServerTraffic {
  running: number
  /** For room in the server. */
  waiting: number
  /** Requests that wait for something else; absent: none, or it does not say. */
  deferred?: number
  /** The share of its KV cache in use, 0 to 1; null: it does not say. */
  cache: number | null
  /** Tokens generated since its start; null: it does not say. */
  tokens: number | null
  /** Steps of its engine since its start, each of which makes a token of every request that runs; null: it does not say. */
  steps: number | null
  /** When it was so (Unix ms); absent: now. */
  at?: number
}

/** The lines that wait for a server in one lane. */
export interface ServerLoad {
  /** Lines that are not in flight. */
  waiting: number
  /** Whether a batch among them may miss its deadline. */
  atRisk: boolean
  /** The earliest deadline among them; Unix ms, Infinity without lines. */
  deadline: number
}

export interface ServerOnDemand {
  /** Whether lines may be sent: it is up, or has failed to start, which those lines are to learn. */
  readonly isAvailable: boolean
  readonly isUp: boolean
  /** Why it is not up though lines wait: completes "The server of the model m …". */
  readonly waitingReason: { since: number; text: string } | null
  /** Says what waits for it in the lane. It starts where something does, and stops when nothing has for a while. */
  update(lane: object, load: ServerLoad): void
  /** Called whenever one of the properties above may have changed. */
  onChange(listener: () => void): void
}

interface Abortable {
  abort(): void
}

/**
 * Listens to an AbortSignal once for all attempts that share it. EventTarget searches its list whenever a listener is
 * added or removed, which takes microseconds with hundreds of attempts in flight; a Set does not.
 */
export class AbortWatch {
  readonly #watched = new WeakMap<AbortSignal, Set<Abortable>>()

  /** Calls `attempt.abort()` when `signal` aborts, until `leave` is called with both. */
  enter(signal: AbortSignal, attempt: Abortable): void {
    let attempts = this.#watched.get(signal)
    if (attempts === undefined) {
      const watched = new Set<Abortable>()
      signal.addEventListener('abort', () => abortAll(watched), { once: true })
      this.#watched.set(signal, watched)
      attempts = watched
    }
    attempts.add(attempt)
  }

  leave(signal: AbortSignal, attempt: Abortable): void {
    this.#watched.get(signal)?.delete(attempt)
  }
}

function abortAll(attempts: Set<Abortable>): void {
  // Aborting an attempt makes it leave; the copy keeps the walk whole.
  for (const attempt of [...attempts]) attempt.abort()
}
