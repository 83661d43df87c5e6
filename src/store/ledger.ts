// Money: the entries of the ledger, which are never changed or deleted; reservations and projected spend of lines; and
// the sums that reconciliation compares.
import { type RawBuilder, sql } from 'kysely'
import { dayOf, HOUR_MS } from '../domain/days.ts'
import { recordOf } from '../domain/json-record.ts'
import type { Period } from '../domain/limit.ts'
import { AMOUNTS, type Spend } from '../domain/money.ts'
import { pagesOf } from './page.ts'
import { addRows, deleteRows, exactPlus, exactSum, selectRows, slices, updateRows } from './rows.ts'
import type { BatchRow, ChunkRow, ProjectedSpendRow, ReservationRow } from './schema.ts'
import type { Reader, Writer } from './store.ts'

// Reservations: the most that the lines of a leased chunk may cost, reserved before a line is sent. A reservation
// shrinks as lines settle and is released when the chunk is sealed, parked or requeued: none outlives its lease.

type ChunkKey = Pick<ChunkRow, 'batch_id' | 'idx'>

/** Adds to reservations, each key once in `rows`. A negative amount releases lines that will not be sent. */
export async function addReservations(tx: Writer, rows: readonly ReservationRow[]): Promise<void> {
  await addRows(tx, 'reservations', rows, AMOUNTS)
}

/** Releases the reserved amounts of finished lines. */
export async function reduceReservation(
  tx: Writer,
  row: Pick<ReservationRow, 'batch_id' | 'idx' | 'entity' | 'model'>,
  by: Spend,
): Promise<void> {
  const { batch_id, idx, entity, model } = row
  await updateRows(tx, 'reservations', { batch_id, idx, entity, model })
    .set(recordOf(AMOUNTS, (name) => exactPlus(name, -by[name])))
    .execute()
}

