// Tries lines again that missed an answer. A miss is counted with its cause; the counts say when the line's attempts are
// exhausted and how long it waits before the next one. The gate keeps lines until then: in a binary heap with one alarm, in
// which an entry counts only while its line is still waiting for that time.
//
// A chunk that is parked, or requeued by a worker that stops, stores the counts of its unfinished lines for the worker that
// claims it next; the attempts stay in the memory of this worker, for the case that it claims the chunk again.
import type { BackendResult } from '../../backends/backend.ts'
import { reasonForCaller } from '../../backends/failure-reason.ts'
import type { Config } from '../../config/config.ts'
import { BoundedMap } from '../../domain/bounded-map.ts'
import { Alarm, type Clock } from '../../domain/clock.ts'
import { type WireError, wireError } from '../../domain/errors.ts'
import { counted } from '../../domain/text.ts'
import type { AttemptRecord, LineAttempts } from '../../results/line-record.ts'
import type { Blame, EndedAttempt, MissedResult, Upstream } from '../../servers/upstream.ts'
import { RETRYING } from '../line-state.ts'
import type { LineTries, Run, TryCount } from '../run.ts'

export type RetryPolicy = Config['retry']

/** The weight of a throttle while other lines are answered: chance alone does not throttle one line that often. */
const UNLUCKY_WEIGHT = 4
/** The shortest backoff of a throttled line: the next answer frees a slot. */
const THROTTLE_MS_MIN = 20
/** Attempts listed in an audit record; of a line that was tried more often, the last ones. */
const ATTEMPTS_LISTED_MAX = 20
/** The limit of parked chunks' lines whose attempts are remembered; the chunks parked first are forgotten first. */
const PARKED_LINES_MAX = 20_000

export function noTries(): TryCount {
  return {
    ...{ failures: 0, own: 0, throttles: 0, weightedThrottles: 0, throttledMs: 0 },
    firstFailureAt: null,
  }
}

export function ensureTries(run: Run, position: number): LineTries {
  let tries = run.triesOf(position)
  if (!tries) {
    tries = { count: noTries(), listed: [], omitted: 0, avoid: null, kept: null }
    run.setTries(position, tries)
  }
  return tries
}

export function hasMissed(tries: LineTries | undefined): boolean {
  return tries !== undefined && tries.count.failures + tries.count.throttles > 0
}

/** Counts a miss. `answeredAt`: when the upstream last answered anything (Unix ms). */
export function countMiss(
  tries: TryCount,
  result: MissedResult,
  blame: Blame,
  answeredAt: number,
  now: number,
): void {
  if (blame === 'line') tries.own++
  if (result.kind === 'throttled') {
    tries.throttles++
    // A spending limit holds until its window ends, and lines that are there fill it, however often the line is sent.
    if (!result.isOverLimit && !result.isFilled)
      tries.weightedThrottles += blame === 'unlucky' ? UNLUCKY_WEIGHT : 1
    return
  }
  tries.failures++
  // A server that has answered since then was available in between, unless it is this service that it refuses: a batch API
  // takes batches that it refuses later.
  const wasThere = answeredAt > (tries.firstFailureAt ?? now) && !result.refusesService
  if (tries.firstFailureAt === null || wasThere) tries.firstFailureAt = now
}

/** Whether the line fails now. `tries` counts this miss already; `windowMs`: the batch's completion window. */
export function isExhausted(
  policy: RetryPolicy,
  tries: TryCount,
  { kind }: MissedResult,
  now: number,
  windowMs: number,
): boolean {
  if (tries.own >= policy.attempts_max) return true
  if (kind === 'throttled')
    return (
      tries.weightedThrottles >= policy.throttled_attempts_max ||
      tries.throttledMs >= policy.throttled_share * windowMs
    )
  if (tries.failures < policy.attempts_max || tries.firstFailureAt === null) return false
  return now - tries.firstFailureAt >= policy.outage_patience_ms
}

/** The wait in ms: exponential, full jitter (`random` in [0, 1)), at least what the server asked, within bounds. */
export function backoffMs(
  policy: RetryPolicy,
  tries: TryCount,
  miss: MissedResult,
  random: number,
  windowMs: number,
): number {
  const isThrottled = miss.kind === 'throttled'
  const leastMs = isThrottled ? Math.min(THROTTLE_MS_MIN, policy.backoff_min_ms) : policy.backoff_min_ms
  const exponent = Math.min((isThrottled ? tries.throttles : tries.failures) - 1, 30)
  const ceiling = Math.min(policy.backoff_max_ms, leastMs * 2 ** exponent)
  const jittered = leastMs / 2 + random * (ceiling - leastMs / 2)
  const leftMs = Math.max(0, policy.throttled_share * windowMs - tries.throttledMs)
  return Math.max(jittered, Math.min(miss.retry_after_ms ?? 0, Math.max(leftMs, jittered)))
}

export const ANSWERED = { kind: 'answered', status: 200 } as const

/** The record of an attempt. `fault`: the fault of its answer, if any. */
export function attemptOf(
  { upstream, at, now, remote_batch }: EndedAttempt,
  result: BackendResult | typeof ANSWERED,
  fault?: string,
): AttemptRecord {
  const { name, tier } = upstream
  const attempt: AttemptRecord = { at, upstream: name, tier, status: result.status, duration_ms: now - at }
  if (remote_batch !== undefined) attempt.remote_batch = remote_batch
  if (fault !== undefined) attempt.reason = fault
  else if (result.kind === 'refused') attempt.reason = result.code
  else if (result.kind !== 'answered') attempt.reason = reasonForCaller(result)
  return attempt
}

