// Authenticates API keys. Every key that is not accepted gets the same answer, which reveals nothing to a guesser. Keys
// are not cached: a revocation takes effect at the next call. Calls that come in one turn of the event loop share a read.

import type { FastifyRequest } from 'fastify'
import { GroupedWrites } from '../../audit/call-records.ts'
import { hashConsoleToken, parseApiKey, secretMatches } from '../../domain/api-key.ts'
import { BoundedMap } from '../../domain/bounded-map.ts'
import type { Clock } from '../../domain/clock.ts'
import { ApiError } from '../../domain/errors.ts'
import { type KeyUse, readConsoleSession, readKey, recordKeyUses } from '../../store/projects.ts'
import type { Reader, Store } from '../../store/store.ts'
import type { Access } from '../route.ts'
import { type Caller, callerOfKey } from './caller.ts'

/** The hash that is compared if there is no such key, so that the time does not reveal it. */
const NO_KEY_SHA256 = '0'.repeat(64)

/** The caller of an API key. `header`: the Authorization header. Throws invalid_api_key. */
export async function authenticate(db: Reader, region: string, header: string | undefined): Promise<Caller> {
  const parsed = parseApiKey(bearerOf(header))
  if (parsed?.region !== region) throw new ApiError('invalid_api_key')
  const key = await readShared(db, parsed.keyId)
  const matches = secretMatches(parsed.secret, key?.secret_sha256 ?? NO_KEY_SHA256)
  if (!key || !matches || key.revoked_at !== null) throw new ApiError('invalid_api_key')
  return callerOfKey(key, null)
}

/** The queued reads of keys, by ID. */
const waitingReads = new WeakMap<Reader, Map<string, ReturnType<typeof readKey>>>()

/** Reads a key together with other calls. The read begins after this call, so it sees all that was committed before. */
async function readShared(db: Reader, id: string): ReturnType<typeof readKey> {
  const waiting = waitingReads.get(db) ?? new Map<string, ReturnType<typeof readKey>>()
  waitingReads.set(db, waiting)
  const shared = waiting.get(id)
  if (shared) return await shared
  const read = new Promise<void>((resolve) => setImmediate(resolve)).then(() => {
    waiting.delete(id)
    return readKey(db, id)
  })
  waiting.set(id, read)
  return await read
}

const SESSION_ENDED = 'The session has ended. Sign in again with an API key.'

/** The caller of a console session. `token_sha256` comes from the session's cookie. Throws invalid_api_key. */
export async function authenticateSession(db: Reader, token_sha256: string, now: number): Promise<Caller> {
  const key = await readConsoleSession(db, token_sha256, now)
  if (!key || key.revoked_at !== null) throw new ApiError('invalid_api_key', SESSION_ENDED)
  return callerOfKey(key, key.session_expires)
}

/** The key ID in the header, whether or not the key exists. */
export function namedKey(header: string | undefined): string | null {
  return parseApiKey(bearerOf(header))?.keyId ?? null
}

function bearerOf(header: string | undefined): string {
  const [, text = ''] = /^Bearer +(\S+) *$/i.exec(header ?? '') ?? []
  return text
}

/** Throws missing_scope when the key may not use an endpoint with this access. */
export function authorize(caller: Caller, access: Access): void {
  if (typeof access === 'string' || access.some((scope) => caller.scopes.has(scope))) return
  const wanted = access.map((scope) => `\`${scope}\``).join(' or ')
  const holder = caller.token ? 'token' : 'API key'
  throw new ApiError('missing_scope', `The ${holder} lacks the scope ${wanted}.`)
}

// The cookie that carries a session of the console. No script can read it and no other site can send it; what changes
// something needs a header besides, which a page of another origin cannot set.

const NAME = 'offpeak_console'
const HEADER = 'x-offpeak-console'

/** The hash of the session token in a Cookie header; null where there is none. */
export function consoleTokenOf(cookies: string | undefined): string | null {
  for (const cookie of (cookies ?? '').split(';')) {
    const [name, value = ''] = cookie.trim().split('=', 2)
    if (name === NAME) return hashConsoleToken(value)
  }
  return null
}

type Headers = FastifyRequest['headers']

/** The value of Set-Cookie for a session. Over TLS, which the browser's origin shows, it is Secure. */
export function setConsoleCookie(token: string, maxAgeS: number, { origin }: Headers): string {
  const secure = origin?.startsWith('https://') ? '; Secure' : ''
  return `${NAME}=${token}; Path=/; Max-Age=${maxAgeS}; HttpOnly; SameSite=Strict${secure}`
}

/** Requires the header that other origins cannot set. Throws cross_site_request. */
export function requireConsoleHeader(headers: Headers): void {
  if (headers[HEADER] !== '1') throw new ApiError('cross_site_request')
}

// Records the time of each key's last use, to about a minute: one write a minute and key, which no call waits for.

const EVERY_MS = 60_000
/** The number of keys whose last recorded use this process remembers. */
const KEYS_MAX = 10_000

export class KeyUses {
  readonly #clock: Clock
  readonly #writes: GroupedWrites<KeyUse>
  readonly #noted = new BoundedMap<string, number>(KEYS_MAX)

  constructor(store: Pick<Store, 'writeAsyncCommit'>, clock: Clock) {
    this.#clock = clock
    this.#writes = new GroupedWrites(store, recordKeyUses)
  }

  note(id: string): void {
    const at = this.#clock.now()
    const before = this.#noted.get(id)
    if (before !== undefined && at - before < EVERY_MS) return
    this.#noted.set(id, at)
    // The use is recorded again in a minute, so a failed write loses nothing important.
    this.#writes.add({ id, at }).catch(() => {})
  }
}
