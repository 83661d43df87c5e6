// Summaries of the unsealed chunks of unfinished batches.
import { sql } from 'kysely'
import type { ChunkState } from './schema.ts'
import type { Reader } from './store.ts'

/** A group of unsealed chunks of a batch in the same state. */
export interface ChunkGroup {
  batch_id: string
  state: ChunkState
  parked_reason: string | null
  model: string | null
  chunks: number
}

export async function groupUnsealed(db: Reader, batch_ids: readonly string[]): Promise<ChunkGroup[]> {
  if (batch_ids.length === 0) return []
  return await db
    .selectFrom('chunks')
    .select((eb) => ['batch_id', 'state', 'parked_reason', 'model', eb.fn.countAll<number>().as('chunks')])
    .where('batch_id', 'in', batch_ids)
    .where('state', '!=', sql.lit('sealed' as const))
    .groupBy(['batch_id', 'state', 'parked_reason', 'model'])
    .execute()
}

/** The number of leased chunks and ready work over all projects. */
export async function countLeased(db: Reader): Promise<{ chunks: number; batches: number }> {
  return await db
    .selectFrom('chunks')
    .select((eb) => [
      eb.fn.countAll<number>().as('chunks'),
      eb.fn.count<number>('batch_id').distinct().as('batches'),
    ])
    .where('state', '=', sql.lit('leased' as const))
    .executeTakeFirstOrThrow()
}
