// One row per authenticated HTTP call: what was asked, how it ended, and for calls that change something
// what was answered.
import { sql } from 'kysely'
import { encodeTime } from 'ulid'
import { ID_PREFIXES } from '../domain/ids.ts'
import { type Listed, listed, listedWhere, type Page } from './page.ts'
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

export interface HttpRequestFilter {
  method?: string | undefined
  /** `404`, or `4xx`. */
  status?: string | undefined
  /** What the path begins with. */
  path?: string | undefined
  key_id?: string | undefined
  /** Unix ms. */
  since: number
  until?: number | undefined
}

export async function listHttpRequests(
  db: Reader,
  project_id: string,
  { method, status, path, key_id, since, until, ...page }: Page & HttpRequestFilter,
): Promise<Listed<Omit<HttpRequestRow, 'response'>>> {
  const calls = db
    .selectFrom('http_requests')
    .select([
      ...(['id', 'project_id', 'key_id', 'method', 'path', 'status'] as const),
      ...(['created', 'duration_ms', 'entity', 'traceparent'] as const),
    ])
    .where('project_id', '=', project_id)
    .where('id', '>=', firstIdAt(since))
  const within = until === undefined ? calls : calls.where('id', '<', firstIdAt(until))
  if ([method, status, path, key_id].every((wanted) => wanted === undefined))
    return await listed(within, 'id', page)
  return await listedWhere(within, 'id', page, (all) => {
    let query = all
    if (method !== undefined) query = query.where('method', '=', method)
    if (key_id !== undefined) query = query.where('key_id', '=', key_id)
    if (path !== undefined)
      query = query.where(sql<string>`substr(path, 1, ${sql.lit(path.length)})`, '=', path)
    if (status?.endsWith('xx')) {
      const from = Number(status[0]) * 100
      query = query.where('status', '>=', from).where('status', '<', from + 100)
    } else if (status !== undefined) query = query.where('status', '=', Number(status))
    return query
  })
}

/** IDs begin with their time, so the primary key finds calls by it. */
function firstIdAt(ms: number): string {
  return ID_PREFIXES.request + encodeTime(Math.max(0, ms), 10).toLowerCase()
}

/** Calls made before `before` (Unix ms) are forgotten, at most `limit` of them; returns how many. */
export async function forgetHttpRequests(tx: Writer, before: number, limit: number): Promise<number> {
  const first_kept = firstIdAt(before)
  const result = await tx
    .deleteFrom('http_requests')
    .where('id', 'in', (qb) =>
      qb.selectFrom('http_requests').select('id').where('id', '<', first_kept).orderBy('id').limit(limit),
    )
    .executeTakeFirst()
  return Number(result.numDeletedRows)
}
