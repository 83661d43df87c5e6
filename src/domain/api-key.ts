// An API key is `opk_<region>_<id>_<secret>`: it names the region where it is valid and the ID of its row. The
// secret, 256 random bits, is compared by its hash; 256 random bits cannot be guessed, so the hash needs neither a
// salt nor a slow function.
import { hash, randomBytes, timingSafeEqual } from 'node:crypto'
import { BASE32, ID_PREFIXES } from './ids.ts'

/** The permissions of a key, one or more. The routes declare the scope that they require. */
export const SCOPES = [
  'batches:write',
  'batches:read',
  'files:write',
  'files:read',
  'files:delete',
  'limits:read',
  'limits:write',
  'usage:read',
  'requests:read',
  'events:read',
  'webhooks:read',
  'webhooks:write',
  'keys:read',
  'keys:write',
  'operator',
] as const

export type Scope = (typeof SCOPES)[number]

/**
 * The scopes of a key that is created without scopes. `operator` also reads data of no project, such as unauthenticated
 * calls; a leaked key with `keys:write` could create others.
 */
export const PROJECT_SCOPES: readonly Scope[] = SCOPES.filter(
  (scope) => scope !== 'operator' && scope !== 'keys:write',
)

/** The scopes of a key with a cap that is created without scopes: its holder could lift the cap with `limits:write`. */
export const CAPPED_SCOPES: readonly Scope[] = PROJECT_SCOPES.filter((scope) => scope !== 'limits:write')

const SECRET_BYTES = 32
const FORM = /^opk_([a-z0-9-]+)_([0-9a-hjkmnp-tv-z]{26})_([A-Za-z0-9_-]{43})$/

interface ParsedApiKey {
  region: string
  /** The ID of the key's row: `key_…`. */
  keyId: string
  secret: string
}

/** The parts of a key, or null when `text` is not a key. */
export function parseApiKey(text: string): ParsedApiKey | null {
  const [, region, id, secret] = FORM.exec(text) ?? []
  if (region === undefined || id === undefined || secret === undefined) return null
  return { region, keyId: ID_PREFIXES.key + id, secret }
}

/** A new key for the row `key_id`, and the hash to store; the key itself is shown once. */
export function makeApiKey(region: string, key_id: string): { key: string; secret_sha256: string } {
  const secret = randomBytes(SECRET_BYTES).toString('base64url')
  const key = `opk_${region}_${key_id.slice(ID_PREFIXES.key.length)}_${secret}`
  if (parseApiKey(key) === null) throw new RangeError(`"${region}" cannot be part of a key`)
  return { key, secret_sha256: hashSecret(secret) }
}

/** SHA-256 of the secret's text, hex. */
export function hashSecret(secret: string): string {
  return hash('sha256', secret)
}

/** Whether `secret` has this hash, compared in constant time. */
export function secretMatches(secret: string, secret_sha256: string): boolean {
  const given = Buffer.from(hashSecret(secret), 'hex')
  const stored = Buffer.from(secret_sha256, 'hex')
  return given.length === stored.length && timingSafeEqual(given, stored)
}

// Identities of trusted issuers have rows among the keys: persons that a trusted proxy has signed in, and subjects of
// tokens. A key's ID is a ULID, whose first character is 7 at most.

export const IDENTITY_ID = `${ID_PREFIXES.key}z`

/** The row ID of an identity, a hash of `names`, so that finding the row needs no index. It sorts after key IDs. */
export function identityId(...names: readonly string[]): string {
  const digest = hash('sha256', names.join('\0'), 'buffer')
  return IDENTITY_ID + [...digest.subarray(0, 25)].map((byte) => BASE32[byte & 31]).join('')
}

/** The ID of the row that revokes a subject, or a token by its ID, in all projects. */
export function revocationId(issuer: string, claim: 'sub' | 'jti', value: string): string {
  return identityId('', issuer, claim, value)
}

/** The secret_sha256 of an identity, which no secret has. */
export const NO_SECRET = 'none'

export function isIdentity(key_id: string): boolean {
  return key_id.startsWith(IDENTITY_ID)
}

// The forms in which the API renders objects: its own, or one that keeps the assumptions of clients of OpenAI's Batch
// API. A key has a default, and a call can ask for the other one.

export const COMPAT_MODES = ['openai'] as const
export type CompatMode = (typeof COMPAT_MODES)[number]

export function isCompatMode(text: string): text is CompatMode {
  return COMPAT_MODES.some((mode) => mode === text)
}

// Console tokens, the secrets of signed-in browsers: `opc_` and 256 random bits, stored as a hash like API keys.

const CONSOLE_TOKEN = /^opc_[\w-]{43}$/

export function makeConsoleToken(): { token: string; token_sha256: string } {
  const token = `opc_${randomBytes(32).toString('base64url')}`
  return { token, token_sha256: hashSecret(token) }
}

/** The stored hash of a console token; null when `text` is no such token. */
export function hashConsoleToken(text: string): string | null {
  return CONSOLE_TOKEN.test(text) ? hashSecret(text) : null
}
