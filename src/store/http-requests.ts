// One row per authenticated HTTP call: what was asked, how it ended, and for calls that change something
// what was answered.
import { encodeTime } from 'ulid'
import { ID_PREFIXES } from '../domain/ids.ts'
import type { HttpRequestRow } from './schema.ts'
import type { Reader, Writer } from './store.ts'

/** Rows per INSERT: bound parameters are limited. */
const INSERT_ROWS_MAX = 500

export async function insertHttpRequests(tx: Writer, rows: readonly HttpRequestRow[]): Promise<void> {
  for (let at = 0; at < rows.length; at += INSERT_ROWS_MAX)
    await tx
      .insertInto('http_requests')
      .values(rows.slice(at, at + INSERT_ROWS_MAX))
      .execute()
}

/** The project's call; undefined when there was none or it was another project's. */
export async function readHttpRequest(
  db: Reader,
  project_id: string,
  id: string,
): Promise<HttpRequestRow | undefined> {
  return await db
    .selectFrom('http_requests')
    .selectAll()
    .where('id', '=', id)
    .where('project_id', '=', project_id)
    .executeTakeFirst()
}

/** Calls made before `before` (Unix ms) are forgotten, at most `limit` of them; returns how many. */
export async function forgetHttpRequests(tx: Writer, before: number, limit: number): Promise<number> {
  // IDs begin with their time, so the primary key finds the old ones without reading the others.
  const first_kept = ID_PREFIXES.request + encodeTime(before, 10).toLowerCase()
  const result = await tx
    .deleteFrom('http_requests')
    .where('id', 'in', (qb) =>
      qb.selectFrom('http_requests').select('id').where('id', '<', first_kept).orderBy('id').limit(limit),
    )
    .executeTakeFirst()
  return Number(result.numDeletedRows)
}
