// Sums over the books, for whoever compares them: each is taken from other rows than the rest.
import { exactSum } from './exact-sum.ts'
import type { BatchRow, ChunkRow } from './schema.ts'
import type { Reader } from './store.ts'

/** By ID, behind `after` if given; of one project, or of all. */
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

/** What the ledger has settled for the lines of a batch. */
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

/** What the ledger has settled for the lines of one chunk, by entity and day. */
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

/** By what it is keyed by: `entity day`, or `day`. */
export type BookSums = Map<string, BookSum>

/** What the ledger has settled for each entity on each day. */
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

/** What usage reports show for each entity on each day. */
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

/** What caps on whole projects are held to; `lines` are not counted there. */
export async function spentByDay(db: Reader, project_id: string): Promise<BookSums> {
  const rows = await db
    .selectFrom('project_days')
    .select(['day', 'tokens', 'cost_nanos'])
    .where('project_id', '=', project_id)
    .execute()
  return new Map(rows.map(({ day, tokens, cost_nanos }) => [`${day} `, { lines: 0, tokens, cost_nanos }]))
}

/** Chunks of a project that are set money aside for although nobody works on them. */
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
    .distinct()
    .execute()
}
