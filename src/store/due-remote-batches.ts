// Decides when remote batches are to be polled.
import { selectRows, updateRows } from './rows.ts'
import type { RemoteBatchRow } from './schema.ts'
import type { ClaimSql, Reader, Writer } from './store.ts'

/**
 * Takes up to `limit` of an upstream's that are due, and says when each is due again: `nextIn`, in ms from now. No other
 * worker takes them before.
 */
export async function takeDueBatches(
  tx: Writer,
  { now }: ClaimSql,
  upstream: string,
  nextIn: (row: RemoteBatchRow) => number,
  limit: number,
): Promise<RemoteBatchRow[]> {
  const due = await selectRows(tx, 'remote_batches', { upstream })
    .selectAll()
    .where('poll_at', 'is not', null)
    .where('poll_at', '<=', now)
    .orderBy('poll_at')
    .limit(limit)
    .forUpdate()
    .skipLocked()
    .execute()
  for (const row of due) {
    const { poll_at } = await updateRows(tx, 'remote_batches', { id: row.id })
      .set((eb) => ({ poll_at: eb(now, '+', nextIn(row)) }))
      .returning('poll_at')
      .executeTakeFirstOrThrow()
    row.poll_at = poll_at
  }
  return due
}

/** What is open of a model and a project at a batch API. `first`: the oldest batch, as most end in that order. */
export interface OpenAtBatchApi {
  model: string
  upstream: string
  project_id: string
  first: string
  lines: number
}

export async function openAtBatchApis(db: Reader): Promise<OpenAtBatchApi[]> {
  const rows = await selectRows(db, 'remote_batches', { state: 'open' })
    .select(['model', 'upstream', 'project_id'])
    .select(({ fn }) => [fn.min('id').as('first'), fn.sum('line_count').as('lines')])
    .where('poll_at', 'is not', null)
    .groupBy(['model', 'upstream', 'project_id'])
    .execute()
  return rows.map((row) => ({ ...row, lines: Number(row.lines) }))
}

/** Has the batch that is the first one there, now that this one has ended, looked at now. */
export async function hastenNextBatch(
  tx: Writer,
  { model, upstream }: Pick<RemoteBatchRow, 'model' | 'upstream'>,
  now: number,
): Promise<void> {
  await tx
    .updateTable('remote_batches')
    .set({ poll_at: now })
    .where('poll_at', '>', now)
    .where('id', '=', (eb) =>
      eb
        .selectFrom('remote_batches')
        .select((inner) => inner.fn.min('id').as('id'))
        .where('state', '=', 'open')
        .where('poll_at', 'is not', null)
        .where('model', '=', model)
        .where('upstream', '=', upstream),
    )
    .execute()
}

/** The upstreams of which batches are due. */
export async function dueUpstreams(db: Reader, now: number): Promise<string[]> {
  const rows = await db
    .selectFrom('remote_batches')
    .select('upstream')
    .distinct()
    .where('poll_at', 'is not', null)
    .where('poll_at', '<=', now)
    .execute()
  return rows.map(({ upstream }) => upstream)
}

/** Has an open batch of one of these upstreams looked at now, by its ID there. False if there is none. */
export async function hastenRemoteBatch(
  tx: Writer,
  remote_id: string,
  upstreams: readonly string[],
  now: number,
): Promise<boolean> {
  const { numUpdatedRows } = await updateRows(tx, 'remote_batches', {
    remote_id,
    state: 'open',
    upstream: upstreams,
  })
    .set({ poll_at: now })
    .executeTakeFirstOrThrow()
  return numUpdatedRows > 0n
}

/** Has the batches of a batch that is ending looked at now: they are cancelled, or a worker records what they answered. */
export async function hastenRemoteBatches(tx: Writer, batch_id: string, now: number): Promise<void> {
  await updateRows(tx, 'remote_batches', { batch_id, state: 'open' }).set({ poll_at: now }).execute()
  await updateRows(tx, 'chunks', { batch_id, state: 'parked' })
    .set({ state: 'ready', parked_reason: null, model: null })
    .where('remote_batches', '>', 0)
    .execute()
}
