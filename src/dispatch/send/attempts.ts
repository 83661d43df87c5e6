// The attempts of a line, as its audit record lists them.
import type { Attempt } from '../../audit/line-record.ts'
import type { BackendResult } from '../../backends/backend.ts'
import { reasonForCaller } from '../../backends/failure-reason.ts'
import { type WireError, wireError } from '../../domain/errors.ts'
import type { Job } from './lane.ts'
import type { MissedResult } from './retry-policy.ts'
import type { Upstream } from './upstream.ts'

/** Attempts listed in an audit record; of a line that was tried more often, the last ones. */
const ATTEMPTS_LISTED_MAX = 20

export function attemptOf(
  upstream: Upstream,
  result: BackendResult,
  at: number,
  now: number,
  remote_batch?: string,
): Attempt {
  const { name, tier } = upstream
  const remote = remote_batch === undefined ? {} : { remote_batch }
  const attempt: Attempt = {
    at,
    upstream: name,
    tier,
    status: result.status,
    duration_ms: now - at,
    ...remote,
  }
  if (result.kind === 'answered') return attempt
  return { ...attempt, reason: result.kind === 'refused' ? result.code : reasonForCaller(result) }
}

export function recordAttempt(job: Job, attempt: Attempt): void {
  job.attempts.push(attempt)
  if (job.attempts.length <= ATTEMPTS_LISTED_MAX) return
  job.attempts.shift()
  job.attemptsOmitted++
}

/** What a line fails with that is not tried again. */
export function exhausted(job: Job, result: MissedResult): WireError {
  const count = job.attempts.length + job.attemptsOmitted
  const code = result.kind === 'failed' ? result.code : 'upstream_unavailable'
  return wireError(
    code,
    `${reasonForCaller(result)} (after ${count === 1 ? '1 attempt' : `${count} attempts`}).`,
  )
}
