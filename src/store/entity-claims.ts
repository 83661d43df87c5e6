// Fairness within a project: claims chunks of entities without open chunks. The other claims go by deadline, so an
// entity that came last would wait for all others.
import { sql } from 'kysely'
import { isOfModels, type ModelChoice } from './chunk-claims.ts'
import type { ChunkRow } from './schema.ts'
import type { Reader, Writer } from './store.ts'

/** Selects waiting entities; '' stands for batches without an entity. */
export interface EntityClaim {
  project_id: string
  /** The entity that was served last; null to begin with the first. */
  after: string | null
  /** Entities with open chunks. */
  busy: readonly string[]
  /** At most so many. */
  count: number
}

/** The next entities in round-robin order. Steps through the index, independently of how much work each has. */
export async function waitingEntities(db: Reader, turn: EntityClaim): Promise<string[]> {
  const { project_id, after, busy, count } = turn
  const open: string[] = []
  let wrapped = after === null
  let last = after
  while (open.length < count) {
    const next = await db
      .selectFrom('chunks')
      .select('entity')
      .where('state', '=', sql.lit('ready' as const))
      .where('project_id', '=', project_id)
      .where('entity', last === null ? '>=' : '>', last ?? '')
      .orderBy('entity')
      .limit(1)
      .executeTakeFirst()
    if (next && !(wrapped && after !== null && next.entity > after)) {
      last = next.entity
      if (!busy.includes(last)) open.push(last)
    } else if (wrapped) break
    else {
      wrapped = true
      last = null
    }
  }
  return open
}

/** Leases one chunk of each of these entities, each its earliest deadline; fewer if other workers claimed them first. */
export async function claimOfEntities(
  tx: Writer,
  order: { worker_id: string; project_id: string; entities: readonly string[]; models: ModelChoice },
): Promise<ChunkRow[]> {
  const claims: ChunkRow[] = []
  for (const entity of order.entities) {
    const chosen = await tx
      .selectFrom('chunks')
      .select(['batch_id', 'idx'])
      .where('state', '=', sql.lit('ready'))
      .where('project_id', '=', order.project_id)
      .where('entity', '=', entity)
      .where((eb) => isOfModels(eb, order.models))
      .orderBy('deadline')
      .orderBy('batch_id')
      .orderBy('idx')
      .limit(1)
      .forUpdate()
      .skipLocked()
      .executeTakeFirst()
    if (!chosen) continue
    const claim = await tx
      .updateTable('chunks')
      .set((eb) => ({ state: 'leased', worker_id: order.worker_id, epoch: eb('epoch', '+', 1) }))
      .where('batch_id', '=', chosen.batch_id)
      .where('idx', '=', chosen.idx)
      .where('state', '=', sql.lit('ready'))
      .returningAll()
      .executeTakeFirst()
    if (claim) claims.push(claim)
  }
  return claims
}
