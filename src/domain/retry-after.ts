// Reads how long a server asks its caller to wait. `retry-after-ms` (OpenAI, Azure) is finer and wins over
// `Retry-After`, which is whole or fractional seconds, or an HTTP date (RFC 9110, section 10.2.3). LiteLLM's proxy
// passes on the header of the server behind it under another name.

/** In lower case; of each pair, milliseconds and seconds, the first that says anything counts. */
const PAIRS = [
  ['retry-after-ms', 'retry-after'],
  ['llm_provider-retry-after-ms', 'llm_provider-retry-after'],
] as const
export const RETRY_AFTER_HEADERS = PAIRS.flat()

type RetryHeaders = Partial<Record<(typeof RETRY_AFTER_HEADERS)[number], string | string[] | undefined>>

const HOUR_MS = 3_600_000
const DECIMAL = /^\d+(\.\d+)?$/

/**
 * Milliseconds to wait, from 0 to `msMax`; undefined when the headers do not say. `now` is Unix ms. The bound is for
 * servers whose clock is wrong or that use other units.
 */
export function retryAfterMs(headers: RetryHeaders, now: number, msMax = HOUR_MS): number | undefined {
  for (const [inMs, inSeconds] of PAIRS) {
    const waitMs = first(headers[inMs])
    if (waitMs !== undefined && DECIMAL.test(waitMs)) return Math.min(msMax, Math.ceil(Number(waitMs)))
    const wait = first(headers[inSeconds])
    if (wait === undefined) continue
    if (DECIMAL.test(wait)) return Math.min(msMax, Math.ceil(Number(wait) * 1000))
    const at = Date.parse(wait)
    return Number.isNaN(at) ? undefined : Math.min(msMax, Math.max(0, at - now))
  }
  return undefined
}

function first(value: string | string[] | undefined): string | undefined {
  return (Array.isArray(value) ? value[0] : value)?.trim()
}
