// How much of its quotas a project uses.
import { sql } from 'kysely'
import { OPEN_STATUSES_SQL } from './batches.ts'
import { exactSum } from './exact-sum.ts'
import type { Reader, Writer } from './store.ts'

/** Until the transaction ends, no other that asks for the same can add to what the project has. */
export async function lockProject(tx: Writer, project_id: string): Promise<void> {
  await tx.selectFrom('projects').select('id').where('id', '=', project_id).forNoKeyUpdate().execute()
}

/** Of files that their users can see. */
export async function sumStoredBytes(db: Reader, project_id: string): Promise<number> {
  const { bytes } = await db
    .selectFrom('files')
    .select(exactSum('bytes').as('bytes'))
    .where('project_id', '=', project_id)
    .where('deleted_at', 'is', null)
    .executeTakeFirstOrThrow()
  return bytes
}

/** Unfinished batches, and their unfinished lines. */
export async function sumOpenBatches(
  db: Reader,
  project_id: string,
): Promise<{ batches: number; lines: number }> {
  return await db
    .selectFrom('batches')
    .select((eb) => [
      eb.fn.countAll<number>().as('batches'),
      sql<number>`CAST(coalesce(sum(total - completed - failed), 0) AS bigint)`.as('lines'),
    ])
    .where('project_id', '=', project_id)
    .where('status', 'in', OPEN_STATUSES_SQL)
    .executeTakeFirstOrThrow()
}

export async function countLimits(db: Reader, project_id: string): Promise<number> {
  const { rows } = await db
    .selectFrom('limits')
    .select((eb) => eb.fn.countAll<number>().as('rows'))
    .where('project_id', '=', project_id)
    .executeTakeFirstOrThrow()
  return rows
}
