// Thresholds of limits that were crossed: each is announced once per window and entity.
import type { CrossingRow } from './schema.ts'
import type { Writer } from './store.ts'

/** The thresholds that this limit and entity crossed in this window. */
export async function crossedBefore(
  tx: Writer,
  key: Pick<CrossingRow, 'limit_id' | 'entity' | 'window_start'>,
): Promise<number[]> {
  const rows = await tx
    .selectFrom('limit_crossings')
    .select('threshold')
    .where('limit_id', '=', key.limit_id)
    .where('entity', '=', key.entity)
    .where('window_start', '=', key.window_start)
    .execute()
  return rows.map((row) => row.threshold)
}

/** False if the crossing is recorded already. */
export async function insertCrossing(tx: Writer, row: CrossingRow): Promise<boolean> {
  const result = await tx
    .insertInto('limit_crossings')
    .values(row)
    .onConflict((oc) => oc.columns(['limit_id', 'entity', 'window_start', 'threshold']).doNothing())
    .executeTakeFirst()
  return (result.numInsertedOrUpdatedRows ?? 0n) > 0n
}
