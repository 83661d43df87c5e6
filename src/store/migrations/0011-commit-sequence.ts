// Numbers the commits of each chunk, so that of two that build on the same state only one can take effect, and
// notes of a chunk that its results cannot be recorded.
import type { Kysely } from 'kysely'

export const commitSequence = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema
      .alterTable('chunks')
      .addColumn('commit_seq', 'bigint', (column) => column.notNull().defaultTo(0))
      .execute()
    await db.schema.alterTable('chunks').addColumn('record_error', 'text').execute()
  },
}