/** Deletes the reservations of a chunk that is sealed, parked or requeued. */
export async function deleteReservations(tx: Writer, chunk: ChunkKey): Promise<void> {
  await deleteRows(tx, 'reservations', { batch_id: chunk.batch_id, idx: chunk.idx }).execute()
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

// Projected spend: the most that the unfinished lines of open batches may cost, in a row per model, and in one more per
// named entity and model.

/** Inserts projections: of all entities together, and of named entities; each key once in `rows`. */
export async function insertProjectedSpend(tx: Writer, rows: readonly ProjectedSpendRow[]): Promise<void> {
  for (const some of slices(rows)) await insertProjections(some).execute(tx)
}

/** Inserts a batch's thousands of projections by plain SQL, since nodes of a query builder cost more than the rows. */
function insertProjections(rows: readonly ProjectedSpendRow[]) {
  const { batch_id, project_id, key_id } = rows[0]!
  // The numbers are literals between the bound names of two rows.
  const parts = rows.flatMap((row) => [', ', `, ${AMOUNTS.map((name) => row[name]).join(', ')}), (`])
  const last = parts.pop()?.replace(/, \($/, '') ?? ''
  const texts = ['(', ...parts, last]
  const values = sql(
    Object.assign(texts, { raw: texts }),
    ...rows.flatMap(({ entity, model }) => [entity, model]),
  )
  const sums = AMOUNTS.map((name) => `${name} = batch_projected_spend.${name} + excluded.${name}`)
  return sql`INSERT INTO batch_projected_spend (batch_id, project_id, key_id, entity, model, ${sql.raw(AMOUNTS.join())})
    SELECT CAST(${batch_id} AS text), CAST(${project_id} AS text), CAST(${key_id} AS text), column1, column2,
      ${sql.raw(AMOUNTS.map((_, i) => `column${i + 3}`).join())}
    FROM (VALUES ${values}) AS given WHERE true
    ON CONFLICT (batch_id, entity, model) DO UPDATE SET ${sql.raw(sums.join())}`
}

type ProjectedKey = Pick<ProjectedSpendRow, 'entity' | 'model'>

/**
 * Reduces a batch's projected spend by that of finished lines; the caller has locked the batch's row. The projection of
 * a batch is rounded otherwise than that of its lines, so a difference may be below zero.
 */
export async function reduceProjectedSpend(
  tx: Writer,
  batch_id: string,
  rows: readonly (ProjectedKey & Spend)[],
): Promise<void> {
  for (const { entity, model, ...by } of rows)
    await updateRows(tx, 'batch_projected_spend', { batch_id, entity, model })
      .set(recordOf(AMOUNTS, (name) => exactPlus(name, -by[name])))
      .execute()
}

export async function deleteProjectedSpend(tx: Writer, batch_id: string): Promise<void> {
  await deleteRows(tx, 'batch_projected_spend', { batch_id }).execute()
}

// Reserved, projected and settled amounts, summed for limits.

type AmountsTable = 'reservations' | 'batch_projected_spend' | 'usage_days' | 'project_days'
type Amounts<Key extends 'entity' | 'key_id'> = Spend & Record<Key | 'model', string>

/** The amounts of a table by entity and model, of settled ones those in a window; entities without any are absent. */
export async function amountsByEntity(
  db: Reader,
  table: Exclude<AmountsTable, 'project_days'>,
  project_id: string,
  entities: readonly string[],
  window?: Period,
): Promise<Amounts<'entity'>[]> {
  const sums: Amounts<'entity'>[] = []
  for (const some of slices(entities)) {
    const where = sql`project_id = ${project_id} AND entity IN (${sql.join(some)})`
    sums.push(...(await amountsBy(db, table, 'entity', where, window)))
  }
  return sums
}

/** The amounts of a table by API key of the project and model, over all entities. */
export async function amountsByKey(
  db: Reader,
  table: Exclude<AmountsTable, 'usage_days'>,
  project_id: string,
  window?: Period,
): Promise<Amounts<'key_id'>[]> {
  // The projections of named entities are included in those with an empty entity.
  const all = table === 'batch_projected_spend' ? sql` AND entity = ''` : sql``
  return await amountsBy(db, table, 'key_id', sql`project_id = ${project_id}${all}`, window)
}

async function amountsBy<Key extends 'entity' | 'key_id'>(
  db: Reader,
  table: AmountsTable,
  key: Key,
  where: RawBuilder<unknown>,
  window: Period | undefined,
): Promise<Amounts<Key>[]> {
  const tokens = table === 'usage_days' ? 'total_tokens' : 'tokens'
  const within = window ? sql` AND day >= ${dayOf(window.start)} AND day < ${dayOf(window.end)}` : sql``
  const { rows } = await sql<Amounts<Key>>`
    SELECT ${sql.ref(key)}, model, ${exactSum('cost_nanos')} AS cost_nanos, ${exactSum(tokens)} AS tokens,
      ${exactSum('requests')} AS requests
    FROM ${sql.table(table)} WHERE ${where}${within} GROUP BY ${sql.ref(key)}, model`.execute(db)
  return rows
}

/** The projected tokens of unfinished lines of the project, by model. */
export async function sumQueuedTokens(db: Reader, project_id: string): Promise<Map<string, number>> {
  const rows = await selectRows(db, 'batch_projected_spend', { project_id, entity: '' })
    .select(['model', exactSum('tokens').as('tokens')])
    .groupBy('model')
    .execute()
  return new Map(rows.map(({ model, tokens }) => [model, tokens]))
}

/** The demand for a model of open batches, by the hour of their deadlines. */
export interface HourOfDemand {
  model: string
  /** The first deadline in the hour (Unix ms). */
  deadline: number
  /** The time from which lines may be sent, Unix ms: now, or in a later hour. */
  begins: number
  lines: number
  tokens: number
}

/** The demand of batches whose lines may be sent before `until`, ordered by model, hour and start. */
export async function listDemand(db: Reader, now: number, until: number): Promise<HourOfDemand[]> {
  const hour = sql<number>`expires_at / ${sql.lit(HOUR_MS)}`
  const begins = sql<number>`CASE WHEN start_after > ${sql.lit(now)} THEN start_after ELSE ${sql.lit(now)} END`
  const beginsIn = sql<number>`CASE WHEN start_after > ${sql.lit(now)} THEN start_after / ${sql.lit(HOUR_MS)} ELSE 0 END`
  return await selectRows(db, 'batches', { status: ['validating', 'queued', 'in_progress'], paused_at: null })
    .innerJoin('batch_projected_spend', (join) =>
      join.onRef('batch_projected_spend.batch_id', '=', 'batches.id').on('entity', '=', ''),
    )
    .select(['model', sql<number>`min(expires_at)`.as('deadline'), sql<number>`max(${begins})`.as('begins')])
    .select([exactSum('requests').as('lines'), exactSum('tokens').as('tokens')])
    .where((eb) => eb.or([eb('start_after', 'is', null), eb('start_after', '<=', until)]))
    .where('requests', '>', 0)
    .groupBy(['model', hour, beginsIn])
    .orderBy('model')
    .orderBy(hour)
    .orderBy(beginsIn)
    .execute()
}

// Sums over the ledger and the usage tables, for reconciliation: each is computed from different rows.

/** Batches of one project or of all, ordered by ID, in pages of `limit`. */
export function batchPages(db: Reader, project_id: string | undefined, limit: number) {
  const batches = db.selectFrom('batches').selectAll().orderBy('id').limit(limit)
  const some = project_id === undefined ? batches : batches.where('project_id', '=', project_id)
  return pagesOf<BatchRow>(limit, (last) => (last ? some.where('id', '>', last.id) : some).execute())
}

export interface BookSum {
  lines: number
  tokens: number
  cost_nanos: number
}

/** The settled lines of a batch, or of one of its chunks, from the ledger. */
export async function settledLines(
  db: Reader,
  of: Pick<ChunkRow, 'project_id' | 'batch_id'> & Partial<Pick<ChunkRow, 'idx'>>,
): Promise<BookSum> {
  const sums = (['lines', 'tokens', 'cost_nanos'] as const).map((name) => exactSum(name).as(name))
  return await selectRows(db, 'ledger_entries', of).select(sums).executeTakeFirstOrThrow()
}

/**
 * The tables in which the same lines are counted: the ledger, usage reports, and the spend that limits on whole projects
 * read, which has neither lines nor entities.
 */
const BOOKS = {
  ledger_entries: { lines: 'lines', tokens: 'tokens' },
  usage_days: { lines: 'succeeded + failed', tokens: 'total_tokens' },
  project_days: { lines: '0', tokens: 'tokens' },
}

/** Sums by `day entity`; sums over all entities have an empty entity. */
export type BookSums = Map<string, BookSum>

/** The sums of a table by day, or by day and entity. */
export async function sumsByDay(
  db: Reader,
  table: keyof typeof BOOKS,
  project_id: string,
  isByEntity: boolean,
): Promise<BookSums> {
  const { lines, tokens } = BOOKS[table]
  const { rows } = await sql<BookSum & { entity: string; day: number }>`
    SELECT ${isByEntity ? sql.ref('entity') : sql`''`} AS entity, day, ${exactSum(sql.raw(lines))} AS lines,
      ${exactSum(tokens)} AS tokens, ${exactSum('cost_nanos')} AS cost_nanos
    FROM ${sql.table(table)} WHERE project_id = ${project_id} GROUP BY 1, 2`.execute(db)
  return new Map(rows.map(({ entity, day, ...sum }) => [`${day} ${entity}`, sum]))
}

/** Chunks of a project with a reservation but without a lease. */
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
    // Lines at a batch API have reservations under an index that no chunk has.
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
