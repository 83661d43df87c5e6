// Whether identical requests of a batch are sent once.
import type { Kysely } from 'kysely'

export const dedupe = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema.alterTable('batches').addColumn('dedupe', 'text').execute()
  },
}
