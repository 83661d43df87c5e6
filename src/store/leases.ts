// The one lease mechanism. A worker opens a session and renews it. Everything that it has claimed, chunks and tasks, is
// leased as long as its session, so a renewal updates one row. Only the database's clock decides when a session
// expires. Its chunks and tasks are then requeued, and the next claim raises their epoch: commits that name the old
// epoch change nothing.
import { newId } from '../domain/ids.ts'
import { deleteReservationsOfWorker } from './ledger.ts'
import { deleteRows, selectRows, updateRows } from './rows.ts'
import type { ChunkRow, SessionRole, TaskRow } from './schema.ts'
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

/** False if the session has ended: its leases are lost, and the worker must open another session. */
export async function renewSession(
  tx: Writer,
  claimSql: ClaimSql,
  worker_id: string,
  lease_ms: number,
): Promise<boolean> {
  const result = await updateRows(tx, 'workers', { id: worker_id })
    .set((eb) => ({ lease_until: eb(claimSql.now, '+', lease_ms), lease_ms }))
    .where('lease_until', '>', claimSql.now)
    .executeTakeFirst()
  return result.numUpdatedRows > 0n
}

/**
 * Locks a session until the end of the transaction, so that it cannot expire meanwhile; false if it has ended. Claims
 * under an ended session would never be requeued.
 */
export async function lockSession(tx: Writer, claimSql: ClaimSql, worker_id: string): Promise<boolean> {
  const row = await selectRows(tx, 'workers', { id: worker_id })
    .select('id')
    .where('lease_until', '>', claimSql.now)
    .forKeyShare()
    .executeTakeFirst()
  return row !== undefined
}

/** The chunks that are leased to a worker, as far as the database knows. */
export async function leasedChunks(
  db: Reader,
  worker_id: string,
): Promise<Pick<ChunkRow, 'batch_id' | 'idx' | 'epoch'>[]> {
  return await selectRows(db, 'chunks', { worker_id, state: 'leased' })
    .select(['batch_id', 'idx', 'epoch'])
    .execute()
}

/** The same for tasks. */
export async function leasedTasks(db: Reader, worker_id: string): Promise<Pick<TaskRow, 'id' | 'epoch'>[]> {
  return await selectRows(db, 'tasks', { worker_id, state: 'leased' }).select(['id', 'epoch']).execute()
}

/** Requeues a task at once, unless it was leased again since. */
export async function releaseTask(tx: Writer, { id, epoch }: Pick<TaskRow, 'id' | 'epoch'>): Promise<void> {
  await updateRows(tx, 'tasks', { id, epoch, state: 'leased' })
    .set({ state: 'ready', worker_id: null })
    .execute()
}

/** Ends a session and requeues its chunks and tasks. */
export async function closeSession(tx: Writer, worker_id: string): Promise<void> {
  await deleteRows(tx, 'workers', { id: worker_id }).execute()
  await requeue(tx, worker_id)
}

/** The number of open sessions but `own`, and when the last one expires if none is renewed (ms from now). */
export async function liveSessions(
  db: Reader,
  claimSql: ClaimSql,
  own = '',
): Promise<{ count: number; longest_ms: number }> {
  const rows = await db
    .selectFrom('workers')
    .select((eb) => eb('lease_until', '-', claimSql.now).as('left_ms'))
    .where('lease_until', '>', claimSql.now)
    .where('id', '!=', own)
    .execute()
  return { count: rows.length, longest_ms: Math.max(0, ...rows.map((row) => Number(row.left_ms))) }
}

/** Ends every expired session and requeues its work; returns their IDs. */
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
  await deleteRows(tx, 'lane_reports', { worker_id }).execute()
  await deleteRows(tx, 'worker_reports', { worker_id }).execute()
  const free = { state: 'ready' as const, worker_id: null }
  await updateRows(tx, 'chunks', { worker_id, state: 'leased' })
    .set({ ...free, parked_reason: null })
    .execute()
  await updateRows(tx, 'tasks', { worker_id, state: 'leased' }).set(free).execute()
}
