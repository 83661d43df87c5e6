// How many calls each key has taken in its current window, for all API processes together.
import type { Kysely } from 'kysely'

export const rateWindows = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema
      .createTable('rate_windows')
      .addColumn('key_id', 'text', (c) => c.primaryKey())
      .addColumn('ends', 'bigint', (c) => c.notNull())
      .addColumn('taken', 'bigint', (c) => c.notNull())
      .execute()
  },
}
