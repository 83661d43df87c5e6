// Statistics of batches that their commits write: errors by code and message, and what finished when. One row per
// batch, of bounded size (results/batch-statistics.ts).
import type { BatchStatisticsRow } from './schema.ts'
import type { Reader, Writer } from './store.ts'

/** The rows that there are, in no order. */
export async function readBatchStatistics(
  db: Reader,
  batch_ids: readonly string[],
): Promise<BatchStatisticsRow[]> {
  if (batch_ids.length === 0) return []
  return await db.selectFrom('batch_statistics').selectAll().where('batch_id', 'in', batch_ids).execute()
}

/** Replaces the rows. The caller holds the rows of the batches themselves, so nobody else writes these. */
export async function writeBatchStatistics(tx: Writer, rows: readonly BatchStatisticsRow[]): Promise<void> {
  if (rows.length === 0) return
  await tx
    .insertInto('batch_statistics')
    .values(rows)
    .onConflict((conflict) =>
      conflict.column('batch_id').doUpdateSet(({ ref }) => ({
        errors: ref('excluded.errors'),
        timeline: ref('excluded.timeline'),
      })),
    )
    .execute()
}
