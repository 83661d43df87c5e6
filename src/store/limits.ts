// Limits. Whatever changes one raises the project's version, so that workers check again what they have
// been allowed under the old one.
import type { Limit, LimitAction, LimitScope } from '../domain/limit.ts'
import type { LimitRow } from './schema.ts'
import type { Reader, Writer } from './store.ts'

/** Entities named in one query: bound parameters are limited. */
const NAMES_MAX = 500

export async function insertLimit(tx: Writer, limit: LimitRow): Promise<void> {
  await tx.insertInto('limits').values(limit).execute()
  await raiseVersion(tx, limit.project_id)
}

export type LimitChange = Partial<Pick<LimitRow, 'amount' | 'action' | 'description' | 'notify_at'>>

/** Undefined when there is no such limit. */
export async function updateLimit(
  tx: Writer,
  project_id: string,
  id: string,
  change: LimitChange,
): Promise<LimitRow | undefined> {
  const known = await tx
    .selectFrom('limits')
    .selectAll()
    .where('id', '=', id)
    .where('project_id', '=', project_id)
    .forUpdate()
    .executeTakeFirst()
  if (!known || Object.keys(change).length === 0) return known
  await raiseVersion(tx, project_id)
  return await tx
    .updateTable('limits')
    .set(change)
    .where('id', '=', id)
    .returningAll()
    .executeTakeFirstOrThrow()
}

/** False when there is no such limit. */
export async function deleteLimit(tx: Writer, project_id: string, id: string): Promise<boolean> {
  const result = await tx
    .deleteFrom('limits')
    .where('id', '=', id)
    .where('project_id', '=', project_id)
    .executeTakeFirst()
  if (result.numDeletedRows === 0n) return false
  await raiseVersion(tx, project_id)
  return true
}

/** The project's limit; undefined when it does not exist or is another project's. */
export async function readLimit(db: Reader, project_id: string, id: string): Promise<LimitRow | undefined> {
  return await db
    .selectFrom('limits')
    .selectAll()
    .where('id', '=', id)
    .where('project_id', '=', project_id)
    .executeTakeFirst()
}

/** Newest first; those older than the limit `before`, if given. */
export async function listLimits(
  db: Reader,
  project_id: string,
  page: { limit: number; before?: string; scope?: LimitScope; entity?: string },
): Promise<LimitRow[]> {
  let query = db
    .selectFrom('limits')
    .selectAll()
    .where('project_id', '=', project_id)
    .orderBy('id', 'desc')
    .limit(page.limit)
  if (page.before !== undefined) query = query.where('id', '<', page.before)
  if (page.scope !== undefined) query = query.where('scope', '=', page.scope)
  if (page.entity !== undefined)
    query = query.where('scope', '=', 'entity').where('subject', '=', page.entity)
  return await query.execute()
}

/** 0 for a project that never had a limit. */
export async function readLimitVersion(db: Reader, project_id: string): Promise<number> {
  const row = await db
    .selectFrom('limit_versions')
    .select('version')
    .where('project_id', '=', project_id)
    .executeTakeFirst()
  return row?.version ?? 0
}

export interface LimitQuery {
  project_id: string
  /** The named entities that work is for. */
  entities: readonly string[]
  entity_types: readonly string[]
  /** Only limits of this action. */
  action?: LimitAction
}

/** The limits that count work for any of these entities, or for the project, ordered by ID. */
export async function matchingLimits(db: Reader, wanted: LimitQuery): Promise<Limit[]> {
  const queries = queriesFor(db, wanted)
  const rows: LimitRow[] = []
  for (const query of queries) rows.push(...(await query.execute()))
  return rows.sort((a, b) => (a.id < b.id ? -1 : 1)).map(toLimit)
}

/**
 * The same, locked until the transaction ends: of two that check the same limit, the second sees what the
 * first has taken.
 */
export async function lockMatchingLimits(tx: Writer, wanted: LimitQuery): Promise<Limit[]> {
  const ids = (await matchingLimits(tx, wanted)).map((limit) => limit.id)
  const rows: LimitRow[] = []
  // One by one in the order of their IDs, the same for everyone.
  for (let at = 0; at < ids.length; at += NAMES_MAX) {
    const query = tx
      .selectFrom('limits')
      .selectAll()
      .where('id', 'in', ids.slice(at, at + NAMES_MAX))
      .orderBy('id')
      .forUpdate()
    rows.push(...(await query.execute()))
  }
  return rows.map(toLimit).filter((limit) => wanted.action === undefined || limit.action === wanted.action)
}

function queriesFor(db: Reader, { project_id, entities, entity_types, action }: LimitQuery) {
  const ofScope = (scope: LimitScope) => {
    const query = db
      .selectFrom('limits')
      .selectAll()
      .where('project_id', '=', project_id)
      .where('scope', '=', scope)
    return action === undefined ? query : query.where('action', '=', action)
  }
  const pages = (scope: LimitScope, names: readonly string[]) => {
    const queries = []
    for (let at = 0; at < names.length; at += NAMES_MAX)
      queries.push(ofScope(scope).where('subject', 'in', names.slice(at, at + NAMES_MAX)))
    return queries
  }
  return [ofScope('project'), ...pages('entity', entities), ...pages('entity_type', entity_types)]
}

async function raiseVersion(tx: Writer, project_id: string): Promise<void> {
  await tx
    .insertInto('limit_versions')
    .values({ project_id, version: 1 })
    .onConflict((oc) =>
      oc.column('project_id').doUpdateSet((eb) => ({ version: eb('limit_versions.version', '+', 1) })),
    )
    .execute()
}

export function toLimit(row: LimitRow): Limit {
  const { id, project_id, scope, subject, metric, amount, window, action, description, created } = row
  const notify_at: number[] = JSON.parse(row.notify_at)
  return {
    id,
    project_id,
    scope,
    entity: scope === 'entity' ? subject : null,
    entity_type: scope === 'entity_type' ? subject : null,
    metric,
    amount,
    window,
    action,
    description,
    notify_at,
    created,
  }
}