export function addAttempt(run: Run, position: number, ...attempt: Parameters<typeof attemptOf>): LineTries {
  const tries = ensureTries(run, position)
  tries.listed.push(attemptOf(...attempt))
  if (tries.listed.length <= ATTEMPTS_LISTED_MAX) return tries
  tries.listed.shift()
  tries.omitted++
  return tries
}

function exhausted({ listed, omitted }: LineTries, result: MissedResult): WireError {
  const count = listed.length + omitted
  const code = result.kind === 'failed' ? result.code : 'upstream_unavailable'
  return wireError(code, `${reasonForCaller(result)} (after ${counted(count, 'attempt')}).`)
}

/** The column `line_tries`: line numbers and their counts. `isStopping`: an outage counts anew for the next worker. */
export function storedTries(run: Run, isStopping = false): string | null {
  const stored = [...run.allTries()].map(([position, { count }]) => [
    run.lines[position]!.line,
    isStopping ? { ...count, firstFailureAt: null } : count,
  ])
  return stored.length === 0 ? null : JSON.stringify(stored)
}

/** Restores the tries that were stored with a parked chunk: their counts, without the attempts. */
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

  /** Restores the tries of earlier leases to a run that was just claimed. */
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

/** The number of equal errors in a row that reject a line. */
const REJECTIONS_MIN = 3
/** The number of an upstream's latest errors that are remembered. */
const PASSING_MAX = 100

export class LikelyRejections {
  /** Errors that later attempts did not meet. */
  readonly #passing = new WeakMap<Upstream, BoundedMap<string, true>>()

  /** Notes that an upstream answered a line: its earlier errors there were no rejections. */
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

/** The error without numbers, which the request may cause; null unless the server itself explained a status of 500. */
function errorOf({ upstream: name, status, reason = '' }: AttemptRecord, upstream: Upstream): string | null {
  if (status !== 500 || name !== upstream.name || reason === '500') return null
  return reason.replaceAll(/[0-9a-f]{8,}|\d+/gi, '#')
}

export interface Freed {
  kind: 'freed'
  run: Run
  position: number
  cause: string
}

interface Retry {
  run: Run
  position: number
  /** Unix ms. */
  due: number
}

interface RetriesOptions {
  clock: Clock
  turn: { push(freed: Freed): void }
  retry: RetryPolicy
  random: () => number
}

export class Retries {
  readonly state = RETRYING
  readonly rejections = new LikelyRejections()
  readonly #options: RetriesOptions
  readonly #heap: Retry[] = []
  readonly #alarm: Alarm

  constructor(options: RetriesOptions) {
    const { clock } = options
    this.#options = options
    // What the alarm was set for is due, also if the clock was set back since.
    this.#alarm = new Alarm(clock, (at) => this.#endWaits(Math.max(at, clock.now())))
  }

  until(run: Run, position: number, now: number): number | null {
    const due = run.dueOf(position)
    return due > now ? due : null
  }

  /** Decides about a line after a counted miss: its next attempt (Unix ms) and upstream to avoid, or its error. */
  next(
    { batch }: Run,
    tries: LineTries,
    result: MissedResult,
    blame: Blame,
    { upstream, now, draw, mayStay }: EndedAttempt,
  ): number | WireError {
    const { retry, random } = this.#options
    const windowMs = batch.expires_at - batch.created
    // A call for many lines says nothing about any of them.
    const rejection = blame === 'line' ? this.rejections.find(tries, upstream) : null
    if (rejection !== null) return rejection
    if (isExhausted(retry, tries.count, result, now, windowMs)) return exhausted(tries, result)
    if (result.kind === 'failed') tries.avoid = mayStay ? null : upstream
    else if (result.isOverLimit) tries.avoid = upstream
    const waitMs = backoffMs(retry, tries.count, result, draw ?? random(), windowMs)
    if (result.kind === 'throttled') tries.count.throttledMs += waitMs
    return now + waitMs
  }

  keep(run: Run, position: number): void {
    const due = run.dueOf(position)
    const heap = this.#heap
    let at = heap.length
    while (at > 0 && heap[(at - 1) >> 1]!.due > due) {
      heap[at] = heap[(at - 1) >> 1]!
      at = (at - 1) >> 1
    }
    heap[at] = { run, position, due }
    this.#setAlarm()
  }

  close(): void {
    this.#heap.length = 0
    this.#setAlarm()
  }

  #setAlarm(): void {
    this.#alarm.set(this.#heap[0]?.due ?? Number.POSITIVE_INFINITY)
  }

  #endWaits(until: number): void {
    while (this.#heap.length > 0 && this.#heap[0]!.due <= until) {
      const { run, position } = this.#takeFirst()
      if (!run.isRetrying(position) || run.dueOf(position) > until) continue
      run.setDue(position, 0)
      this.#options.turn.push({ kind: 'freed', run, position, cause: 'it is due' })
    }
    this.#setAlarm()
  }

  #takeFirst(): Retry {
    const heap = this.#heap
    const first = heap[0]!
    const last = heap.pop()!
    if (heap.length === 0) return first
    let at = 0
    for (let child = 1; child < heap.length; child = 2 * at + 1) {
      if (child + 1 < heap.length && heap[child + 1]!.due < heap[child]!.due) child++
      if (heap[child]!.due >= last.due) break
      heap[at] = heap[child]!
      at = child
    }
    heap[at] = last
    return first
  }
}
