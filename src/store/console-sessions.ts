// Browsers that are signed in, and one-time links. Tokens are stored as hashes; a row counts until it expires or its
// key is revoked.
import type { KeyWithProject } from './api-keys.ts'
import type { ConsoleSessionRow } from './schema.ts'
import type { Reader, Writer } from './store.ts'

/** A key has so many sessions, and as many links. */
const OF_KEY_MAX = 20

/** Removes those that have expired, and the oldest of the key where it has too many: nothing else has to. */
export async function insertConsoleSession(tx: Writer, row: ConsoleSessionRow): Promise<void> {
  await tx.deleteFrom('console_sessions').where('expires', '<=', row.created).execute()
  await tx.insertInto('console_sessions').values(row).execute()
  const older = await tx
    .selectFrom('console_sessions')
    .select('token_sha256')
    .where('key_id', '=', row.key_id)
    .where('kind', '=', row.kind)
    .where('token_sha256', '!=', row.token_sha256)
    .orderBy('created', 'desc')
    .orderBy('token_sha256')
    .limit(OF_KEY_MAX)
    .offset(OF_KEY_MAX - 1)
    .execute()
  for (const { token_sha256 } of older) await deleteConsoleSession(tx, token_sha256)
}

export type KeyOfSession = KeyWithProject & { session_expires: number }

/** The key behind a session, whether it is revoked or not; undefined when there is no such session any more. */
export async function readConsoleSession(
  db: Reader,
  token_sha256: string,
  now: number,
): Promise<KeyOfSession | undefined> {
  return await db
    .selectFrom('console_sessions')
    .innerJoin('api_keys', 'api_keys.id', 'console_sessions.key_id')
    .innerJoin('projects', 'projects.id', 'api_keys.project_id')
    .selectAll('api_keys')
    .select([
      'projects.name as project_name',
      'projects.plan as plan',
      'console_sessions.expires as session_expires',
    ])
    .where('token_sha256', '=', token_sha256)
    .where('kind', '=', 'session')
    .where('expires', '>', now)
    .executeTakeFirst()
}

/** Whether there is such a link; looks without a transaction, for anybody may ask. */
export async function hasConsoleLink(db: Reader, token_sha256: string, now: number): Promise<boolean> {
  const link = await db
    .selectFrom('console_sessions')
    .select('key_id')
    .where('token_sha256', '=', token_sha256)
    .where('kind', '=', 'link')
    .where('expires', '>', now)
    .executeTakeFirst()
  return link !== undefined
}

/** Uses up a one-time link; the ID of its key, or undefined when it has expired or was used before. */
export async function takeConsoleLink(
  tx: Writer,
  token_sha256: string,
  now: number,
): Promise<string | undefined> {
  const taken = await tx
    .deleteFrom('console_sessions')
    .where('token_sha256', '=', token_sha256)
    .where('kind', '=', 'link')
    .where('expires', '>', now)
    .returning('key_id')
    .executeTakeFirst()
  return taken?.key_id
}

export async function deleteConsoleSession(tx: Writer, token_sha256: string): Promise<void> {
  await tx.deleteFrom('console_sessions').where('token_sha256', '=', token_sha256).execute()
}
