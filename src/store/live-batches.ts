// What GET /v1/live asks for once a second and project: unfinished batches, new ones, and those that have just ended.
import { OPEN_STATUSES_SQL } from './batches.ts'
import type { BatchRow } from './schema.ts'
import type { Reader } from './store.ts'

/** Unfinished batches of the project, newest first. */
export async function listOpenBatches(db: Reader, project_id: string, limit: number): Promise<BatchRow[]> {
  return await db
    .selectFrom('batches')
    .selectAll()
    .where('project_id', '=', project_id)
    .where('status', 'in', OPEN_STATUSES_SQL)
    .orderBy('id', 'desc')
    .limit(limit)
    .execute()
}

/** Batches of the project that were made after the batch `id`, and those of `ids`. */
export async function listLaterBatches(
  db: Reader,
  project_id: string,
  { id, ids, limit }: { id: string; ids: readonly string[]; limit: number },
): Promise<BatchRow[]> {
  const own = db.selectFrom('batches').selectAll().where('project_id', '=', project_id)
  const later = await own.where('id', '>', id).orderBy('id', 'desc').limit(limit).execute()
  // One statement for both would look at every batch of the project.
  const named = ids.length === 0 ? [] : await own.where('id', 'in', ids).where('id', '<=', id).execute()
  return [...later, ...named]
}
