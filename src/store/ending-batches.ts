// Batches that send no more lines (cancelled, input deleted, or past their window), and the claims of their remaining
// chunks. Workers close these before all other work, regardless of models and limits.
import { sql } from 'kysely'
import { OPEN_STATUSES } from '../domain/batch.ts'
import { OPEN_STATUSES_SQL } from './batches.ts'
import type { ChunkRow, TaskRow } from './schema.ts'
import type { ClaimSql, Reader, Writer } from './store.ts'
import { leaseTask } from './tasks.ts'

const NOT_CANCELLING = OPEN_STATUSES.filter((status) => status !== 'cancelling').map((status) =>
  sql.lit(status),
)

/** Some unfinished batches that are ending. Each part is a short range of a partial index. */
export async function listEnding(db: Reader, now: number, limit: number): Promise<string[]> {
  const some = () => db.selectFrom('batches').select('id').limit(limit)
  const cancelled = some().where('status', '=', sql.lit('cancelling' as const))
  const inputDeleted = some().where('input_deleted_at', 'is not', null).where('status', 'in', NOT_CANCELLING)
  const overdue = some().where('status', 'in', OPEN_STATUSES_SQL).where('expires_at', '<=', now)
  const rows = await db
    .selectFrom(cancelled.as('part'))
    .select('id')
    .union(db.selectFrom(inputDeleted.as('part')).select('id'))
    .union(db.selectFrom(overdue.as('part')).select('id'))
    .execute()
  return rows.map((row) => row.id)
}

/** The given batches that have a chunk or a plan to claim. */
export async function listClosable(
  db: Reader,
  { now }: ClaimSql,
  batch_ids: readonly string[],
): Promise<string[]> {
  if (batch_ids.length === 0) return []
  const rows = await db
    .selectFrom('batches')
    .select('id')
    .where('id', 'in', batch_ids)
    .where(({ or, exists, selectFrom }) =>
      or([
        exists(
          selectFrom('chunks')
            .select('idx')
            .whereRef('chunks.batch_id', '=', 'batches.id')
            .where('state', '!=', sql.lit('sealed' as const))
            .where(isClosable(now)),
        ),
        exists(
          selectFrom('tasks')
            .select('tasks.id')
            .whereRef('subject', '=', 'batches.id')
            .where('kind', '=', 'plan')
            .where('state', '=', 'ready')
            .where('run_at', '<=', now),
        ),
      ]),
    )
    .execute()
  return rows.map((row) => row.id)
}

/**
 * No worker has leased the chunk, and no batch API has lines of it: the worker that claims it next records what these
 * have finished. A chunk parked because the stores failed waits for its time like any other.
 */
function isClosable(now: ClaimSql['now']) {
  return sql<boolean>`(chunks.remote_batches = 0 AND (chunks.state = 'ready' OR (chunks.state = 'parked'
    AND (chunks.parked_reason <> 'stores_failing' OR chunks.run_at <= ${now}))))`
}

/** Leases chunks of these batches, in order; at most `count`. */
export async function claimClosable(
  tx: Writer,
  { now }: ClaimSql,
  worker_id: string,
  batch_ids: readonly string[],
  count: number,
): Promise<ChunkRow[]> {
  if (batch_ids.length === 0) return []
  const chosen = await tx
    .selectFrom('chunks')
    .select(['batch_id', 'idx'])
    .where('batch_id', 'in', batch_ids)
    .where('state', '!=', sql.lit('sealed' as const))
    .where(isClosable(now))
    .orderBy('batch_id')
    .orderBy('idx')
    .limit(count)
    .forUpdate()
    .skipLocked()
    .execute()
  const claims: ChunkRow[] = []
  for (const [batch_id, chunks] of Map.groupBy(chosen, (chunk) => chunk.batch_id)) {
    const indexes = chunks.map((chunk) => chunk.idx)
    claims.push(
      ...(await tx
        .updateTable('chunks')
        .set((eb) => ({ state: 'leased', worker_id, parked_reason: null, epoch: eb('epoch', '+', 1) }))
        .where('batch_id', '=', batch_id)
        .where('idx', 'in', indexes)
        .returningAll()
        .execute()),
    )
  }
  return claims
}

/** Leases the plan of one of these batches. */
export async function claimPlan(
  tx: Writer,
  { now }: ClaimSql,
  worker_id: string,
  batch_ids: readonly string[],
): Promise<TaskRow | undefined> {
  if (batch_ids.length === 0) return undefined
  const next = await tx
    .selectFrom('tasks')
    .select('id')
    .where('subject', 'in', batch_ids)
    .where('kind', '=', 'plan')
    .where('state', '=', sql.lit('ready' as const))
    .where('run_at', '<=', now)
    .orderBy('id')
    .limit(1)
    .forUpdate()
    .skipLocked()
    .executeTakeFirst()
  if (!next) return undefined
  return await leaseTask(tx, worker_id, next.id)
}
