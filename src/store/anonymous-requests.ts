// Rejected calls without a valid key; only the newest are kept.
import type { AnonymousRequestRow } from './schema.ts'
import type { Reader, Writer } from './store.ts'

/** Rows per INSERT: bound parameters are limited. */
const INSERT_ROWS_MAX = 500

export async function insertAnonymousRequests(
  tx: Writer,
  rows: readonly AnonymousRequestRow[],
): Promise<void> {
  for (let at = 0; at < rows.length; at += INSERT_ROWS_MAX)
    await tx
      .insertInto('anonymous_requests')
      .values(rows.slice(at, at + INSERT_ROWS_MAX))
      .execute()
}

export async function readAnonymousRequest(db: Reader, id: string): Promise<AnonymousRequestRow | undefined> {
  return await db.selectFrom('anonymous_requests').selectAll().where('id', '=', id).executeTakeFirst()
}

/** Forgets all but the newest `count`; IDs begin with their time. */
export async function keepNewestAnonymousRequests(tx: Writer, count: number): Promise<void> {
  await tx
    .deleteFrom('anonymous_requests')
    .where('id', '<=', (qb) =>
      qb.selectFrom('anonymous_requests').select('id').orderBy('id', 'desc').limit(1).offset(count),
    )
    .execute()
}
