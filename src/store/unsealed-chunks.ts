// Summaries of the unsealed chunks of unfinished batches. A list shows a hundred batches, and each may have ten thousand
// chunks: of each batch only its leased chunks, which are as few as workers have slots, and the first of the others are
// looked at.
import { sql } from 'kysely'
import type { ChunkState } from './schema.ts'
import type { Reader } from './store.ts'

const CHUNKS_LOOKED_AT_MAX = 32
/** The terms of one statement. */
const BATCHES_AT_ONCE = 100

/** Unsealed chunks of a batch in the same state. */
export interface ChunkGroup {
  batch_id: string
  state: ChunkState
  parked_reason: string | null
  model: string | null
}

/** The groups of the first unsealed chunks of each batch. */
export async function groupUnsealed(db: Reader, batch_ids: readonly string[]): Promise<ChunkGroup[]> {
  const groups = new Map<string, ChunkGroup>()
  for (let at = 0; at < batch_ids.length; at += BATCHES_AT_ONCE) {
    const [first, ...others] = batch_ids
      .slice(at, at + BATCHES_AT_ONCE)
      .map((id) => db.selectFrom(firstUnsealed(db, id).as('first')).selectAll())
    const all = others.reduce((query, other) => query?.unionAll(other), first)
    for (const row of (await all?.execute()) ?? []) groups.set(JSON.stringify(Object.values(row)), row)
  }
  return [...groups.values()]
}

function firstUnsealed(db: Reader, batch_id: string) {
  return db
    .selectFrom('chunks')
    .select(['batch_id', 'state', 'parked_reason', 'model'])
    .where('batch_id', '=', batch_id)
    .where('state', '!=', sql.lit('sealed' as const))
    .orderBy('idx')
    .limit(CHUNKS_LOOKED_AT_MAX)
}

/** The leased chunks of all projects, by batch and model. */
export async function countLeased(db: Reader): Promise<(ChunkGroup & { chunks: number })[]> {
  return await db
    .selectFrom('chunks')
    .select((eb) => ['batch_id', 'state', 'parked_reason', 'model', eb.fn.countAll<number>().as('chunks')])
    .where('state', '=', sql.lit('leased' as const))
    .groupBy(['batch_id', 'state', 'parked_reason', 'model'])
    .execute()
}
