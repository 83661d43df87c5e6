// One attempt to hand an event to its receiver. Only a 2xx counts; a redirect is no answer, since whoever
// redirects is not who was asked to listen. Of a refusal only the beginning is kept, for the owner to read.
import { type Dispatcher, request } from 'undici'
import type { Clock } from '../domain/clock.ts'
import { retryAfterMs } from '../domain/retry-after.ts'

const EXCERPT_CHARACTERS_MAX = 200
const EXCERPT_BYTES_MAX = 1024
const RETRY_AFTER_MS_MAX = 24 * 3_600_000

export interface Attempt {
  delivered: boolean
  /** The receiver's HTTP status; null when there was none. */
  status: number | null
  /** Why it was not delivered, for the owner of the webhook; null when it was. */
  error: string | null
  /** How long the receiver asked to be left alone. */
  waitMs: number
}

export interface WebhookRequest {
  url: string
  headers: Record<string, string>
  body: string
}

/** Rejects only when `signal` aborts: nothing is known of the attempt then. */
export async function postEvent(
  { agent, clock, timeout_ms }: { agent: Dispatcher; clock: Clock; timeout_ms: number },
  { url, headers, body }: WebhookRequest,
  signal: AbortSignal,
): Promise<Attempt> {
  const late = new AbortController()
  const disarm = clock.after(timeout_ms, () => late.abort())
  try {
    const response = await request(url, {
      method: 'POST',
      dispatcher: agent,
      headers: { 'content-type': 'application/json', 'user-agent': 'offpeak-webhooks', ...headers },
      body,
      signal: AbortSignal.any([signal, late.signal]),
    })
    const status = response.statusCode
    if (status >= 200 && status < 300) {
      response.body.on('error', () => {}).destroy()
      return { delivered: true, status, error: null, waitMs: 0 }
    }
    const said = await excerptOf(response.body)
    const error = describe(status) + (said === '' ? '' : `: ${said}`)
    const waitMs = retryAfterMs(response.headers, clock.now(), RETRY_AFTER_MS_MAX) ?? 0
    return { delivered: false, status, error, waitMs }
  } catch (error) {
    signal.throwIfAborted()
    const text = late.signal.aborted ? `no answer within ${timeout_ms / 1000} s` : reason(error)
    return { delivered: false, status: null, error: text, waitMs: 0 }
  } finally {
    disarm()
  }
}

function describe(status: number): string {
  return status >= 300 && status < 400
    ? `status ${status}, and redirects are not followed`
    : `status ${status}`
}

/** The beginning of what was said, on one line; what cannot be read is as good as nothing. */
async function excerptOf(body: Dispatcher.ResponseData['body']): Promise<string> {
  const parts: Buffer[] = []
  let bytes = 0
  try {
    for await (const part of body) {
      if (!Buffer.isBuffer(part)) break
      parts.push(part)
      bytes += part.length
      if (bytes >= EXCERPT_BYTES_MAX) break
    }
  } catch {
    // A body that breaks off, or does not end in time, has still said this much.
  }
  const text = Buffer.concat(parts).toString('utf8')
  const line = text.replace(/[\p{Cc}\s]+/gu, ' ').trim()
  return line.length > EXCERPT_CHARACTERS_MAX ? `${line.slice(0, EXCERPT_CHARACTERS_MAX)}…` : line
}

function reason(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  const code = 'code' in error && typeof error.code === 'string' ? ` (${error.code})` : ''
  return `${error.message || error.name}${code}`
}
