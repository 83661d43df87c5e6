// Projects own everything; a project has the plan.
import { type Expression, type SelectQueryBuilder, sql } from 'kysely'
import { IDENTITY_ID, isIdentity, NO_SECRET, revocationId } from '../domain/api-key.ts'
import { OPEN_STATUSES } from '../domain/batch.ts'
import { recordOf } from '../domain/json-record.ts'
import { atMost } from '../domain/money.ts'
import type { QuotaName } from '../domain/plan.ts'
import { type Listed, listed, type Page } from './page.ts'
import {
  deleteRows,
  exactSum,
  findsRow,
  insertOnce,
  insertRow,
  putRows,
  selectRows,
  updateRows,
} from './rows.ts'
import type { ApiKeyRow, ConsoleSessionRow, NewApiKeyRow, ProjectRow, Schema } from './schema.ts'
import type { Reader, Writer } from './store.ts'
import { pendingUploads } from './uploads.ts'

/** All projects, ordered by ID. */
export async function listProjects(db: Reader): Promise<ProjectRow[]> {
  return await db.selectFrom('projects').selectAll().orderBy('id').execute()
}

/** A page of projects, or the one with the ID `only`. */
export async function listProjectsPage(
  db: Reader,
  page: Page & { only: string | null },
): Promise<Listed<ProjectRow>> {
  const { only } = page
  const all = db.selectFrom('projects').selectAll()
  return await listed(only === null ? all : all.where('id', '=', only), 'id', page)
}

/** Inserts the project, or returns the existing one with its name. */
export async function ensureProject(tx: Writer, project: ProjectRow): Promise<ProjectRow> {
  await insertOnce(tx, 'projects', project)
  return await selectRows(tx, 'projects', { name: project.name }).selectAll().executeTakeFirstOrThrow()
}

export async function setPlan(tx: Writer, id: string, plan: string): Promise<void> {
  await updateRows(tx, 'projects', { id }).set({ plan }).execute()
}

// The use of a project's quotas.

/** Locks the project until the transaction ends, so that no other locking transaction adds objects to it. */
export async function lockProject(tx: Writer, project_id: string): Promise<void> {
  await selectRows(tx, 'projects', { id: project_id }).select('id').forNoKeyUpdate().execute()
}

type CountUse = (db: Reader, project_id: string) => Expression<unknown>

/** Queries that count the use of the quotas that are counted in the database. */
const USES = {
  /** The bytes of files that their users can see, and of pending uploads. */
  stored_bytes: (db, project_id) => {
    const pending = pendingUploads(db, project_id).select(exactSum('stored').as('sum'))
    const files = selectRows(db, 'files', { project_id, deleted_at: null })
    return files.select(sql<number>`${exactSum('bytes')} + ${pending}`.as('sum'))
  },
  open_batches: (db, project_id) => count(unfinished(db, project_id)),
  queued_lines: (db, project_id) =>
    unfinished(db, project_id).select(
      sql<number>`CAST(coalesce(sum(total - completed - failed), 0) AS bigint)`.as('sum'),
    ),
  limits: (db, project_id) => count(selectRows(db, 'limits', { project_id })),
  /** Webhooks of batches do not count. */
  webhooks: (db, project_id) => count(selectRows(db, 'webhooks', { project_id, batch_id: null })),
  /** Keys that are not revoked, without persons and subjects of tokens. */
  keys: (db, project_id) =>
    count(selectRows(db, 'api_keys', { project_id, revoked_at: null }).where('id', '<', IDENTITY_ID)),
} satisfies Partial<Record<QuotaName, CountUse>>

export type StoredQuota = keyof typeof USES

export function isStored(name: QuotaName): name is StoredQuota {
  return name in USES
}

/** The use of these quotas, by one statement. */
export async function readUse(
  db: Reader,
  project_id: string,
  names: readonly StoredQuota[],
): Promise<Partial<Record<StoredQuota, number>>> {
  if (names.length === 0) return {}
  const row = await db
    .selectNoFrom(names.map((name) => sql<number>`${USES[name](db, project_id)}`.as(name)))
    .executeTakeFirstOrThrow()
  return recordOf(names, (name) => atMost(Number(row[name])))
}

function unfinished(db: Reader, project_id: string) {
  return selectRows(db, 'batches', { project_id, status: OPEN_STATUSES })
}

function count<T extends keyof Schema>(rows: SelectQueryBuilder<Schema, T, object>): Expression<unknown> {
  return rows.select(sql<number>`count(*)`.as('count'))
}

// API keys. The secret itself is never stored, only its SHA-256.

export type KeyWithProject = ApiKeyRow & { project_name: string; plan: string }

/** The key with its project's name and plan; revoked keys are included. */
export async function readKey(db: Reader, id: string): Promise<KeyWithProject | undefined> {
  return await withProject(db).where('api_keys.id', '=', id).executeTakeFirst()
}

/** Every key, newest first. */
export async function listKeys(db: Reader): Promise<KeyWithProject[]> {
  return await withProject(db).orderBy('api_keys.id', 'desc').execute()
}

/** A page of the keys of one project, or of all. */
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
  /** The time of last use, Unix ms. */
  at: number
}

export async function recordKeyUses(tx: Writer, uses: readonly KeyUse[]): Promise<void> {
  for (const { id, at } of uses) await updateRows(tx, 'api_keys', { id }).set({ last_used_at: at }).execute()
}

/** Inserts the identity, and the project if none has its name, or sets the identity's scopes. */
export async function putIdentity(
  tx: Writer,
  project: ProjectRow,
  identity: Omit<NewApiKeyRow, 'project_id'>,
): Promise<void> {
  const { id } = await ensureProject(tx, project)
  await putRows(tx, 'api_keys', [{ ...identity, project_id: id }], ['scopes'])
}

