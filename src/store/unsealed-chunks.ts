// What stands between unfinished batches and their end, told from their chunks.
import { sql } from 'kysely'
import type { ChunkState } from './schema.ts'
import type { Reader } from './store.ts'

/** Unsealed chunks of a batch that are alike. */
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

/** How much is being worked on, whoever it belongs to. */
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
