// Sends single lines to model servers: takes the next line of a lane, makes one attempt, and passes the outcome to
// lines.ts.
import { type BackendCall, type BackendResult, type Done, ownFailure } from '../../backends/backend.ts'
import { reasonForLog } from '../../backends/failure-reason.ts'
import { BoundedMap } from '../../domain/bounded-map.ts'
import type { EndpointPath } from '../../domain/endpoint.ts'
import { freeBuffer } from '../../domain/free-buffer.ts'
import type { Span } from '../../domain/tracing.ts'
import { requestBody } from '../../jsonl/request-body.ts'
import { NO_ATTEMPTS } from '../../results/line-record.ts'
import { endLine } from '../../results/traces.ts'
import type { Ticket } from '../../servers/circuit.ts'
import type { Cohort } from '../../servers/concurrency.ts'
import type { Blame, Call, ModelServer, Observer } from '../../servers/upstream.ts'
import type { Ports } from '../../store/store.ts'
import { ensureTries, hasMissed } from '../gates/retries.ts'
import { IN_FLIGHT } from '../line-state.ts'
import type { Lines } from '../lines.ts'
import type { Run } from '../run.ts'
import type { Turn } from '../turn.ts'
import type { Lane } from './lane.ts'

/** The limit of remembered warnings, and the time for which a warning for operators is not repeated. */
const WARNINGS_MAX = 1_000
const REPEAT_MS = 600_000

interface SenderOptions extends Pick<Ports, 'clock' | 'log'> {
  /** Lanes by model; changed by reloads. */
  lanes: ReadonlyMap<string, Lane>
  lines: Pick<Lines, 'begin' | 'answered' | 'refused' | 'missed' | 'broken'>
  turn: Turn
  /** The memory of answers; a turn is scheduled when it has room again. */
  answers: { readonly hasRoom: boolean }
  session: { readonly isCertain: boolean }
  recorder: { readonly failingSince: number | null }
  observe?: Pick<Observer, 'attempted'> | undefined
}

/** A request under way: what the backend is asked, and what the server's limits need to know of it. */
class Attempt implements BackendCall, Call {
  readonly run: Run
  readonly position: number
  readonly server: ModelServer
  readonly sentAt: number
  readonly missedBefore: boolean
  readonly endpoint: EndpointPath
  readonly body: Uint8Array
  readonly span: Span | null
  probing: Ticket['probing'] = null
  inFlight = 0
  cohort: Cohort | null = null

  constructor(run: Run, position: number, server: ModelServer, sentAt: number) {
    const tries = run.triesOf(position)
    const line = run.lines[position]!
    this.run = run
    this.position = position
    this.server = server
    this.sentAt = sentAt
    this.missedBefore = hasMissed(tries)
    this.endpoint = line.endpoint
    this.body = requestBody(run.bytes, line, server, run.claim.deadline - sentAt, tries?.kept)
    const { trace } = run.results
    this.span = trace?.samplesLine() ? trace.startLine(line, server, tries ?? NO_ATTEMPTS, sentAt) : null
  }

  get batch_id(): string {
    return this.run.batch.id
  }

  get line(): object {
    return ensureTries(this.run, this.position)
  }

  get project_id(): string {
    return this.run.batch.project_id
  }

  get signal(): AbortSignal {
    return this.run.signal
  }

  get traceparent(): string | null {
    return this.span?.traceparent ?? this.run.traceparent
  }
}

export class Sender {
  readonly #options: SenderOptions
  /** The time at which each warning was last logged (Unix ms). */
  readonly #warnedAt = new BoundedMap<string, number>(WARNINGS_MAX)

  constructor(options: SenderOptions) {
    this.#options = options
  }

  pump(): void {
    const { answers, session, recorder, lanes, clock } = this.#options
    // Answers that cannot be stored are lost with the lease, and paid for again: as few as possible are to wait. The
    // commit that ends a failure schedules the next turn.
    if (!answers.hasRoom || !session.isCertain || recorder.failingSince !== null) return
    const now = clock.now()
    for (const lane of lanes.values()) {
      lane.wakeServers()
      for (let next = lane.next(now); next !== null; next = lane.next(now))
        this.#send(next.run, next.position, next.server, now)
    }
  }

  #send(run: Run, position: number, server: ModelServer, now: number): void {
    const { lines, log, turn } = this.#options
    try {
      if (now >= run.batch.expires_at) {
        // The deadline's alarm is late if the clock was set forward or the process was suspended.
        turn.push({ kind: 'stopped', run, reason: 'batch_expired' })
        return
      }
      if (!lines.begin(run, position, now, IN_FLIGHT)) return
      const attempt = new Attempt(run, position, server, now)
      server.begin(attempt)
      const done: Done = (result, error) => {
        // The error's text goes to the log only, because it may contain anything.
        if (error !== undefined)
          log.error({ err: error, upstream: server.name }, 'an attempt failed because of an internal error')
        this.#onResult(attempt, result)
      }
      try {
        server.backend.send(attempt, done)
      } catch (error) {
        done(ownFailure(), error)
      }
    } catch (error) {
      lines.broken(run, error)
    }
  }

  #onResult(attempt: Attempt, result: BackendResult): void {
    const { clock, lines, turn, observe } = this.#options
    const { run, position, server, sentAt: at, span } = attempt
    try {
      const now = clock.now()
      if (span) endLine(span, result, attempt.endpoint, now)
      const isAborted = run.isAborted && result.kind === 'failed'
      const isOurs = result.kind === 'failed' && result.code === 'internal_error'
      observe?.attempted(server, isAborted ? 'aborted' : result.kind, now - at, {
        endpoint: attempt.endpoint,
        result,
      })
      let blame: Blame = isOurs ? 'line' : 'server'
      if (isAborted || isOurs) server.withdraw(attempt, now)
      else {
        const found = server.end(attempt, result, now)
        if (found === 'line' && (run.triesOf(position)?.count.own ?? 0) > 0)
          this.#warn(attempt, result, now, run.batch.id)
        blame = found ?? blame
      }
      if (!isAborted && result.kind === 'failed' && result.operatorReason !== undefined)
        this.#warn(attempt, result, now, null)
      turn.touch(run)
      if (run.isClosed) return
      const ended = { upstream: server, at, now, isAborted }
      if (result.kind === 'answered') {
        lines.answered(run, position, result, ended)
        freeBuffer(result.body)
      } else if (result.kind === 'refused') lines.refused(run, position, result, ended)
      else lines.missed(run, position, result, blame, ended)
    } catch (error) {
      lines.broken(run, error)
    }
  }

  /** Logs that a server fails: once for each batch; every ten minutes (`batch`: null) where only operators may see why. */
  #warn(
    { server: { name: upstream } }: Attempt,
    result: BackendResult,
    now: number,
    batch: string | null,
  ): void {
    const reason = 'reason' in result ? { reason: reasonForLog(result) } : {}
    const { status } = result
    const key = `${batch} ${upstream} ${batch === null ? `${status} ${reason.reason}` : ''}`
    const warnedAt = this.#warnedAt.get(key)
    if (warnedAt !== undefined && (batch !== null || now - warnedAt < REPEAT_MS)) return
    this.#warnedAt.set(key, now)
    if (batch === null)
      this.#options.log.warn({ upstream, status, ...reason }, 'a model server failed to answer a request')
    else
      this.#options.log.warn(
        { batch, upstream, ...reason },
        'a model server failed on lines of a batch while it answered others',
      )
  }
}
