// Sums over the ledger and the usage tables, for reconciliation: each is computed from different rows.
import { sql } from 'kysely'
import { exactSum } from './exact-sum.ts'
import type { BatchRow, ChunkRow } from './schema.ts'
import type { Reader } from './store.ts'

/** In the order of their IDs, after `after` if given; of one project, or of all projects. */
export async function listBatchesToReconcile(
  db: Reader,
  {
    project_id,
    after,
    limit,
  }: { project_id?: string | undefined; after?: string | undefined; limit: number },
): Promise<BatchRow[]> {
  let query = db.selectFrom('batches').selectAll().orderBy('id').limit(limit)
  if (project_id !== undefined) query = query.where('project_id', '=', project_id)
  if (after !== undefined) query = query.where('id', '>', after)
  return await query.execute()
}

export async function listChunksOfBatch(db: Reader, batch_id: string): Promise<ChunkRow[]> {
  return await db.selectFrom('chunks').selectAll().where('batch_id', '=', batch_id).orderBy('idx').execute()
}

export interface BookSum {
  lines: number
  tokens: number
  cost_nanos: number
}

/** The settled lines of a batch, from the ledger. */
export async function settledForBatch(db: Reader, batch: BatchRow): Promise<BookSum> {
  return await db
    .selectFrom('ledger_entries')
    .select([
      exactSum('lines').as('lines'),
      exactSum('tokens').as('tokens'),
      exactSum('cost_nanos').as('cost_nanos'),
    ])
    .where('project_id', '=', batch.project_id)
    .where('batch_id', '=', batch.id)
    .executeTakeFirstOrThrow()
}

/** The settled lines of one chunk by entity and day, from the ledger. */
export async function settledOfChunk(
  db: Reader,
  chunk: Pick<ChunkRow, 'project_id' | 'batch_id' | 'idx'>,
): Promise<(BookSum & { entity: string; day: number })[]> {
  return await db
    .selectFrom('ledger_entries')
    .select([
      'entity',
      'day',
      exactSum('lines').as('lines'),
      exactSum('tokens').as('tokens'),
      exactSum('cost_nanos').as('cost_nanos'),
    ])
    .where('project_id', '=', chunk.project_id)
    .where('batch_id', '=', chunk.batch_id)
    .where('idx', '=', chunk.idx)
    .groupBy(['entity', 'day'])
    .execute()
}

/** Keyed by `day entity`; sums over all entities have an empty entity. */
export type BookSums = Map<string, BookSum>

/** The settled lines of each entity on each day, from the ledger. */
export async function settledByEntityAndDay(db: Reader, project_id: string): Promise<BookSums> {
  const rows = await db
    .selectFrom('ledger_entries')
    .select([
      'entity',
      'day',
      exactSum('lines').as('lines'),
      exactSum('tokens').as('tokens'),
      exactSum('cost_nanos').as('cost_nanos'),
    ])
    .where('project_id', '=', project_id)
    .groupBy(['entity', 'day'])
    .execute()
  return new Map(rows.map(({ entity, day, ...sum }) => [`${day} ${entity}`, sum]))
}

/** The lines of each entity on each day, from the table that usage reports read. */
export async function usageByEntityAndDay(db: Reader, project_id: string): Promise<BookSums> {
  const rows = await db
    .selectFrom('usage_days')
    .select([
      'entity',
      'day',
      exactSum('succeeded').as('succeeded'),
      exactSum('failed').as('failed'),
      exactSum('total_tokens').as('tokens'),
      exactSum('cost_nanos').as('cost_nanos'),
    ])
    .where('project_id', '=', project_id)
    .groupBy(['entity', 'day'])
    .execute()
  return new Map(
    rows.map(({ entity, day, succeeded, failed, tokens, cost_nanos }) => [
      `${day} ${entity}`,
      { lines: succeeded + failed, tokens, cost_nanos },
    ]),
  )
}

/** The spend that limits on whole projects read; `lines` is 0, for the table does not count them. */
export async function spentByDay(db: Reader, project_id: string): Promise<BookSums> {
  const rows = await db
    .selectFrom('project_days')
    .select(['day', 'tokens', 'cost_nanos'])
    .where('project_id', '=', project_id)
    .execute()
  return new Map(rows.map(({ day, tokens, cost_nanos }) => [`${day} `, { lines: 0, tokens, cost_nanos }]))
}

/** Chunks of a project that have a reservation although no worker has leased them. */
export async function strayReservations(
  db: Reader,
  project_id: string,
): Promise<{ batch_id: string; idx: number }[]> {
  return await db
    .selectFrom('reservations')
    .leftJoin('chunks', (join) =>
      join
        .onRef('chunks.batch_id', '=', 'reservations.batch_id')
        .onRef('chunks.idx', '=', 'reservations.idx'),
    )
    .select(['reservations.batch_id', 'reservations.idx'])
    .where('reservations.project_id', '=', project_id)
    .where((eb) => eb.or([eb('chunks.state', 'is', null), eb('chunks.state', '!=', 'leased')]))
    // What lines at a batch API have reserved has an index that no chunk has.
    .where(({ not, exists, selectFrom }) =>
      not(
        exists(
          selectFrom('remote_batches')
            .select('remote_batches.id')
            .whereRef('remote_batches.batch_id', '=', 'reservations.batch_id')
            .where(sql<boolean>`remote_batches.idx = -1 - reservations.idx`)
            .where('remote_batches.reserved', 'is not', null),
        ),
      ),
    )
    .distinct()
    .execute()
}
