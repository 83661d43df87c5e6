// Issues API keys. Listing and revoking are plain queries: listKeys and revokeKey of store/projects.ts.
import { type CompatMode, makeApiKey, PROJECT_SCOPES, type Scope } from '../domain/api-key.ts'
import type { Clock } from '../domain/clock.ts'
import { newId } from '../domain/ids.ts'
import { parseRetention, type RetentionTexts } from '../domain/retention.ts'
import { ensureProject } from '../store/projects.ts'
import { insertRow } from '../store/rows.ts'
import type { Store, Writer } from '../store/store.ts'

export interface KeyOrder {
  /** The project's name; a new project is created if none has it. */
  project: string
  /** The plan of a new project; an existing one keeps its plan. */
  plan: string
  /** The scopes of the key; PROJECT_SCOPES if not given. */
  scopes?: readonly Scope[] | undefined
  name?: string | undefined
  /** The form of answers to the key's calls; null: the API's own. */
  compat?: CompatMode | null | undefined
  /** The retention of the content of the key's batches, if shorter than the plan's. */
  retention?: RetentionTexts | undefined
}

/** A check in the transaction that creates the key; throws if the project may have no more keys. */
type KeyCheck = (tx: Writer, key: { id: string; project_id: string }) => Promise<void>

export interface IssuedKey {
  id: string
  /** The key, which is only shown once: its hash is stored. */
  key: string
  project: string
  project_id: string
  /** The plan of the project, which may differ from the requested one. */
  plan: string
  scopes: readonly Scope[]
}

export async function createKey(
  store: Store,
  clock: Clock,
  region: string,
  { project, plan, scopes = PROJECT_SCOPES, name, compat = null, retention }: KeyOrder,
  check: KeyCheck = async () => {},
): Promise<IssuedKey> {
  const now = clock.now()
  const id = newId('key', now)
  const { key, secret_sha256 } = makeApiKey(region, id)
  const owner = await store.write(async (tx) => {
    const found = await ensureProject(tx, { id: newId('project', now), name: project, plan, created: now })
    await check(tx, { id, project_id: found.id })
    await insertRow(tx, 'api_keys', {
      id,
      project_id: found.id,
      name: name ?? null,
      secret_sha256,
      scopes: JSON.stringify(scopes),
      created: now,
      revoked_at: null,
      compat,
      retention: retention ? JSON.stringify(parseRetention(retention)) : null,
    })
    return found
  })
  return { id, key, project: owner.name, project_id: owner.id, plan: owner.plan, scopes }
}
