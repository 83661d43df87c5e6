// Browsers that are signed in, and one-time links. Tokens are stored as hashes; a row counts until it expires or its
// key is revoked.
import type { KeyWithProject } from './api-keys.ts'
import type { ConsoleSessionRow } from './schema.ts'
import type { Reader, Writer } from './store.ts'

/** Removes those that have expired as well: nothing else has to. */
export async function insertConsoleSession(tx: Writer, row: ConsoleSessionRow): Promise<void> {
  await tx.deleteFrom('console_sessions').where('expires', '<=', row.created).execute()
  await tx.insertInto('console_sessions').values(row).execute()
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
