// How many tokens of a batch came from a server's cache, and how many a model thought with.
import type { Kysely } from 'kysely'
import { counter } from './columns.ts'

export const usageDetails = {
  async up(db: Kysely<unknown>): Promise<void> {
    for (const column of ['cached_tokens', 'reasoning_tokens'])
      await db.schema.alterTable('batches').addColumn(column, 'bigint', counter).execute()
  },
}
