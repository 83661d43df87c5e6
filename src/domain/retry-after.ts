// How long a server asks us to wait. `retry-after-ms` (OpenAI, Azure) is the finer one and wins;
// `Retry-After` is whole or fractional seconds, or an HTTP date (RFC 9110, section 10.2.3).

export interface RetryHeaders {
  'retry-after'?: string | string[] | undefined
  'retry-after-ms'?: string | string[] | undefined
}

/** A server whose clock is wrong, or that counts in other units, is asked again after so long. */
const WAIT_MS_MAX = 3_600_000
const DECIMAL = /^\d+(\.\d+)?$/

/** Milliseconds to wait, an hour at most and never negative; undefined when nothing usable was said. `now` is Unix ms. */
export function retryAfterMs(headers: RetryHeaders, now: number): number | undefined {
  const ms = first(headers['retry-after-ms'])
  if (ms !== undefined && DECIMAL.test(ms)) return atMost(Math.ceil(Number(ms)))
  const wait = first(headers['retry-after'])
  if (wait === undefined) return undefined
  if (DECIMAL.test(wait)) return atMost(Math.ceil(Number(wait) * 1000))
  const at = Date.parse(wait)
  return Number.isNaN(at) ? undefined : atMost(Math.max(0, at - now))
}

function atMost(ms: number): number {
  return Math.min(ms, WAIT_MS_MAX)
}

function first(value: string | string[] | undefined): string | undefined {
  return (Array.isArray(value) ? value[0] : value)?.trim()
}
