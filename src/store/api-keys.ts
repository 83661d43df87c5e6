// API keys. The secret itself is never stored, only its SHA-256.
import { type Listed, listed, type Page } from './page.ts'
import type { ApiKeyRow, NewApiKeyRow } from './schema.ts'
import type { Reader, Writer } from './store.ts'

export type KeyWithProject = ApiKeyRow & { project_name: string; plan: string }

export async function insertKey(tx: Writer, key: NewApiKeyRow): Promise<void> {
  await tx.insertInto('api_keys').values(key).execute()
}

/** The key with its project's name and plan; revoked keys too. */
export async function readKey(db: Reader, id: string): Promise<KeyWithProject | undefined> {
  return await withProject(db).where('api_keys.id', '=', id).executeTakeFirst()
}

/** Every key, newest first. */
export async function listKeys(db: Reader): Promise<KeyWithProject[]> {
  return await withProject(db).orderBy('api_keys.id', 'desc').execute()
}

/** Those of one project, or of all. */
export async function listKeysPage(
  db: Reader,
  page: Page & { project_id: string | null },
): Promise<Listed<KeyWithProject>> {
  const { project_id } = page
  const all = withProject(db)
  const keys = project_id === null ? all : all.where('api_keys.project_id', '=', project_id)
  return await listed(keys, 'api_keys.id', page)
}

export interface KeyUse {
  id: string
  /** Unix ms. */
  at: number
}

export async function recordKeyUses(tx: Writer, uses: readonly KeyUse[]): Promise<void> {
  for (const { id, at } of uses)
    await tx.updateTable('api_keys').set({ last_used_at: at }).where('id', '=', id).execute()
}

/** Keys of the project that are not revoked. */
export async function countKeys(db: Reader, project_id: string): Promise<number> {
  const { keys } = await db
    .selectFrom('api_keys')
    .select((eb) => eb.fn.countAll<number>().as('keys'))
    .where('project_id', '=', project_id)
    .where('revoked_at', 'is', null)
    .executeTakeFirstOrThrow()
  return keys
}

/** Of each project the newest revoked keys are kept. */
const REVOKED_KEPT_MAX = 1_000

/** Ends its sessions as well. False when there is no such key or it was revoked before. */
export async function revokeKey(tx: Writer, id: string, now: number): Promise<boolean> {
  const revoked = await tx
    .updateTable('api_keys')
    .set({ revoked_at: now })
    .where('id', '=', id)
    .where('revoked_at', 'is', null)
    .returning('project_id')
    .executeTakeFirst()
  if (!revoked) return false
  await tx.deleteFrom('console_sessions').where('key_id', '=', id).execute()
  const old = await tx
    .selectFrom('api_keys')
    .select('id')
    .where('project_id', '=', revoked.project_id)
    .where('revoked_at', 'is not', null)
    .orderBy('id', 'desc')
    .limit(1)
    .offset(REVOKED_KEPT_MAX)
    .executeTakeFirst()
  if (old) {
    await tx.deleteFrom('rate_buckets').where('key_id', '=', old.id).execute()
    await tx.deleteFrom('api_keys').where('id', '=', old.id).execute()
  }
  return true
}

function withProject(db: Reader) {
  return db
    .selectFrom('api_keys')
    .innerJoin('projects', 'projects.id', 'api_keys.project_id')
    .selectAll('api_keys')
    .select(['projects.name as project_name', 'projects.plan as plan'])
}
