// Reads how long a server asks its caller to wait. `retry-after-ms` (OpenAI, Azure) is finer and wins over
// `Retry-After`, which is whole or fractional seconds, or an HTTP date (RFC 9110, section 10.2.3). LiteLLM's proxy
// passes on the header of the server behind it under another name.

interface RetryHeaders {
  'retry-after'?: string | string[] | undefined
  'retry-after-ms'?: string | string[] | undefined
  'llm_provider-retry-after'?: string | string[] | undefined
}

const HOUR_MS = 3_600_000
const DECIMAL = /^\d+(\.\d+)?$/

/**
 * Milliseconds to wait, from 0 to `msMax`; undefined when the headers do not say. `now` is Unix ms. The bound is for
 * servers whose clock is wrong or that use other units.
 */
export function retryAfterMs(headers: RetryHeaders, now: number, msMax = HOUR_MS): number | undefined {
  const waitMs = first(headers['retry-after-ms'])
  if (waitMs !== undefined && DECIMAL.test(waitMs)) return Math.min(msMax, Math.ceil(Number(waitMs)))
  const wait = first(headers['retry-after'] ?? headers['llm_provider-retry-after'])
  if (wait === undefined) return undefined
  if (DECIMAL.test(wait)) return Math.min(msMax, Math.ceil(Number(wait) * 1000))
  const at = Date.parse(wait)
  return Number.isNaN(at) ? undefined : Math.min(msMax, Math.max(0, at - now))
}

function first(value: string | string[] | undefined): string | undefined {
  return (Array.isArray(value) ? value[0] : value)?.trim()
}
