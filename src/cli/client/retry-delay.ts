// Delays between the attempts of an API call, and which answers are retried.

const FIRST_MS = 250
const LONGEST_MS = 10_000

/**
 * Milliseconds before attempt `attempt` + 1 (attempts count from 1): doubling, with jitter from half to whole,
 * and never less than Retry-After. `random` is in [0, 1).
 */
export function retryDelayMs(attempt: number, retryAfterDelayMs: number | null, random: number): number {
  const ceiling = Math.min(LONGEST_MS, FIRST_MS * 2 ** (attempt - 1))
  return Math.max(ceiling * (0.5 + random / 2), retryAfterDelayMs ?? 0)
}

/** A spending limit that is used up is a 429 too, but a short wait does not help there. */
export function worthRetrying(status: number, code: string | null): boolean {
  if (status === 429) return code !== 'usage_limit_exceeded'
  return status === 500 || status === 502 || status === 503 || status === 504
}
