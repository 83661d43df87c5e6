// What a database says of itself: that it is being rekeyed or moved, and which master key it is under.
import type { Kysely } from 'kysely'

export const marks = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema
      .createTable('database_properties')
      .addColumn('name', 'text', (c) => c.primaryKey())
      .addColumn('value', 'text', (c) => c.notNull())
      .execute()
  },
}
