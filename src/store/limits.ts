// Limits. Each change of a limit raises the project's version, so that workers check their reservations again, and
// makes the chunks ready that were parked under the limit.
import { sql } from 'kysely'
import type { LimitAction, LimitScope } from '../domain/limit.ts'
import { wakeOverLimit } from './chunks.ts'
import { type Listed, listed, type Page } from './page.ts'
import {
  addRows,
  changesRow,
  deleteRows,
  insertRow,
  lockRow,
  selectRows,
  slices,
  updateRows,
} from './rows.ts'
import type { CrossingRow, LimitRow } from './schema.ts'
import type { Reader, Writer } from './store.ts'

export async function insertLimit(tx: Writer, limit: LimitRow): Promise<void> {
  await insertRow(tx, 'limits', limit)
  await changed(tx, limit.project_id)
}

export type LimitChange = Partial<Pick<LimitRow, 'amount' | 'action' | 'description' | 'notify_at'>>

/** Changes a limit; undefined when there is no such limit. */
export async function updateLimit(
  tx: Writer,
  project_id: string,
  id: string,
  change: LimitChange,
): Promise<LimitRow | undefined> {
  const known = await lockRow(tx, 'limits', { id, project_id })
  if (!known || Object.keys(change).length === 0) return known
  await changed(tx, project_id)
  // A changed amount announces its thresholds again.
  if (change.amount !== undefined && change.amount !== known.amount)
    await deleteRows(tx, 'limit_crossings', { limit_id: id }).execute()
  return await updateRows(tx, 'limits', { id }).set(change).returningAll().executeTakeFirstOrThrow()
}

/** Deletes a limit. False when there is no such limit. */
export async function deleteLimit(tx: Writer, project_id: string, id: string): Promise<boolean> {
  if (!(await changesRow(deleteRows(tx, 'limits', { id, project_id })))) return false
  await changed(tx, project_id)
  return true
}

export async function listLimits(
  db: Reader,
  project_id: string,
  page: Page & { scope?: LimitScope; entity?: string; key?: string; model?: string },
): Promise<Listed<LimitRow>> {
  const { scope, entity, key, model } = page
  const limits = selectRows(db, 'limits', { project_id }).selectAll()
  return await listed(limits, 'id', page, [
    entity !== undefined && sql<boolean>`scope = 'entity' AND subject = ${entity}`,
    key !== undefined && sql<boolean>`scope = 'key' AND subject = ${key}`,
    model !== undefined && sql<boolean>`model = ${model}`,
    scope !== undefined && sql<boolean>`scope = ${scope}`,
  ])
}

/** The version of a project's limits; 0 for a project that never had a limit. */
export async function readLimitVersion(db: Reader, project_id: string): Promise<number> {
  return (await versionOf(db, project_id).executeTakeFirst())?.version ?? 0
}

function versionOf(db: Reader, project_id: string) {
  return selectRows(db, 'limit_versions', { project_id }).select('version')
}

/**
 * The end of the parking of a chunk that waits until `runAt` for limits of this version: 0 if the limits have changed.
 * Locks the row that each change of a limit changes first, so that either the change sees the parked chunk, or this
 * function sees the change.
 */
export async function overLimitUntil(
  tx: Writer,
  project_id: string,
  version: number,
  runAt: number,
): Promise<number> {
  const row = await versionOf(tx, project_id).forShare().executeTakeFirst()
  return (row?.version ?? 0) === version ? runAt : 0
}

export interface LimitQuery {
  project_id: string
  /** The named entities of the work. */
  entities: readonly string[]
  entity_types: readonly string[]
  /** The API keys that created the work. */
  key_ids: readonly string[]
  models: readonly string[]
  /** The only action of the limits; absent: any. */
  action?: LimitAction
}

type Named = Pick<LimitRow, 'scope' | 'subject'>

/** The limits that count work of these models for these entities or keys, or for the project, ordered by ID. */
export async function matchingLimits(db: Reader, wanted: LimitQuery, isLocked = false): Promise<LimitRow[]> {
  const names = [
    ...wanted.entities.map((subject): Named => ({ scope: 'entity', subject })),
    ...wanted.entity_types.map((subject): Named => ({ scope: 'entity_type', subject })),
    ...wanted.key_ids.map((subject): Named => ({ scope: 'key', subject })),
  ]
  // Every slice finds the limits of the project, so they are merged by ID.
  const byId = new Map<string, LimitRow>()
  for (const some of names.length === 0 ? [names] : slices(names)) {
    const query = matching(db, wanted, some)
    for (const row of await (isLocked ? query.forUpdate() : query).execute()) byId.set(row.id, row)
  }
  return [...byId.values()].sort((a, b) => (a.id < b.id ? -1 : 1))
}

/**
 * The matching limits, locked until the transaction ends: of two transactions that check the same limit, the second
 * sees the reservations of the first. All transactions lock limits in the order of their IDs.
 */
export async function lockMatchingLimits(tx: Writer, wanted: LimitQuery): Promise<LimitRow[]> {
  return await matchingLimits(tx, wanted, true)
}

function matching(db: Reader, { project_id, models, action }: LimitQuery, names: readonly Named[]) {
  const query = selectRows(db, 'limits', { project_id })
    .selectAll()
    // The search by index is limited to subjects: a project may have as many limits as entities.
    .where('subject', 'in', ['', ...names.map(({ subject }) => subject)])
    .where('model', 'in', ['', ...models])
    .where((eb) =>
      eb.or([
        eb('scope', 'in', ['project', 'model']),
        ...[...Map.groupBy(names, ({ scope }) => scope)].map(([scope, some]) =>
          eb.and([
            eb('scope', '=', scope),
            eb(
              'subject',
              'in',
              some.map(({ subject }) => subject),
            ),
          ]),
        ),
      ]),
    )
    // An order by the bare ID would make the database read that index from end to end.
    .orderBy(sql`id || ''`)
  return action === undefined ? query : query.where('action', '=', action)
}

async function changed(tx: Writer, project_id: string): Promise<void> {
  await addRows(tx, 'limit_versions', [{ project_id, version: 1 }], ['version'])
  await wakeOverLimit(tx, project_id)
}

// Crossed thresholds of limits: each is announced once per window, entity and amount.

/** The thresholds that a limit and entity crossed in a window. */
export async function crossedBefore(
  tx: Writer,
  key: Pick<CrossingRow, 'limit_id' | 'entity' | 'window_start'>,
): Promise<number[]> {
  const rows = await selectRows(tx, 'limit_crossings', key).select('threshold').execute()
  return rows.map((row) => row.threshold)
}
