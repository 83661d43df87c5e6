// The one lease mechanism. A worker opens a session and renews it; whatever it has claimed, chunk or task,
// is leased as long as the session lives, so a renewal is one row however much is held. Only the database's
// clock judges a session. When it ends, its claims go back, and the next claim raises their epoch: commits
// that name the old one change nothing.
import { newId } from '../domain/ids.ts'
import type { ClaimSql, Writer } from './store.ts'

export async function openSession(tx: Writer, sql: ClaimSql, lease_ms: number, now: number): Promise<string> {
  const id = newId('worker', now)
  await tx
    .insertInto('workers')
    .values((eb) => ({ id, lease_until: eb(sql.now, '+', lease_ms), started: now }))
    .execute()
  return id
}

/** False when the session has ended: its claims are lost, and the worker must open another. */
export async function renewSession(
  tx: Writer,
  sql: ClaimSql,
  worker_id: string,
  lease_ms: number,
): Promise<boolean> {
  const result = await tx
    .updateTable('workers')
    .set((eb) => ({ lease_until: eb(sql.now, '+', lease_ms) }))
    .where('id', '=', worker_id)
    .where('lease_until', '>', sql.now)
    .executeTakeFirst()
  return result.numUpdatedRows > 0n
}

/** Ends a session and gives back whatever it held. */
export async function closeSession(tx: Writer, worker_id: string): Promise<void> {
  await tx.deleteFrom('workers').where('id', '=', worker_id).execute()
  await giveBack(tx, worker_id)
}

/** Ends every session whose lease has run out; returns their IDs. */
export async function rescueLeases(tx: Writer, sql: ClaimSql): Promise<string[]> {
  const ended = await tx.deleteFrom('workers').where('lease_until', '<=', sql.now).returning('id').execute()
  for (const { id } of ended) await giveBack(tx, id)
  return ended.map((row) => row.id)
}

async function giveBack(tx: Writer, worker_id: string): Promise<void> {
  const free = { state: 'ready' as const, worker_id: null }
  await tx
    .updateTable('chunks')
    .set({ ...free, parked_reason: null })
    .where('worker_id', '=', worker_id)
    .where('state', '=', 'leased')
    .execute()
  await tx
    .updateTable('tasks')
    .set(free)
    .where('worker_id', '=', worker_id)
    .where('state', '=', 'leased')
    .execute()
}
