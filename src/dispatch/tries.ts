// The tries of a line: their counts, which are bounded, and the attempts for its audit record. A chunk that is parked, or
// requeued by a worker that stops, stores the counts of its unfinished lines for the worker that claims it next; the
// attempts stay in the memory of this worker, for the case that it claims the chunk again.
import type { BackendResult } from '../backends/backend.ts'
import { reasonForCaller } from '../backends/failure-reason.ts'
import { BoundedMap } from '../domain/bounded-map.ts'
import { type WireError, wireError } from '../domain/errors.ts'
import type { AttemptRecord, LineAttempts } from '../results/line-record.ts'
import { type MissedResult, noTries, type TryCount } from './retry-policy.ts'
import type { LineTries, Run } from './run.ts'
import type { Upstream } from './senders/upstream.ts'

/** Attempts listed in an audit record; of a line that was tried more often, the last ones. */
const ATTEMPTS_LISTED_MAX = 20
/** Lines of parked chunks whose attempts are remembered; beyond that, the chunks that were parked first are forgotten. */
const PARKED_LINES_MAX = 20_000

export interface EndedAttempt {
  upstream: Upstream
  /** When it began and ended (Unix ms). */
  at: number
  now: number
  /** The ID of the batch at the batch API that had the line. */
  remote_batch?: string
  /** The chance in its backoff, in [0, 1): equal for lines that are to be tried again together. */
  draw?: number
  /** Whether this worker aborted it, which costs the line no try. */
  isAborted?: boolean
  /** Whether the next attempt may go to the same upstream although this one missed. */
  mayStay?: boolean
}

/** The tries of a line, created at its first miss. */
export function ensureTries(run: Run, position: number): LineTries {
  let tries = run.triesOf(position)
  if (!tries) {
    tries = { count: noTries(), listed: [], omitted: 0, avoid: null, kept: null }
    run.setTries(position, tries)
  }
  return tries
}

/** Whether the line missed an answer before, on any upstream. */
export function hasMissed(tries: LineTries | undefined): boolean {
  return tries !== undefined && tries.count.failures + tries.count.throttles > 0
}

/** The attempt of an answered line. */
export const ANSWERED = { kind: 'answered', status: 200 } as const

export function attemptOf(
  { name, tier }: Pick<Upstream, 'name' | 'tier'>,
  result: BackendResult | typeof ANSWERED,
  at: number,
  now: number,
  remote_batch?: string,
): AttemptRecord {
  const attempt: AttemptRecord = { at, upstream: name, tier, status: result.status, duration_ms: now - at }
  if (remote_batch !== undefined) attempt.remote_batch = remote_batch
  if (result.kind !== 'answered')
    attempt.reason = result.kind === 'refused' ? result.code : reasonForCaller(result)
  return attempt
}

export function addAttempt(tries: LineTries, attempt: AttemptRecord): void {
  tries.listed.push(attempt)
  if (tries.listed.length <= ATTEMPTS_LISTED_MAX) return
  tries.listed.shift()
  tries.omitted++
}

/** The error of a line that is not tried again. */
export function exhausted({ listed, omitted }: LineTries, result: MissedResult): WireError {
  const count = listed.length + omitted
  const code = result.kind === 'failed' ? result.code : 'upstream_unavailable'
  return wireError(
    code,
    `${reasonForCaller(result)} (after ${count === 1 ? '1 attempt' : `${count} attempts`}).`,
  )
}

/**
 * The value of the column `line_tries`: a list of line numbers, each with its counts. `isStopping`: the worker stops, and
 * it is not known for how long; an outage counts anew for the next one.
 */
export function storedTries(run: Run, isStopping = false): string | null {
  const stored = [...run.allTries()].map(([position, { count }]) => [
    run.lines[position]!.line,
    isStopping ? { ...count, firstFailureAt: null } : count,
  ])
  return stored.length === 0 ? null : JSON.stringify(stored)
}

