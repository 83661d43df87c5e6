// Everything in the database that the master key has wrapped, a page at a time.
import type { BlobRow, WebhookRow } from './schema.ts'
import type { Writer } from './store.ts'

export interface KeyPage {
  limit: number
  /** The key or ID that the page before ended with. */
  after: string
}

/** Of blobs that can be opened, ordered by key, locked until the transaction ends. */
export async function lockBlobKeys(tx: Writer, { limit, after }: KeyPage): Promise<BlobRow[]> {
  return await tx
    .selectFrom('blobs')
    .selectAll()
    .where('deletion_pending_since', 'is', null)
    .where('key', '>', after)
    .orderBy('key')
    .limit(limit)
    .forUpdate()
    .execute()
}

/** In one statement, however many; the rows are locked. */
export async function replaceBlobKeys(tx: Writer, rows: readonly BlobRow[]): Promise<void> {
  if (rows.length === 0) return
  await tx
    .insertInto('blobs')
    .values([...rows])
    .onConflict((conflict) =>
      conflict.column('key').doUpdateSet((eb) => ({ wrapped_key: eb.ref('excluded.wrapped_key') })),
    )
    .execute()
}

export type WrappedSecrets = Pick<WebhookRow, 'id' | 'project_id' | 'wrapped_secret' | 'previous_secret'>

/** Of webhooks, ordered by ID, locked until the transaction ends. */
export async function lockSecrets(tx: Writer, { limit, after }: KeyPage): Promise<WrappedSecrets[]> {
  return await tx
    .selectFrom('webhooks')
    .select(['id', 'project_id', 'wrapped_secret', 'previous_secret'])
    .where('id', '>', after)
    .orderBy('id')
    .limit(limit)
    .forUpdate()
    .execute()
}

export async function replaceSecrets(tx: Writer, row: WrappedSecrets): Promise<void> {
  const { wrapped_secret, previous_secret } = row
  await tx.updateTable('webhooks').set({ wrapped_secret, previous_secret }).where('id', '=', row.id).execute()
}