export interface TokenRevocation {
  issuer: string
  /** A subject, in all projects, or the ID of one token. */
  claim: 'sub' | 'jti'
  value: string
  /** The project that lists the row; tokens of all projects are rejected. */
  project_id: string
}

/** Revokes tokens; returns the ID of their row, and whether it is new. */
export async function revokeTokens(
  tx: Writer,
  { issuer, claim, value, project_id }: TokenRevocation,
  now: number,
): Promise<{ id: string; isFirst: boolean }> {
  const id = revocationId(issuer, claim, value)
  const name = `${claim === 'sub' ? 'subject' : 'token'} ${value}`
  const row = { id, project_id, name, issuer, secret_sha256: NO_SECRET, scopes: '[]' }
  return { id, isFirst: await insertOnce(tx, 'api_keys', { ...row, created: now, revoked_at: now }) }
}

/** Whether one of these rows exists and is revoked. */
export async function isRevoked(db: Reader, ids: readonly string[]): Promise<boolean> {
  return await findsRow(
    selectRows(db, 'api_keys', { id: ids }).select('id').where('revoked_at', 'is not', null),
  )
}

export type Identity = Pick<ApiKeyRow, 'name' | 'issuer'>

/** The identities among these keys, by ID. */
export async function identitiesAmong(
  db: Reader,
  key_ids: Iterable<string | null>,
): Promise<Map<string, Identity>> {
  const ids = [...new Set(key_ids)].filter((id) => id !== null).filter(isIdentity)
  if (ids.length === 0) return new Map()
  const rows = await selectRows(db, 'api_keys', { id: ids }).select(['id', 'name', 'issuer']).execute()
  return new Map(rows.map(({ id, ...identity }) => [id, identity]))
}

/** The number of revoked keys that a project keeps. All revoked identities are kept, as a missing row admits them. */
const REVOKED_KEPT_MAX = 1_000

/** Revokes a key and ends its sessions. False when there is no such key or it was revoked before. */
export async function revokeKey(tx: Writer, id: string, now: number): Promise<boolean> {
  const revoked = await updateRows(tx, 'api_keys', { id, revoked_at: null })
    .set({ revoked_at: now })
    .returning('project_id')
    .executeTakeFirst()
  if (!revoked) return false
  await deleteRows(tx, 'console_sessions', { key_id: id }).execute()
  const old = await selectRows(tx, 'api_keys', { project_id: revoked.project_id })
    .select('id')
    .where('revoked_at', 'is not', null)
    .where('id', '<', IDENTITY_ID)
    .orderBy('id', 'desc')
    .limit(1)
    .offset(REVOKED_KEPT_MAX)
    .executeTakeFirst()
  if (old) {
    await deleteRows(tx, 'rate_buckets', { key_id: old.id }).execute()
    await deleteRows(tx, 'api_keys', { id: old.id }).execute()
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

// Sessions of signed-in browsers, and one-time links. Tokens are stored as hashes; a row is valid until it expires or
// its key is revoked.

/** The limit of a key's sessions, and of its links. */
const OF_KEY_MAX = 20

/** Inserts the session, and deletes expired sessions and the key's oldest ones beyond its limit. */
export async function insertConsoleSession(tx: Writer, row: ConsoleSessionRow): Promise<void> {
  await tx.deleteFrom('console_sessions').where('expires', '<=', row.created).execute()
  await insertRow(tx, 'console_sessions', row)
  const older = await selectRows(tx, 'console_sessions', { key_id: row.key_id, kind: row.kind })
    .select('token_sha256')
    .where('token_sha256', '!=', row.token_sha256)
    .orderBy('created', 'desc')
    .orderBy('token_sha256')
    .limit(OF_KEY_MAX)
    .offset(OF_KEY_MAX - 1)
    .execute()
  for (const { token_sha256 } of older) await deleteConsoleSession(tx, token_sha256)
}

type KeyOfSession = KeyWithProject & { session_expires: number }

/** The key of a session, revoked or not; undefined without a valid session. */
export async function readConsoleSession(
  db: Reader,
  token_sha256: string,
  now: number,
): Promise<KeyOfSession | undefined> {
  return await withProject(db)
    .innerJoin('console_sessions', 'console_sessions.key_id', 'api_keys.id')
    .select('console_sessions.expires as session_expires')
    .where('token_sha256', '=', token_sha256)
    .where('kind', '=', 'session')
    .where('expires', '>', now)
    .executeTakeFirst()
}

/** Whether a one-time link is valid; without a transaction, because a caller without a key may ask. */
export async function hasConsoleLink(db: Reader, token_sha256: string, now: number): Promise<boolean> {
  const link = selectRows(db, 'console_sessions', { token_sha256, kind: 'link' }).select('key_id')
  return await findsRow(link.where('expires', '>', now))
}

/** Uses up a one-time link; returns the ID of its key, or undefined when it has expired or was used before. */
export async function takeConsoleLink(
  tx: Writer,
  token_sha256: string,
  now: number,
): Promise<string | undefined> {
  const taken = await deleteRows(tx, 'console_sessions', { token_sha256, kind: 'link' })
    .where('expires', '>', now)
    .returning('key_id')
    .executeTakeFirst()
  return taken?.key_id
}

export async function deleteConsoleSession(tx: Writer, token_sha256: string): Promise<void> {
  await deleteRows(tx, 'console_sessions', { token_sha256 }).execute()
}
