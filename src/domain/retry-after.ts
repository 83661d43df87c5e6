// Reads how long a server asks its caller to wait. `retry-after-ms` (OpenAI, Azure) is finer and wins over
// `Retry-After`, which is whole or fractional seconds, or an HTTP date (RFC 9110, section 10.2.3). LiteLLM's proxy
// forwards the headers of its server under other names.

/** Pairs of header names, for milliseconds and seconds; the first header with a valid value counts. */
const PAIRS = [
  ['retry-after-ms', 'retry-after'],
  ['llm_provider-retry-after-ms', 'llm_provider-retry-after'],
] as const
export const RETRY_AFTER_HEADERS = PAIRS.flat()

type RetryHeaders = Partial<Record<(typeof RETRY_AFTER_HEADERS)[number], string | string[] | undefined>>

const HOUR_MS = 3_600_000
const DECIMAL = /^\d+(\.\d+)?$/

/**
 * The wait in ms, from 0 to `msMax`; undefined without a valid header. `now` is Unix ms. The bound protects from
 * servers with a wrong clock or other units.
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
