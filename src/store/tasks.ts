// Background work that is not a chunk: validate a file, plan a batch, purge, deliver. Claimed in order of
// run_at under the same leases as chunks (leases.ts).
import { sql as raw } from 'kysely'
import { newId } from '../domain/ids.ts'
import type { TaskKind, TaskRow } from './schema.ts'
import type { ClaimSql, Reader, Writer } from './store.ts'

export async function insertTask(
  tx: Writer,
  task: { kind: TaskKind; subject: string; project_id: string; run_at?: number },
  now: number,
): Promise<void> {
  await tx
    .insertInto('tasks')
    .values({
      id: newId('task', now),
      run_at: 0,
      ...task,
      state: 'ready',
      epoch: 0,
      worker_id: null,
      attempts: 0,
      last_error: null,
      created: now,
    })
    .execute()
}

/** Whether there is anything to claim, without taking the write lock. */
export async function hasDueTask(db: Reader, sql: ClaimSql, kinds: readonly TaskKind[]): Promise<boolean> {
  const due = await db
    .selectFrom('tasks')
    .select('id')
    .where('state', '=', raw.lit('ready' as const))
    .where('run_at', '<=', sql.now)
    .where('kind', 'in', kinds)
    .limit(1)
    .executeTakeFirst()
  return due !== undefined
}

/** Leases the task that has been due longest, if any is due. */
export async function claimTask(
  tx: Writer,
  sql: ClaimSql,
  worker_id: string,
  kinds: readonly TaskKind[],
): Promise<TaskRow | undefined> {
  const due = tx
    .selectFrom('tasks')
    .select('id')
    .where('state', '=', raw.lit('ready' as const))
    .where('run_at', '<=', sql.now)
    .where('kind', 'in', kinds)
    .orderBy('run_at')
    .orderBy('id')
    .limit(1)
    .forUpdate()
    .skipLocked()
  const next = await due.executeTakeFirst()
  if (!next) return undefined
  return await tx
    .updateTable('tasks')
    .set((eb) => ({
      state: 'leased',
      worker_id,
      epoch: eb('epoch', '+', 1),
      attempts: eb('attempts', '+', 1),
    }))
    .where('id', '=', next.id)
    .returningAll()
    .executeTakeFirst()
}

/** Ends the task, if its lease still holds: call it first in the transaction that records its effect. */
export async function finishTask(tx: Writer, task: TaskRow): Promise<boolean> {
  const result = await tx
    .deleteFrom('tasks')
    .where('id', '=', task.id)
    .where('epoch', '=', task.epoch)
    .where('state', '=', 'leased')
    .executeTakeFirst()
  return result.numDeletedRows > 0n
}

/** Gives the task back, to be taken up again at `run_at`. */
export async function postponeTask(
  tx: Writer,
  task: TaskRow,
  run_at: number,
  last_error: string | null,
): Promise<void> {
  await tx
    .updateTable('tasks')
    .set({ state: 'ready', worker_id: null, run_at, last_error })
    .where('id', '=', task.id)
    .where('epoch', '=', task.epoch)
    .where('state', '=', 'leased')
    .execute()
}

/** Lets the task about `subject` that waits for its time run at once. */
export async function hastenTask(tx: Writer, subject: string, now: number): Promise<void> {
  await tx
    .updateTable('tasks')
    .set({ run_at: now })
    .where('subject', '=', subject)
    .where('state', '=', 'ready')
    .execute()
}
