// For whom a chunk is, so that those who share a project can have their turns in it.
import { type Kysely, sql } from 'kysely'

export const entities = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema
      .alterTable('chunks')
      .addColumn('entity', 'text', (column) => column.notNull().defaultTo(''))
      .execute()
    await sql`CREATE INDEX chunks_of_entity ON chunks (project_id, entity, deadline, batch_id, idx)
      WHERE state = 'ready'`.execute(db)
  },
}
