// The port of model servers. A Backend is one upstream that answers the endpoints of batches; it makes one attempt and
// reports the outcome. dispatch/ retries, fails over, and chooses the concurrency.
import type { EndpointPath } from '../domain/endpoint.ts'
import type { ErrorCode } from '../domain/errors.ts'
import type { Answer } from '../jsonl/answer-scan.ts'
import type { FailureReason } from './failure-reason.ts'

export interface BackendCall {
  endpoint: EndpointPath
  /** The bytes of the request body (a JSON object), sent unchanged. */
  body: Uint8Array
  /** The project of the request: a connection carries the requests of one project only. */
  project_id: string
  /** Aborts the attempt because the completion window closed or the worker cancels it. */
  signal?: AbortSignal
  /** The W3C trace context of the request, the value of its `traceparent` header. */
  traceparent?: string | null
}

/**
 * The outcome of one attempt at a request.
 * - `answered`: `body` is the JSON of the answer as received, owned by the caller from then on; `answer` its parsed parts.
 * - `refused`: the request can never succeed at this server; the line fails with `code`.
 * - `throttled`: the server has no room now (429, 503 with Retry-After, overloaded): try later, send less.
 * - `failed`: the server broke (5xx, timeout, broken connection, garbage): worth another attempt, counts for the circuit.
 *
 * `isOfGateway`: a proxy answered for an unreachable server. `isOverLimit`: a spending limit of this service at the server;
 * another upstream may answer the line. `isFilled`: requests of this service leave no room. `refusesService`: the server
 * rejects this service's key, account or address. The caller of the line gets `message`; failure-reason.ts tells who gets
 * the other texts.
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
      /** Whether no connection was opened, so that the request reached no server. */
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

/** The result of an attempt that got no answer. */
export function unanswered(
  code: FailureCode,
  reason: string,
  more: Partial<Pick<FailedAttempt, 'words' | 'operatorReason' | 'unreachable'>> = {},
): FailedAttempt {
  return { kind: 'failed', status: null, code, reason, ...more }
}

type FailedAttempt = Extract<BackendResult, { kind: 'failed' }>

/** Takes the result of an attempt. `error`: what this service did wrong, where that is the cause. */
export type Done = (result: BackendResult, error?: unknown) => void

/** Calls `done` with the result of an attempt, or with an internal error if it rejects. */
export function settle(attempt: Promise<BackendResult>, done: Done): void {
  attempt.then(done, (error: unknown) => done(ownFailure(), error))
}

/** The result of an attempt that failed by a mistake of this service. */
export function ownFailure(): FailedAttempt {
  return unanswered('internal_error', 'The service failed to handle this attempt.')
}

export interface Backend {
  /** The name of the upstream in audit records, logs and metrics: no credentials in it. */
  readonly name: string
  /**
   * Makes one attempt, and calls `done` once, after `send` has returned. An abort by `signal` is `failed` with status null. A
   * promise of the result would take a tenth of the memory that a line allocates.
   */
  send(call: BackendCall, done: Done): void
  /** Reads the traffic that the server reports; null where it reports none, or none now. */
  readTraffic?(tell?: (problem: string) => void): Promise<ServerTraffic | null>
  /** Asks a server that has no lines for its list of models. Absent where the server has no such list. */
  probe?(): Promise<ServerProbe>
  /** Closes all connections and aborts attempts in flight. */
  close(): Promise<void>
  /** The control of a server that runs only while lines wait for it; absent for others. */
  readonly onDemand?: ServerOnDemand
}

/** The result of a probe. `isUp`: null if the server does not tell. `reason`: the problem, for operators. */
export interface ServerProbe {
  isUp: boolean | null
  reason: string | null
}

/** The traffic of a server, lines and other requests together, as the server reports it. */
export interface ServerTraffic {
  running: number
  /** Requests that wait for room in the server. */
  waiting: number
  /** Requests that wait for something other than room; absent: none, or not reported. */
  deferred?: number
  /** The share of the KV cache in use, 0 to 1; null: not reported. */
  cache: number | null
  /** Tokens generated since the start of the server; null: not reported. */
  tokens: number | null
  /** Steps of the engine since its start, each making a token of every running request; null: not reported. */
  steps: number | null
  /** The time at which the server reported its traffic (Unix ms); absent: now. */
  at?: number
}

/** The lines that wait for a server in one lane. */
export interface ServerLoad {
  /** The number of lines that wait for the server and are not in flight. */
  waiting: number
  /** Whether a batch among the waiting lines may miss its deadline. */
  atRisk: boolean
  /** The earliest deadline of the waiting lines; Unix ms, Infinity without lines. */
  deadline: number
}

export interface ServerOnDemand {
  /** Whether lines may be sent: the server is up, or has failed to start, an error that the lines are to get. */
  readonly isAvailable: boolean
  readonly isUp: boolean
  /** The reason why the server is not up though lines wait, which completes "The server of the model m …". */
  readonly waitingReason: { since: number; text: string } | null
  /** Reports the load of a lane. The server starts when lines wait, and stops when none have waited for a while. */
  update(lane: object, load: ServerLoad): void
  /** Adds a listener, called whenever a property of the server's state may have changed. */
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
  // Aborting an attempt removes it from the set; the loop therefore walks a copy.
  for (const attempt of [...attempts]) attempt.abort()
}
