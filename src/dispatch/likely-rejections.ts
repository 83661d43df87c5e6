// Recognizes rejections that a server answers with status 500, whatever their message: a line gets the same error
// several times in a row, the server answers other lines in between, and no line with this error was answered later.
// Lines that fail because the server is faulty succeed on a later attempt.
import { type WireError, wireError } from '../domain/errors.ts'
import type { AttemptRecord, LineAttempts } from '../results/line-record.ts'
import type { Upstream } from './upstream.ts'

/** The same error so many times in a row. */
const REJECTIONS_MIN = 3
/** Errors remembered of an upstream, the latest. */
const PASSING_MAX = 100

export class LikelyRejections {
  /** Errors that later attempts did not meet. */
  readonly #passing = new WeakMap<Upstream, Set<string>>()

  /** The line was answered there. */
  onAnswered({ listed }: LineAttempts, upstream: Upstream): void {
    for (const attempt of listed) {
      const error = errorOf(attempt, upstream)
      if (error === null) continue
      const known = this.#passing.get(upstream) ?? new Set()
      this.#passing.set(upstream, known)
      known.delete(error)
      known.add(error)
      const [oldest] = known
      if (known.size > PASSING_MAX && oldest !== undefined) known.delete(oldest)
    }
  }

  /** What the line is to fail with, if its latest attempts show that the server refuses it; else null. */
  find({ listed }: LineAttempts, upstream: Upstream): WireError | null {
    const latest = listed.slice(-REJECTIONS_MIN)
    const [first, ...others] = latest.map((attempt) => errorOf(attempt, upstream))
    if (first === undefined || first === null || latest.length < REJECTIONS_MIN) return null
    if (others.some((one) => one !== first) || this.#passing.get(upstream)?.has(first)) return null
    const isAnswering = upstream.circuit.answeredAt > latest.at(-2)!.at
    if (!isAnswering) return null
    return wireError(
      'upstream_rejected',
      `The model server answered ${REJECTIONS_MIN} times with the same error, and other lines in between: "${latest.at(-1)?.reason}".`,
    )
  }
}

/** Without numbers, which may be of the request; null unless the server itself explained a status of 500. */
function errorOf({ upstream: name, status, reason = '' }: AttemptRecord, upstream: Upstream): string | null {
  if (status !== 500 || name !== upstream.name || reason === '500') return null
  return reason.replaceAll(/[0-9a-f]{8,}|\d+/gi, '#')
}
