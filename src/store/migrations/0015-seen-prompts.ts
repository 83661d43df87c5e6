// How many bytes of prompt the tokens of each model had, as its servers reported: what projections are made by.
import type { Kysely } from 'kysely'

export const seenPrompts = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema
      .createTable('prompt_statistics')
      .addColumn('model', 'text', (column) => column.primaryKey())
      .addColumn('bytes', 'bigint', (column) => column.notNull())
      .addColumn('tokens', 'bigint', (column) => column.notNull())
      .addColumn('long_bytes', 'bigint', (column) => column.notNull())
      .addColumn('long_tokens', 'bigint', (column) => column.notNull())
      .execute()
  },
}
