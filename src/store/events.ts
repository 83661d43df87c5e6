// Events of a project, newest first.
import type { EventType } from '../domain/event.ts'
import { type Listed, listed, type Page } from './page.ts'
import type { EventRow } from './schema.ts'
import type { Reader, Writer } from './store.ts'

export async function insertEvent(tx: Writer, event: EventRow): Promise<void> {
  await tx.insertInto('events').values(event).execute()
}

/** The project's event; undefined when it does not exist or is another project's. */
export async function readEvent(db: Reader, project_id: string, id: string): Promise<EventRow | undefined> {
  return await db
    .selectFrom('events')
    .selectAll()
    .where('id', '=', id)
    .where('project_id', '=', project_id)
    .executeTakeFirst()
}

/** A page of them. */
export async function listEvents(
  db: Reader,
  project_id: string,
  page: Page & { type?: EventType },
): Promise<Listed<EventRow>> {
  const all = db.selectFrom('events').selectAll().where('project_id', '=', project_id)
  return await listed(page.type === undefined ? all : all.where('type', '=', page.type), 'id', page)
}

/** Removes up to `limit` events from before `cutoff` (Unix ms) and what became of them; returns how many. */
export async function forgetEvents(tx: Writer, cutoff: number, limit: number): Promise<number> {
  const old = await tx
    .selectFrom('events')
    .select('id')
    .where('created', '<', cutoff)
    .orderBy('created')
    .limit(limit)
    .execute()
  const ids = old.map((row) => row.id)
  if (ids.length === 0) return 0
  await tx.deleteFrom('deliveries').where('event_id', 'in', ids).execute()
  await tx.deleteFrom('events').where('id', 'in', ids).execute()
  return ids.length
}
