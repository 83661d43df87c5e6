// Of batches at batch APIs: the day to which their lines are charged.
import type { Kysely } from 'kysely'

export const chargedDays = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema.alterTable('remote_batches').addColumn('day', 'bigint').execute()
  },
}
