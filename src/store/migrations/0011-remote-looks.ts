// Of batches at batch APIs: how often each was to be created, and an index to find one by its ID there.
import type { Kysely } from 'kysely'
import { counter, index } from './columns.ts'

export const remoteLooks = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema.alterTable('remote_batches').addColumn('creations', 'integer', counter).execute()
    await index(db, 'remote_batches_open', 'remote_batches', 'remote_id', "state = 'open'")
  },
}
