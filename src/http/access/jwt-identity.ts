// Knows callers by the tokens (JWT) of an OpenID provider: service accounts of Kubernetes, jobs of a CI, clients of
// Keycloak or Entra. A token counts by its issuer's signature, its audience and its time; its claims name the project, and
// the scopes and the entity where the configuration says which claims do. Nothing is kept between two calls but the keys
// of the issuer and the row of the subject.
import { readFile } from 'node:fs/promises'
import { Readable } from 'node:stream'
import type { JWTPayload, JWTVerifyGetKey, LocalJWKSet } from 'jose'
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

/** Where an issuer shows the keys that verify its tokens: one of the two. */
export interface KeySetPlace {
  jwks_url: string | null
  jwks_file: string | null
}

/** The configuration of tokens. */
export interface JwtRules extends KeySetPlace {
  issuer: string
  /** A token is for one of these. */
  audience: readonly string[]
  /** Claims; `a.b` is also the member `b` of the claim `a`. */
  project: string
  scopes: string | null
  entity: string | null
}

/** Signatures that only the issuer can make: no `none`, and no HMAC, whose key would be the public one. */
const ALGORITHMS = ['RS256', 'RS384', 'RS512', 'PS256', 'PS384', 'PS512', 'ES256', 'ES384', 'ES512', 'EdDSA']
/** How far the issuer's clock may be from ours. */
const SKEW_S = 60
/** How old keys get before they are read again: so long an issuer's withdrawn key is accepted. */
const FRESH_MS = 5 * 60_000
/** The time between two reads, whatever keys tokens name and whether the reads fail. */
const REREAD_MS = 10_000
/** So long keys go on to be used when they cannot be read again. */
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

  /** `unread` is told of each time that the keys cannot be read. */
  constructor(rules: JwtRules, store: Store, clock: Clock, unread: (error: unknown) => void) {
    this.#rules = rules
    this.#store = store
    this.#clock = clock
    this.#keys = new IssuerKeys(rules, clock, unread)
  }

  /** Throws invalid_api_key, unknown_project, and service_unavailable while the issuer's keys cannot be read. */
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
    const { jwtVerify, errors } = await import('jose')
    const { issuer, audience } = this.#rules
    try {
      const { payload } = await jwtVerify(token, this.#keys.find, {
        ...{ issuer, audience: [...audience], algorithms: ALGORITHMS, requiredClaims: ['sub', 'exp'] },
        ...{ clockTolerance: SKEW_S, currentDate: new Date(this.#clock.now()) },
      })
      return payload
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
      // jose throws a TypeError for a key that is too short or of another kind.
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

function rejected(why: string): ApiError {
  return new ApiError('invalid_api_key', `The token is not accepted: ${why}.`)
}

/** The claim of this name, which may itself have dots, else the member of a claim. */
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

/** OAuth writes scopes in one text with spaces between. Names that are no scopes of ours are for others. */
function scopesIn(value: unknown): Scope[] {
  const names = new Set(textsIn(value).flatMap((one) => one.split(' ')))
  return SCOPES.filter((scope) => names.has(scope))
}

/** The keys of an issuer: read when the first token comes, again when they are old, or when a token names another one. */
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

  readonly find: JWTVerifyGetKey = async (header, token) => {
    if (this.#age(this.#readAt) >= FRESH_MS || !this.#keys) await this.#read()
    const { errors } = await import('jose')
    try {
      return await this.#current()(header, token)
    } catch (error) {
      if (!(error instanceof errors.JWKSNoMatchingKey)) throw error
      await this.#read()
      return await this.#current()(header, token)
    }
  }

  /** A clock that was set back makes everything old. */
  #age(time: number): number {
    const age = this.#clock.now() - time
    return age < 0 ? Number.POSITIVE_INFINITY : age
  }

  #current(): LocalJWKSet {
    if (this.#keys && this.#age(this.#readAt) < KEPT_MS) return this.#keys
    const message = 'The keys that verify tokens cannot be read now.'
    throw new ApiError('service_unavailable', message, {}, REREAD_MS / 1000)
  }

  /** Calls at the same time share a read. Does nothing where the last one was just now. */
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

/** A JSON Web Key Set (RFC 7517, section 5). Throws an Error that says why there is none. */
export async function readKeySet({ jwks_url, jwks_file }: KeySetPlace): Promise<string> {
  const text = jwks_url === null ? await readFile(jwks_file ?? '', 'utf8') : await fetched(jwks_url)
  const problem = keySetProblem(text)
  if (problem !== null) throw new Error(problem)
  return text
}

async function fetched(url: string): Promise<string> {
  const answer = await fetch(url, { redirect: 'error', signal: AbortSignal.timeout(TIMEOUT_MS) })
  if (!answer.ok || !answer.body) throw new Error(`answered ${answer.status}`)
  const { bytes, isWhole } = await readWhole(Readable.fromWeb(answer.body), KEY_SET_BYTES_MAX)
  if (!isWhole) throw new Error(`has more than ${KEY_SET_BYTES_MAX} bytes`)
  return bytes.toString('utf8')
}
