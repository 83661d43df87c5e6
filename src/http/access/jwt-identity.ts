// Knows callers by the tokens (JWT) of an OpenID provider: service accounts of Kubernetes, jobs of a CI, clients of
// Keycloak or Entra. A token counts by its issuer's signature, its audience and its time; its claims name the project, and
// the scopes and the entity where the configuration says which claims do. Nothing is kept between two calls but the keys
// of the issuer and the row of the subject.
import { readFile } from 'node:fs/promises'
import { Readable } from 'node:stream'
import type { JWTPayload, JWTVerifyOptions, LocalJWKSet } from 'jose'
import { PROJECT_SCOPES, revocationId, SCOPES, type Scope } from '../../domain/api-key.ts'
import type { Clock } from '../../domain/clock.ts'
import { keySetProblem } from '../../domain/credentials.ts'
import { ApiError } from '../../domain/errors.ts'
import { readWhole } from '../../domain/gathered-bytes.ts'
import { isRecord } from '../../domain/json-record.ts'
import { isRevoked } from '../../store/projects.ts'
import { selectRows } from '../../store/rows.ts'
import type { Store } from '../../store/store.ts'
import type { Caller } from './caller.ts'
import { callerOfIdentity } from './identity-row.ts'

/** The place of an issuer's public keys: a URL or a file. */
export interface KeySetPlace {
  jwks_url: string | null
  jwks_file: string | null
}

export interface JwtRules extends KeySetPlace {
  issuer: string
  /** The accepted audiences of a token. */
  audience: readonly string[]
  /** The claims with project, scopes and entity; `a.b` may also be the member `b` of the claim `a`. */
  project: string
  scopes: string | null
  entity: string | null
}

/** The accepted algorithms: no `none`, and no HMAC, whose key would be the public one. */
const ALGORITHMS = ['RS256', 'RS384', 'RS512', 'PS256', 'PS384', 'PS512', 'ES256', 'ES384', 'ES512', 'EdDSA']
/** The largest skew between the issuer's clock and ours, in seconds. */
const SKEW_S = 60
/** The age in ms at which keys are read again: a withdrawn key is accepted until then. */
const FRESH_MS = 5 * 60_000
/** The shortest time in ms between two reads of the keys, also after a failed read or a token that they do not verify. */
const REREAD_MS = 10_000
/** The age in ms up to which keys are used while they cannot be read again. */
const KEPT_MS = 24 * 3_600_000
const TIMEOUT_MS = 5_000
const KEY_SET_BYTES_MAX = 1024 * 1024
const SUBJECT = /^\P{C}{1,255}$/u
const PROJECTS_MAX = 100
const TOKEN = /^Bearer +(ey[\w-]+\.[\w-]*\.[\w-]*) *$/i

/** The token in an Authorization header; null where it has none. */
export function tokenOf(header: string | undefined): string | null {
  return TOKEN.exec(header ?? '')?.[1] ?? null
}

export class JwtIdentity {
  readonly #rules: JwtRules
  readonly #store: Store
  readonly #clock: Clock
  readonly #keys: IssuerKeys

  /** Prepares authentication by tokens. `unread` gets the error of each failed read of the keys. */
  constructor(rules: JwtRules, store: Store, clock: Clock, unread: (error: unknown) => void) {
    this.#rules = rules
    this.#store = store
    this.#clock = clock
    this.#keys = new IssuerKeys(rules, clock, unread)
  }

