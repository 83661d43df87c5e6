// The one lease mechanism. A worker opens a session and renews it; whatever it has claimed, chunk or task,
// is leased as long as the session lives, so a renewal is one row however much is held. Only the database's
// clock judges a session. When it ends, its claims go back, and the next claim raises their epoch: commits
// that name the old one change nothing.
import { sql } from 'kysely'
import { newId } from '../domain/ids.ts'
import { releaseChunk } from './chunks.ts'
import { dropLaneReports } from './lane-reports.ts'
import { deleteReservationsOfWorker } from './reservations.ts'
import type { ChunkRow, SessionRole } from './schema.ts'
import type { ClaimSql, Reader, Writer } from './store.ts'

export async function openSession(
  tx: Writer,
  claimSql: ClaimSql,
  lease_ms: number,
  now: number,
  role: SessionRole = 'worker',
): Promise<string> {
  const id = newId('worker', now)
  await tx
    .insertInto('workers')
    .values((eb) => ({
      id,
      role,
      lease_until: eb(claimSql.now, '+', lease_ms),
      started: now,
      lease_ms,
    }))
    .execute()
  return id
}

/** False when the session has ended: its claims are lost, and the worker must open another. */
export async function renewSession(
  tx: Writer,
  claimSql: ClaimSql,
  worker_id: string,
  lease_ms: number,
): Promise<boolean> {
  const result = await tx
    .updateTable('workers')
    .set((eb) => ({ lease_until: eb(claimSql.now, '+', lease_ms), lease_ms }))
    .where('id', '=', worker_id)
    .where('lease_until', '>', claimSql.now)
    .executeTakeFirst()
  return result.numUpdatedRows > 0n
}

/**
 * Whether claims may be made under the session; until the transaction ends, nobody can end it. Claims of a
 * session that has ended would be nobody's: no rescue would ever find them.
 */
export async function lockSession(tx: Writer, claimSql: ClaimSql, worker_id: string): Promise<boolean> {
  const row = await tx
    .selectFrom('workers')
    .select('id')
    .where('id', '=', worker_id)
    .where('lease_until', '>', claimSql.now)
    .forKeyShare()
    .executeTakeFirst()
  return row !== undefined
}

/**
 * Gives back the chunks that are leased to a worker which knows nothing of them: the answer to its claim was
 * lost. Returns how many. `batch_ids`: only of these.
 */
export async function releaseStrayChunks(
  tx: Writer,
  worker_id: string,
  held: readonly Pick<ChunkRow, 'batch_id' | 'idx' | 'epoch'>[],
  batch_ids?: readonly string[],
): Promise<number> {
  // One that was claimed anew is not the one that is held.
  const name = ({ batch_id, idx, epoch }: Pick<ChunkRow, 'batch_id' | 'idx' | 'epoch'>): string =>
    `${batch_id} ${idx} ${epoch}`
  const known = new Set(held.map(name))
  const leased = await tx
    .selectFrom('chunks')
    .select(['batch_id', 'idx', 'epoch'])
    .where('worker_id', '=', worker_id)
    .where('state', '=', sql.lit('leased' as const))
    .$if(batch_ids !== undefined, (query) => query.where('batch_id', 'in', batch_ids ?? []))
    .execute()
  const strays = leased.filter((chunk) => !known.has(name(chunk)))
  for (const stray of strays) await releaseChunk(tx, stray)
  return strays.length
}

/** The same for tasks; `subjects`: only those about these. */
export async function releaseStrayTasks(
  tx: Writer,
  worker_id: string,
  held: readonly string[],
  subjects?: readonly string[],
): Promise<number> {
  let query = tx
    .updateTable('tasks')
    .set({ state: 'ready', worker_id: null })
    .where('worker_id', '=', worker_id)
    .where('state', '=', sql.lit('leased' as const))
  if (held.length > 0) query = query.where('id', 'not in', held)
  if (subjects) query = query.where('subject', 'in', subjects)
  return Number((await query.executeTakeFirst()).numUpdatedRows)
}

/** Ends a session and gives back whatever it held. */
export async function closeSession(tx: Writer, worker_id: string): Promise<void> {
  await tx.deleteFrom('workers').where('id', '=', worker_id).execute()
  await requeue(tx, worker_id)
}

/** How many processes hold a session now, and for how long at most, if none is renewed any more (ms). */
export async function liveSessions(
  db: Reader,
  claimSql: ClaimSql,
): Promise<{ count: number; longest_ms: number }> {
  const rows = await db
    .selectFrom('workers')
    .select((eb) => eb('lease_until', '-', claimSql.now).as('left_ms'))
    .where('lease_until', '>', claimSql.now)
    .execute()
  return { count: rows.length, longest_ms: Math.max(0, ...rows.map((row) => Number(row.left_ms))) }
}

/** Ends every session whose lease has run out; returns their IDs. */
export async function requeueExpiredLeases(tx: Writer, claimSql: ClaimSql): Promise<string[]> {
  const ended = await tx
    .deleteFrom('workers')
    .where('lease_until', '<=', claimSql.now)
    .returning('id')
    .execute()
  for (const { id } of ended) await requeue(tx, id)
  return ended.map((row) => row.id)
}

async function requeue(tx: Writer, worker_id: string): Promise<void> {
  await deleteReservationsOfWorker(tx, worker_id)
  await dropLaneReports(tx, worker_id)
  const free = { state: 'ready' as const, worker_id: null }
  await tx
    .updateTable('chunks')
    .set({ ...free, parked_reason: null })
    .where('worker_id', '=', worker_id)
    .where('state', '=', sql.lit('leased' as const))
    .execute()
  await tx
    .updateTable('tasks')
    .set(free)
    .where('worker_id', '=', worker_id)
    .where('state', '=', sql.lit('leased' as const))
    .execute()
}
