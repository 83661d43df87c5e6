// Sends an event to a webhook once. Only a 2xx status is a success; redirects are not followed. The beginning of any
// other response is stored for the owner of the webhook.

import { lookup as systemLookup } from 'node:dns'
import { isIP, type LookupFunction } from 'node:net'
import type { Agent, Dispatcher } from 'undici'
import type { Clock } from '../domain/clock.ts'
import { GrowingBytes, gathered } from '../domain/gathered-bytes.ts'
import { retryAfterMs } from '../domain/retry-after.ts'
import { shortened } from '../domain/text.ts'
import { isPublicAddress } from './webhook-url.ts'

const EXCERPT_CHARACTERS_MAX = 200
const EXCERPT_BYTES_MAX = 1024
const RETRY_AFTER_MS_MAX = 24 * 3_600_000

export interface Attempt {
  delivered: boolean
  /** The receiver's HTTP status; null without a response. */
  status: number | null
  /** The error for the webhook's owner; null when the event was delivered. */
  error: string | null
  /** The delay in ms that the receiver requested with `Retry-After`. */
  waitMs: number
}

interface WebhookRequest {
  url: string
  headers: Record<string, string>
  body: string
}

/** Sends the event. Rejects only when `signal` aborts; the result of the attempt is then unknown. */
export async function postEvent(
  { agent, clock, timeout_ms }: { agent: Dispatcher; clock: Clock; timeout_ms: number },
  { url, headers, body }: WebhookRequest,
  signal: AbortSignal,
): Promise<Attempt> {
  const { request } = await import('undici')
  const timeout = new AbortController()
  const cancelTimeout = clock.after(timeout_ms, () => timeout.abort())
  try {
    const response = await request(url, {
      method: 'POST',
      dispatcher: agent,
      headers: { 'content-type': 'application/json', 'user-agent': 'offpeak-webhooks', ...headers },
      body,
      signal: AbortSignal.any([signal, timeout.signal]),
    })
    const status = response.statusCode
    if (status >= 200 && status < 300) {
      response.body.on('error', () => {}).destroy()
      return { delivered: true, status, error: null, waitMs: 0 }
    }
    const excerpt = await excerptOf(response.body)
    const error = describe(status) + (excerpt === '' ? '' : `: ${excerpt}`)
    const waitMs = retryAfterMs(response.headers, clock.now(), RETRY_AFTER_MS_MAX) ?? 0
    return { delivered: false, status, error, waitMs }
  } catch (error) {
    signal.throwIfAborted()
    const text = timeout.signal.aborted ? `no answer within ${timeout_ms / 1000} s` : reason(error)
    return { delivered: false, status: null, error: text, waitMs: 0 }
  } finally {
    cancelTimeout()
  }
}

function describe(status: number): string {
  return status >= 300 && status < 400
    ? `status ${status}, and redirects are not followed`
    : `status ${status}`
}

/** The beginning of the body on one line; empty if the body cannot be read. */
async function excerptOf(body: Dispatcher.ResponseData['body']): Promise<string> {
  const begun = new GrowingBytes()
  try {
    for await (const piece of gathered(body)) {
      begun.add(piece, 0, Math.min(piece.length, EXCERPT_BYTES_MAX))
      if (begun.length >= EXCERPT_BYTES_MAX) break
    }
  } catch {
    // If the body was interrupted, its bytes so far are used.
  }
  const line = begun.view
    .toString()
    .replace(/[\p{Cc}\s]+/gu, ' ')
    .trim()
  return shortened(line, EXCERPT_CHARACTERS_MAX)
}

const REASONS: Readonly<Record<string, string>> = {
  ENOTFOUND: 'the name of its host cannot be resolved',
  EAI_AGAIN: 'the name of its host cannot be resolved now',
  ECONNREFUSED: 'the connection was refused',
  ECONNRESET: 'the connection broke',
  EPIPE: 'the connection broke',
  UND_ERR_SOCKET: 'the connection broke',
  ETIMEDOUT: 'no connection came about in time',
  UND_ERR_CONNECT_TIMEOUT: 'no connection came about in time',
  EHOSTUNREACH: 'its host cannot be reached',
  ENETUNREACH: 'its host cannot be reached',
}

/** The reason in Offpeak's words, since those of the system contain addresses. */
function reason(error: unknown): string {
  if (error instanceof AddressNotAllowed) return error.message
  const code = error instanceof Error && 'code' in error ? String(error.code) : ''
  const why = REASONS[code] ?? (/CERT|TLS|SSL/.test(code) ? 'TLS failed' : 'the request failed')
  return code === '' ? why : `${why} (${code})`
}

// Connections to webhooks. If private networks are not allowed, the address is checked when the connection is made,
// after name resolution, so a name whose address changes cannot reach a private network.

const CONNECT_TIMEOUT_MS = 10_000

/** Thrown for a private address, which the message omits: webhook owners must not learn internal addresses. */
class AddressNotAllowed extends Error {
  constructor() {
    super('its host leads to no address of the public internet (see webhooks.allow_private_networks)')
    this.name = 'AddressNotAllowed'
  }
}

interface AgentOptions {
  allow_private_networks: boolean
  /** The resolver of names; `dns.lookup` by default. */
  lookup?: LookupFunction
}

/** Loads the client, which takes 20 MiB, with the first delivery. */
export async function webhookAgent({
  allow_private_networks,
  lookup = systemLookup,
}: AgentOptions): Promise<Agent> {
  const { Agent, buildConnector } = await import('undici')
  if (allow_private_networks) return new Agent({ connect: { timeout: CONNECT_TIMEOUT_MS, lookup } })
  const connect = buildConnector({ timeout: CONNECT_TIMEOUT_MS, lookup: publicOnly(lookup) })
  return new Agent({
    connect(options, done) {
      // An IP address in the URL is connected to without a lookup.
      const literal = options.hostname.replace(/^\[|\]$/g, '')
      if (isIP(literal) !== 0 && !isPublicAddress(literal)) done(new AddressNotAllowed(), null)
      else connect(options, done)
    },
  })
}

/** A resolver that rejects a name with any address that is not public. */
function publicOnly(lookup: LookupFunction): LookupFunction {
  return (hostname, options, done) => {
    lookup(hostname, { ...options, all: true }, (error, found) => {
      if (error) return done(error, [])
      const addresses = typeof found === 'string' ? [{ address: found, family: isIP(found) }] : found
      const [first] = addresses
      if (addresses.some(({ address }) => !isPublicAddress(address))) done(new AddressNotAllowed(), [])
      else if (options.all) done(null, addresses)
      else done(null, first?.address ?? '', first?.family)
    })
  }
}
