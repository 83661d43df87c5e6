// Numbers the commits of each chunk, so that of two that build on the same state only one can take effect.
import type { Kysely } from 'kysely'

export const commitSequence = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema
      .alterTable('chunks')
      .addColumn('commit_seq', 'bigint', (column) => column.notNull().defaultTo(0))
      .execute()
  },
}
