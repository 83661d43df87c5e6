// Paused batches and models, and batches that start later. Their ready chunks are parked until then; leased chunks are
// parked by their worker; chunks with lines at a batch API are not parked, because it may have answered them. A parked
// chunk of a batch that ends is closed like any other.
import { sql } from 'kysely'
import { wake } from './chunks.ts'
import { changesRow, deleteRows, insertOnce, lockRow, selectRows, updateRows } from './rows.ts'
import type { BatchRow, ChunkRow } from './schema.ts'
import type { Reader, Writer } from './store.ts'

type PausedModel = { project_id: string; model: string; paused_at: number }

/** Parks a batch's chunks that were just made ready, if it or its model is paused, or it starts later. */
export async function parkIfPaused(tx: Writer, batch_id: string, now: number): Promise<void> {
  const batch = await selectRows(tx, 'batches', { id: batch_id })
    .select(['project_id', 'paused_at', 'start_after', 'expires_at'])
    .executeTakeFirstOrThrow()
  const { project_id, paused_at, start_after, expires_at } = batch
  const ready = () => updateRows(tx, 'chunks', { batch_id, remote_batches: 0, state: 'ready' })
  if (paused_at !== null)
    await ready().set({ state: 'parked', parked_reason: 'paused', run_at: expires_at }).execute()
  if (start_after !== null && start_after > now)
    await ready().set({ state: 'parked', parked_reason: 'not_before', run_at: start_after }).execute()
  await parkOfPausedModels(tx, project_id, batch_id)
}

/** Pauses the batch, if it is not paused; returns its row afterwards (`paused_at` in Unix ms). */
export async function pauseBatch(tx: Writer, id: string, now: number): Promise<BatchRow> {
  const batch = await updateRows(tx, 'batches', { id })
    .set((eb) => ({ paused_at: eb.fn.coalesce('paused_at', eb.val(now)) }))
    .returningAll()
    .executeTakeFirstOrThrow()
  await updateRows(tx, 'chunks', { batch_id: id, remote_batches: 0 })
    .set({ state: 'parked', parked_reason: 'paused', run_at: batch.expires_at })
    .where('state', 'in', [sql.lit('ready' as const), sql.lit('parked' as const)])
    .execute()
  return batch
}

/** Resumes the batch; its rate is sampled again, since no line has ended meanwhile. */
export async function resumeBatch(tx: Writer, id: string, now: number): Promise<BatchRow> {
  const batch = await updateRows(tx, 'batches', { id })
    .set((eb) => ({
      paused_at: null,
      // PostgreSQL types the expression by the column; bare values would count as text.
      rate_sampled_at: sql<number>`CASE WHEN rate_sampled_at IS NULL THEN rate_sampled_at ELSE ${now} END`,
      rate_lines: eb('completed', '+', eb.ref('failed')),
    }))
    .returningAll()
    .executeTakeFirstOrThrow()
  await wakePaused(tx).where('batch_id', '=', id).execute()
  await parkIfPaused(tx, id, now)
  return batch
}

/** Pauses a model. False if the project had paused it already. */
export async function pauseModel(tx: Writer, paused: PausedModel): Promise<boolean> {
  const isNew = await insertOnce(tx, 'paused_models', paused)
  await parkOfPausedModels(tx, paused.project_id)
  return isNew
}

/** Resumes a model. False if the project had not paused it. */
export async function resumeModel(tx: Writer, project_id: string, model: string): Promise<boolean> {
  if (!(await changesRow(deleteRows(tx, 'paused_models', { project_id, model })))) return false
  // Chunks of several models wake too; the worker that claims one parks it again if another of its models is paused.
  await wakePaused(tx)
    .where('project_id', '=', project_id)
    .where((eb) => eb.or([eb('model', '=', model), eb('model', 'is', null)]))
    .where((eb) =>
      eb.not(
        eb.exists(
          eb
            .selectFrom('batches')
            .select('id')
            .whereRef('batches.id', '=', 'chunks.batch_id')
            .where('paused_at', 'is not', null),
        ),
      ),
    )
    .execute()
  return true
}

export async function listPausedModels(db: Reader, project_id?: string): Promise<PausedModel[]> {
  const query = db.selectFrom('paused_models').selectAll().orderBy('project_id').orderBy('model')
  return await (project_id === undefined ? query : query.where('project_id', '=', project_id)).execute()
}

/**
 * The end of the parking of a chunk whose unfinished lines, all of these models, were paused: `expires_at`, or now if its
 * batch or model was resumed meanwhile. Locks the rows that `resumeBatch` and `resumeModel` change, so that they see
 * the parked chunk, or this function sees their change.
 */
export async function pausedUntil(
  tx: Writer,
  { batch_id, project_id }: Pick<ChunkRow, 'batch_id' | 'project_id'>,
  models: readonly string[],
  expires_at: number,
): Promise<number> {
  const batch = await lockRow(tx, 'batches', { id: batch_id })
  const paused = await selectRows(tx, 'paused_models', { project_id, model: models })
    .select('model')
    .forUpdate()
    .execute()
  return batch?.paused_at != null || paused.length === models.length ? expires_at : 0
}

async function parkOfPausedModels(tx: Writer, project_id: string, batch_id?: string): Promise<void> {
  let update = updateRows(tx, 'chunks', { project_id, remote_batches: 0, state: 'ready' })
    .set((eb) => ({
      ...{ state: 'parked', parked_reason: 'paused' },
      run_at: eb
        .selectFrom('batches')
        .select('expires_at')
        .whereRef('batches.id', '=', 'chunks.batch_id')
        .$asScalar()
        .$notNull(),
    }))
    .where((eb) =>
      eb(
        'model',
        'in',
        eb
          .selectFrom('paused_models')
          .select('paused_models.model')
          .where('paused_models.project_id', '=', project_id),
      ),
    )
  if (batch_id !== undefined) update = update.where('batch_id', '=', batch_id)
  await update.execute()
}

/** Makes parked chunks ready that were paused. */
function wakePaused(tx: Writer) {
  // A chunk parked for a batch API may have paused lines too.
  return wake(tx).where('parked_reason', 'in', ['paused', 'remote_batch'])
}