  /** The caller of a token. Throws invalid_api_key, unknown_project, and service_unavailable without keys. */
  async authenticate(token: string): Promise<{ caller: Caller; entity: string | null }> {
    const claims = await this.#verified(token)
    const { issuer, scopes, entity } = this.#rules
    const { sub: name = '', jti, exp = 0 } = claims
    if (!SUBJECT.test(name)) throw rejected('its subject (`sub`) is no text of up to 255 characters')
    const revoked_by = [
      revocationId(issuer, 'sub', name),
      ...(typeof jti === 'string' ? [revocationId(issuer, 'jti', jti)] : []),
    ]
    if (await isRevoked(this.#store.read, revoked_by)) throw rejected('it or its subject was revoked')
    const project = await this.#projectOf(claims)
    const granted = scopes === null ? PROJECT_SCOPES : scopesIn(claimAt(claims, scopes))
    const identity = { project, name, issuer, scopes: granted }
    const caller = await callerOfIdentity(this.#store, this.#clock, identity)
    const [attributed = null] = entity === null ? [] : textsIn(claimAt(claims, entity))
    return {
      caller: { ...caller, token: { expires: (exp + SKEW_S) * 1000, revoked_by } },
      entity: attributed,
    }
  }

  async #verified(token: string): Promise<JWTPayload> {
    const { errors } = await import('jose')
    const { issuer, audience } = this.#rules
    const options = {
      ...{ issuer, audience: [...audience], algorithms: ALGORITHMS, requiredClaims: ['sub', 'exp'] },
      ...{ clockTolerance: SKEW_S, currentDate: new Date(this.#clock.now()) },
    }
    try {
      return await this.#keys.verify(token, options)
    } catch (error) {
      if (error instanceof errors.JWTExpired) throw rejected('it has expired')
      if (error instanceof errors.JWTClaimValidationFailed)
        throw rejected(
          error.claim === 'aud'
            ? `its audience (\`aud\`) is not ${audience.map((one) => `\`${one}\``).join(' or ')}`
            : error.claim === 'iss'
              ? `its issuer (\`iss\`) is not \`${issuer}\``
              : `its claim \`${error.claim}\` is ${error.reason === 'missing' ? 'missing' : 'not met'}`,
        )
      if (error instanceof errors.JOSEAlgNotAllowed)
        throw rejected(`its algorithm is none of ${ALGORITHMS.join(', ')}`)
      if (error instanceof errors.JWKSNoMatchingKey) throw rejected('its issuer shows no key for it (`kid`)')
      // jose throws a TypeError for a key that is too short or of another type.
      if (error instanceof errors.JOSEError || error instanceof TypeError)
        throw rejected('its signature is wrong, or it is no signed JWT')
      throw error
    }
  }

  /** The name of the one project that the token names. */
  async #projectOf(claims: JWTPayload): Promise<string> {
    const { project: claim } = this.#rules
    const named = textsIn(claimAt(claims, claim)).slice(0, PROJECTS_MAX)
    if (named.length === 0)
      throw new ApiError(
        'unknown_project',
        `The token has no claim \`${claim}\`, which would name its project.`,
      )
    const known = await selectRows(this.#store.read, 'projects', { name: named }).select('name').execute()
    if (known.length === 1) return known[0]!.name
    const names = (known.length > 0 ? known.map(({ name }) => name) : named)
      .slice(0, 5)
      .map((name) => `"${name}"`)
    throw new ApiError(
      'unknown_project',
      known.length > 0
        ? `The claim \`${claim}\` of the token names several projects: ${names.join(', ')}. A token acts for one.`
        : `The claim \`${claim}\` of the token names ${names.join(', ')}, and this service has no such project.`,
    )
  }
}

/** The claims of a token that names its key, or that any key of its algorithm verifies, as while an issuer changes its key. */
async function payloadOf(token: string, find: LocalJWKSet, options: JWTVerifyOptions): Promise<JWTPayload> {
  const { jwtVerify, errors } = await import('jose')
  try {
    return (await jwtVerify(token, find, options)).payload
  } catch (several) {
    if (!(several instanceof errors.JWKSMultipleMatchingKeys)) throw several
    for await (const key of several)
      try {
        return (await jwtVerify(token, key, options)).payload
      } catch (error) {
        if (!(error instanceof errors.JWSSignatureVerificationFailed)) throw error
      }
    throw several
  }
}

function rejected(why: string): ApiError {
  return new ApiError('invalid_api_key', `The token is not accepted: ${why}.`)
}

/** The claim with this name, which may contain dots, else the member of a claim. */
function claimAt(claims: Record<string, unknown>, path: string): unknown {
  if (Object.hasOwn(claims, path)) return claims[path]
  for (let dot = path.indexOf('.'); dot > 0; dot = path.indexOf('.', dot + 1)) {
    const name = path.slice(0, dot)
    const inner = Object.hasOwn(claims, name) ? claims[name] : undefined
    const found = isRecord(inner) ? claimAt(inner, path.slice(dot + 1)) : undefined
    if (found !== undefined) return found
  }
  return undefined
}

function textsIn(value: unknown): string[] {
  const values: readonly unknown[] = Array.isArray(value) ? value : [value]
  return values.filter((one) => typeof one === 'string' && one !== '').map(String)
}

/** The known scopes in a claim. OAuth writes scopes in one text with spaces between; other names are ignored. */
function scopesIn(value: unknown): Scope[] {
  const names = new Set(textsIn(value).flatMap((one) => one.split(' ')))
  return SCOPES.filter((scope) => names.has(scope))
}

/** The keys of an issuer, read at the first token, and again when they are old or do not verify a token. */
class IssuerKeys {
  readonly #place: KeySetPlace
  readonly #clock: Clock
  readonly #unread: (error: unknown) => void
  #keys: LocalJWKSet | undefined
  #readAt = 0
  #triedAt: number | undefined
  #reading: Promise<void> | undefined

  constructor(place: KeySetPlace, clock: Clock, unread: (error: unknown) => void) {
    this.#place = place
    this.#clock = clock
    this.#unread = unread
  }

  /** The claims of a token. Keys that do not verify it are read again, since the issuer may have replaced them. */
  async verify(token: string, options: JWTVerifyOptions): Promise<JWTPayload> {
    const { errors } = await import('jose')
    const { JWKSNoMatchingKey, JWKSMultipleMatchingKeys, JWSSignatureVerificationFailed } = errors
    if (this.#age(this.#readAt) >= FRESH_MS || !this.#keys) await this.#read()
    const known = this.#current()
    try {
      return await payloadOf(token, known, options)
    } catch (error) {
      const mayBeReplaced = [JWKSNoMatchingKey, JWKSMultipleMatchingKeys, JWSSignatureVerificationFailed]
      if (!mayBeReplaced.some((kind) => error instanceof kind)) throw error
      await this.#read()
      if (this.#keys === known) throw error
      return await payloadOf(token, this.#current(), options)
    }
  }

  /** The age of a time in ms; infinite after the clock was set back. */
  #age(time: number): number {
    const age = this.#clock.now() - time
    return age < 0 ? Number.POSITIVE_INFINITY : age
  }

  #current(): LocalJWKSet {
    if (this.#keys && this.#age(this.#readAt) < KEPT_MS) return this.#keys
    const message = 'The keys that verify tokens cannot be read now.'
    throw new ApiError('service_unavailable', message, {}, REREAD_MS / 1000)
  }

  /** Reads the keys once for concurrent calls. Does nothing within REREAD_MS of the last read. */
  #read(): Promise<void> {
    if (this.#reading) return this.#reading
    if (this.#triedAt !== undefined && this.#age(this.#triedAt) < REREAD_MS) return Promise.resolve()
    this.#triedAt = this.#clock.now()
    this.#reading = this.#readNow().finally(() => {
      this.#reading = undefined
    })
    return this.#reading
  }

  async #readNow(): Promise<void> {
    const { createLocalJWKSet } = await import('jose')
    try {
      this.#keys = createLocalJWKSet(JSON.parse(await readKeySet(this.#place)))
      this.#readAt = this.#clock.now()
    } catch (error) {
      this.#unread(error)
    }
  }
}

/** Reads a JSON Web Key Set (RFC 7517, section 5). Throws an Error with the reason if there is none. */
export async function readKeySet({ jwks_url, jwks_file }: KeySetPlace): Promise<string> {
  const text = jwks_url === null ? await readFile(jwks_file ?? '', 'utf8') : await fetched(jwks_url)
  const problem = keySetProblem(text)
  if (problem !== null) throw new Error(problem)
  // A byte order mark counts as white space.
  return text.trim()
}

async function fetched(url: string): Promise<string> {
  const answer = await fetch(url, { redirect: 'error', signal: AbortSignal.timeout(TIMEOUT_MS) })
  if (!answer.ok || !answer.body) throw new Error(`answered ${answer.status}`)
  const { bytes, isWhole } = await readWhole(Readable.fromWeb(answer.body), KEY_SET_BYTES_MAX)
  if (!isWhole) throw new Error(`has more than ${KEY_SET_BYTES_MAX} bytes`)
  return bytes.toString('utf8')
}
