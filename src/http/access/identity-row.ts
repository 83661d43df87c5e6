// Gives an identity for which somebody else vouches (a proxy, or the issuer of a token) a row among the API keys of its
// project, without a secret, so that it is counted, recorded, capped and revoked like a key.
import { identityId, NO_SECRET, type Scope } from '../../domain/api-key.ts'
import type { Clock } from '../../domain/clock.ts'
import { ApiError } from '../../domain/errors.ts'
import { newId } from '../../domain/ids.ts'
import { putIdentity, readKey } from '../../store/projects.ts'
import type { Store } from '../../store/store.ts'
import { type Caller, callerOfKey } from './caller.ts'

export interface VouchedIdentity {
  /** The name of the project, which is created where it does not exist. */
  project: string
  name: string
  /** The issuer of the token; null for a person. */
  issuer: string | null
  scopes: readonly Scope[]
}

/** The plan of a project that its first identity creates. */
const PLAN = 'payg'

/** The caller of an identity, whose row is created at the first call. Throws invalid_api_key where it was revoked. */
export async function callerOfIdentity(
  store: Store,
  clock: Clock,
  { project, name, issuer, scopes: granted }: VouchedIdentity,
): Promise<Caller> {
  const id = identityId(...[project, issuer, name].filter((part) => part !== null))
  const scopes = JSON.stringify(granted)
  let row = await readKey(store.read, id)
  if (row?.scopes !== scopes) {
    const created = clock.now()
    const owner = { id: newId('project', created), name: project, plan: PLAN, created }
    const identity = { id, name, issuer, scopes, created, secret_sha256: NO_SECRET }
    await store.write((tx) => putIdentity(tx, owner, { ...identity, revoked_at: null, compat: null }))
    row = await readKey(store.read, id)
  }
  if (row === undefined || row.revoked_at !== null)
    throw new ApiError('invalid_api_key', `The access of ${name} to the project was revoked.`)
  // The row's scopes may come from a concurrent call of the same identity.
  return callerOfKey({ ...row, scopes }, null)
}
