// Projected spend: the most that the unfinished lines of open batches may cost. The batch's row has the total; lines
// with an entity are also summed in a row per entity.
import { sql } from 'kysely'
import type { Spend } from '../domain/spend.ts'
import { OPEN_STATUSES_SQL } from './batches.ts'
import { exactPlus, exactSum } from './exact-sum.ts'
import type { ProjectedSpendRow } from './schema.ts'
import type { Reader, Writer } from './store.ts'

/** Rows per INSERT, names per SELECT: bound parameters are limited. */
const ROWS_MAX = 500

/** `rows` are those of named entities; `total` is the batch's, other lines included. */
export async function insertProjectedSpend(
  tx: Writer,
  batch_id: string,
  total: Spend,
  rows: readonly ProjectedSpendRow[],
): Promise<void> {
  await tx
    .updateTable('batches')
    .set({ projected_nanos: total.cost_nanos, projected_tokens: total.tokens })
    .where('id', '=', batch_id)
    .execute()
  const project_id = rows[0]?.project_id
  if (project_id === undefined) return
  for (let at = 0; at < rows.length; at += ROWS_MAX)
    await insertRows(batch_id, project_id, rows.slice(at, at + ROWS_MAX)).execute(tx)
}

/** Written by hand: a batch has thousands of these, and a query builder's nodes cost more than the rows. */
function insertRows(batch_id: string, project_id: string, rows: readonly ProjectedSpendRow[]) {
  // Between two entities, which are bound, stand the amounts of the first; they are numbers of ours.
  const texts = rows.map(({ cost_nanos, tokens }) => `, ${cost_nanos}, ${tokens}), (`)
  const last = texts.pop()?.replace(/, \($/, '') ?? ''
  const parts = ['(', ...texts, last]
  const values = sql(Object.assign(parts, { raw: parts }), ...rows.map(({ entity }) => entity))
  return sql`INSERT INTO batch_projected_spend (batch_id, project_id, entity, cost_nanos, tokens)
    SELECT CAST(${batch_id} AS text), CAST(${project_id} AS text), column1, column2, column3 FROM (VALUES ${values}) AS given`
}

/**
 * Reduces a batch's projected spend by that of finished lines: `total`, and the part of each entity in `byEntity`.
 * The projection of a batch is rounded otherwise than that of its lines, so a difference may be below zero.
 */
export async function reduceProjectedSpend(
  tx: Writer,
  batch_id: string,
  total: Spend,
  byEntity: ReadonlyMap<string, Spend>,
): Promise<void> {
  await tx
    .updateTable('batches')
    .set({
      projected_nanos: exactPlus('projected_nanos', -total.cost_nanos),
      projected_tokens: exactPlus('projected_tokens', -total.tokens),
    })
    .where('id', '=', batch_id)
    .execute()
  for (const [entity, { cost_nanos, tokens }] of [...byEntity].sort(([a], [b]) => (a < b ? -1 : 1))) {
    if (cost_nanos === 0 && tokens === 0) continue
    await tx
      .updateTable('batch_projected_spend')
      .set({ cost_nanos: exactPlus('cost_nanos', -cost_nanos), tokens: exactPlus('tokens', -tokens) })
      .where('batch_id', '=', batch_id)
      .where('entity', '=', entity)
      .execute()
  }
}

/** For a batch that has ended. */
export async function deleteProjectedSpend(tx: Writer, batch_id: string): Promise<void> {
  await tx
    .updateTable('batches')
    .set({ projected_nanos: 0, projected_tokens: 0 })
    .where('id', '=', batch_id)
    .execute()
  await tx.deleteFrom('batch_projected_spend').where('batch_id', '=', batch_id).execute()
}

/** The projected spend of open batches for each of these entities; entities without any are left out. */
export async function projectedByEntities(
  db: Reader,
  project_id: string,
  entities: readonly string[],
): Promise<Map<string, Spend>> {
  const projected = new Map<string, Spend>()
  for (let at = 0; at < entities.length; at += ROWS_MAX) {
    const rows = await db
      .selectFrom('batch_projected_spend')
      .select(['entity', exactSum('cost_nanos').as('cost_nanos'), exactSum('tokens').as('tokens')])
      .where('project_id', '=', project_id)
      .where('entity', 'in', entities.slice(at, at + ROWS_MAX))
      .groupBy('entity')
      .execute()
    for (const { entity, cost_nanos, tokens } of rows) projected.set(entity, { cost_nanos, tokens })
  }
  return projected
}

/** The projected spend of open batches of the whole project. */
export async function projectedByProject(db: Reader, project_id: string): Promise<Spend> {
  return await db
    .selectFrom('batches')
    .select([exactSum('projected_nanos').as('cost_nanos'), exactSum('projected_tokens').as('tokens')])
    .where('project_id', '=', project_id)
    .where('status', 'in', OPEN_STATUSES_SQL)
    .executeTakeFirstOrThrow()
}
