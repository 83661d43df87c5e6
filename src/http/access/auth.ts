// Authenticates API keys. Every key that is not accepted gets the same answer, which reveals nothing to a guesser. Keys
// are not cached: reading one takes microseconds, and a revocation takes effect at the next call.
import { isScope, parseApiKey, type Scope, secretMatches } from '../../domain/api-key.ts'
import { ApiError } from '../../domain/errors.ts'
import { type KeyWithProject, readConsoleSession, readKey } from '../../store/api-keys.ts'
import type { Reader } from '../../store/store.ts'
import type { Access } from '../route.ts'
import type { Caller } from './caller.ts'

/** Compared against if there is no such key, so that the time does not reveal it. */
const NO_KEY_SHA256 = '0'.repeat(64)

/** `header` is the Authorization header. Throws invalid_api_key. */
export async function authenticate(db: Reader, region: string, header: string | undefined): Promise<Caller> {
  const parsed = parseApiKey(bearerOf(header))
  if (parsed?.region !== region) throw new ApiError('invalid_api_key')
  const key = await readKey(db, parsed.keyId)
  const matches = secretMatches(parsed.secret, key?.secret_sha256 ?? NO_KEY_SHA256)
  if (!key || !matches || key.revoked_at !== null) throw new ApiError('invalid_api_key')
  return callerOfKey(key, null)
}

const SESSION_ENDED = 'The session has ended. Sign in again with an API key.'

/** `token_sha256` comes from the console's cookie. Throws invalid_api_key. */
export async function authenticateSession(db: Reader, token_sha256: string, now: number): Promise<Caller> {
  const key = await readConsoleSession(db, token_sha256, now)
  if (!key || key.revoked_at !== null) throw new ApiError('invalid_api_key', SESSION_ENDED)
  return callerOfKey(key, key.session_expires)
}

function callerOfKey(key: KeyWithProject, session_expires: number | null): Caller {
  return {
    project_id: key.project_id,
    project_name: key.project_name,
    plan: key.plan,
    key_id: key.id,
    scopes: scopesOf(key.scopes),
    // The console reads objects in the API's own form.
    compat: session_expires === null ? key.compat : null,
    session_expires,
  }
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
  throw new ApiError('missing_scope', `The API key lacks the scope ${wanted}.`)
}

function scopesOf(json: string): Set<Scope> {
  const listed: unknown = JSON.parse(json)
  if (!Array.isArray(listed)) return new Set()
  return new Set(listed.filter((scope) => typeof scope === 'string').filter(isScope))
}
