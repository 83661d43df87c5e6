// What was answered under an Idempotency-Key. A row is made and completed in the transaction that does the
// work, so others see it only once the work is done, and a crash leaves nothing that would block a retry.
import type { IdempotencyRow } from './schema.ts'
import type { Reader, Writer } from './store.ts'

type RowKey = Pick<IdempotencyRow, 'project_id' | 'route' | 'key'>

/** The row of this key on any of `routes`, unless it has expired. */
export async function readIdempotency(
  db: Reader,
  { project_id, key }: Pick<RowKey, 'project_id' | 'key'>,
  routes: readonly string[],
  now: number,
): Promise<IdempotencyRow | undefined> {
  return await db
    .selectFrom('idempotency_keys')
    .selectAll()
    .where('project_id', '=', project_id)
    .where('route', 'in', routes)
    .where('key', '=', key)
    .where('expires', '>', now)
    .limit(1)
    .executeTakeFirst()
}

/**
 * Takes the key for this transaction. False when another one has taken it: where databases let two
 * transactions run at once, this waits until the other has ended.
 */
export async function reserveIdempotencyKey(
  tx: Writer,
  row: Omit<IdempotencyRow, 'state' | 'status' | 'response'>,
): Promise<boolean> {
  await tx
    .deleteFrom('idempotency_keys')
    .where('project_id', '=', row.project_id)
    .where('route', '=', row.route)
    .where('key', '=', row.key)
    .where('expires', '<=', row.created)
    .execute()
  const result = await tx
    .insertInto('idempotency_keys')
    .values({ ...row, state: 'in_progress', status: null, response: null })
    .onConflict((oc) => oc.columns(['project_id', 'route', 'key']).doNothing())
    .executeTakeFirst()
  return (result.numInsertedOrUpdatedRows ?? 0n) > 0n
}

/** Frees the key for whoever reserves it next. */
export async function dropIdempotencyKey(tx: Writer, row: RowKey): Promise<void> {
  await tx
    .deleteFrom('idempotency_keys')
    .where('project_id', '=', row.project_id)
    .where('route', '=', row.route)
    .where('key', '=', row.key)
    .execute()
}

/** Stores the answer if the key belongs to this request; does not wait for a row of another request. */
export async function completeIdempotencyKey(
  tx: Writer,
  row: RowKey & Pick<IdempotencyRow, 'request_id'>,
  answer: { status: number; response: string },
): Promise<void> {
  await tx
    .updateTable('idempotency_keys')
    .set({ ...answer, state: 'done' })
    .where('project_id', '=', row.project_id)
    .where('route', '=', row.route)
    .where('key', '=', row.key)
    .where('request_id', '=', row.request_id)
    .execute()
}

/** Deletes keys that have expired by `now`, at most `limit` of them; returns how many. */
export async function forgetIdempotencyKeys(tx: Writer, now: number, limit: number): Promise<number> {
  const expired = tx
    .selectFrom('idempotency_keys')
    .select(['project_id', 'route', 'key'])
    .where('expires', '<=', now)
    .limit(limit)
  const result = await tx
    .deleteFrom('idempotency_keys')
    .where((eb) =>
      eb(eb.refTuple('project_id', 'route', 'key'), 'in', expired.$asTuple('project_id', 'route', 'key')),
    )
    .executeTakeFirst()
  return Number(result.numDeletedRows)
}
