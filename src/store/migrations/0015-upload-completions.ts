// Which call completes an upload, and how the last one failed.
import type { Kysely } from 'kysely'
import { counter } from './columns.ts'

export const uploadCompletions = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema.alterTable('uploads').addColumn('completion_attempt', 'bigint', counter).execute()
    await db.schema.alterTable('uploads').addColumn('completing_until', 'bigint').execute()
    for (const column of ['completion_order', 'completion_failure'])
      await db.schema.alterTable('uploads').addColumn(column, 'text').execute()
  },
}
