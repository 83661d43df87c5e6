// Reservations: the most that the lines of a leased chunk may cost, reserved before a line is sent. A reservation
// shrinks as lines settle and is released when the chunk is sealed, parked or requeued: none outlives its lease.
import { sql } from 'kysely'
import type { Spend } from '../domain/spend.ts'
import { exactPlus, exactPlusExcluded, exactSum } from './exact-sum.ts'
import type { ChunkRow, ReservationRow } from './schema.ts'
import type { Reader, Writer } from './store.ts'

/** Rows per INSERT, names per SELECT: bound parameters are limited. */
const ROWS_MAX = 500

type ChunkKey = Pick<ChunkRow, 'batch_id' | 'idx'>

/** Adds to reservations; each key occurs once in `rows`. A negative amount releases lines that will not be sent. */
export async function addReservations(tx: Writer, rows: readonly ReservationRow[]): Promise<void> {
  for (let at = 0; at < rows.length; at += ROWS_MAX)
    await tx
      .insertInto('reservations')
      .values(rows.slice(at, at + ROWS_MAX))
      .onConflict((oc) =>
        oc.columns(['batch_id', 'idx', 'entity']).doUpdateSet({
          cost_nanos: exactPlusExcluded('reservations', 'cost_nanos'),
          tokens: exactPlusExcluded('reservations', 'tokens'),
        }),
      )
      .execute()
}

/** Releases the reserved amounts of finished lines. */
export async function reduceReservation(
  tx: Writer,
  chunk: ChunkKey,
  entity: string,
  by: Spend,
): Promise<void> {
  await tx
    .updateTable('reservations')
    .set({ cost_nanos: exactPlus('cost_nanos', -by.cost_nanos), tokens: exactPlus('tokens', -by.tokens) })
    .where('batch_id', '=', chunk.batch_id)
    .where('idx', '=', chunk.idx)
    .where('entity', '=', entity)
    .execute()
}

/** For a chunk that is sealed, parked or requeued. */
export async function deleteReservations(tx: Writer, chunk: ChunkKey): Promise<void> {
  await tx
    .deleteFrom('reservations')
    .where('batch_id', '=', chunk.batch_id)
    .where('idx', '=', chunk.idx)
    .execute()
}

/** Releases the reservations of a worker's chunks; called before the chunks are requeued. */
export async function deleteReservationsOfWorker(tx: Writer, worker_id: string): Promise<void> {
  await sql`
    DELETE FROM reservations WHERE EXISTS (
      SELECT 1 FROM chunks
      WHERE chunks.batch_id = reservations.batch_id AND chunks.idx = reservations.idx
        AND chunks.worker_id = ${worker_id} AND chunks.state = 'leased'
    )`.execute(tx)
}

/** The amounts reserved for each entity; entities without reservations are left out. */
export async function reservedByEntities(
  db: Reader,
  project_id: string,
  entities: readonly string[],
): Promise<Map<string, Spend>> {
  const reserved = new Map<string, Spend>()
  for (let at = 0; at < entities.length; at += ROWS_MAX) {
    const rows = await db
      .selectFrom('reservations')
      .select(['entity', exactSum('cost_nanos').as('cost_nanos'), exactSum('tokens').as('tokens')])
      .where('project_id', '=', project_id)
      .where('entity', 'in', entities.slice(at, at + ROWS_MAX))
      .groupBy('entity')
      .execute()
    for (const { entity, cost_nanos, tokens } of rows) reserved.set(entity, { cost_nanos, tokens })
  }
  return reserved
}

/** The amount reserved for the whole project. */
export async function reservedByProject(db: Reader, project_id: string): Promise<Spend> {
  return await db
    .selectFrom('reservations')
    .select([exactSum('cost_nanos').as('cost_nanos'), exactSum('tokens').as('tokens')])
    .where('project_id', '=', project_id)
    .executeTakeFirstOrThrow()
}