/** Gives a run the tries that were stored when its chunk was parked: their counts, and not the attempts themselves. */
export function restoreStored(run: Run): void {
  const stored = new Map<number, TryCount>(JSON.parse(run.claim.line_tries ?? '[]'))
  if (stored.size === 0) return
  for (const [position, { line }] of run.lines.entries()) {
    const count = stored.get(line)
    if (!count || run.isFinished(position)) continue
    const omitted = count.failures + count.throttles
    run.setTries(position, { count, listed: [], omitted, avoid: null, kept: null })
  }
}

/** The tries of parked chunks, by batch and index in the order in which they were parked. */
export class ParkedTries {
  readonly #chunks = new Map<string, { epoch: number; lines: readonly (readonly [number, LineTries])[] }>()
  #lines = 0

  keep(run: Run): void {
    const { key } = run
    this.#forget(key)
    const lines = [...run.allTries()]
    if (lines.length === 0) return
    this.#chunks.set(key, { epoch: run.claim.epoch, lines })
    this.#lines += lines.length
    for (const oldest of this.#chunks.keys()) {
      if (this.#lines <= PARKED_LINES_MAX) break
      this.#forget(oldest)
    }
  }

  /** Gives a run that was just claimed the tries of earlier leases. */
  restore(run: Run): void {
    const { key } = run
    const parked = this.#chunks.get(key)
    this.#forget(key)
    // Every claim raises the epoch: no other worker claimed it in between.
    if (parked?.epoch === run.claim.epoch - 1) {
      for (const [position, tries] of parked.lines)
        if (!run.isFinished(position)) run.setTries(position, tries)
      return
    }
    restoreStored(run)
  }

  #forget(key: string): void {
    this.#lines -= this.#chunks.get(key)?.lines.length ?? 0
    this.#chunks.delete(key)
  }
}

// `LikelyRejections` recognizes rejections that a server answers with status 500, whatever their message: a line gets the
// same error several times in a row, the server answers other lines in between, and no line with this error was answered
// later. Lines that fail because the server is faulty succeed on a later attempt.

/** How many times in a row an error has to be the same. */
const REJECTIONS_MIN = 3
/** Errors remembered of an upstream, the latest. */
const PASSING_MAX = 100

export class LikelyRejections {
  /** Errors that later attempts did not meet. */
  readonly #passing = new WeakMap<Upstream, BoundedMap<string, true>>()

  /** Notes that a line was answered by an upstream: errors that it met there before were no rejections. */
  onAnswered({ listed }: LineAttempts, upstream: Upstream): void {
    for (const attempt of listed) {
      const error = errorOf(attempt, upstream)
      if (error === null) continue
      const known = this.#passing.get(upstream) ?? new BoundedMap(PASSING_MAX)
      this.#passing.set(upstream, known.set(error, true))
    }
  }

  /** The error of a line whose latest attempts show that the server refuses it; else null. */
  find({ listed }: LineAttempts, upstream: Upstream): WireError | null {
    const latest = listed.slice(-REJECTIONS_MIN)
    const [first, ...others] = latest.map((attempt) => errorOf(attempt, upstream))
    if (first === undefined || first === null || latest.length < REJECTIONS_MIN) return null
    if (others.some((one) => one !== first) || this.#passing.get(upstream)?.has(first)) return null
    if (upstream.circuit.answeredAt <= latest.at(-2)!.at) return null
    return wireError(
      'upstream_rejected',
      `The model server answered ${REJECTIONS_MIN} times with the same error, and other lines in between: "${latest.at(-1)?.reason}".`,
    )
  }
}

/** The error without numbers, which may be of the request; null unless the server itself explained a status of 500. */
function errorOf({ upstream: name, status, reason = '' }: AttemptRecord, upstream: Upstream): string | null {
  if (status !== 500 || name !== upstream.name || reason === '500') return null
  return reason.replaceAll(/[0-9a-f]{8,}|\d+/gi, '#')
}
