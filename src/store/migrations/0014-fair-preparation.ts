// Preparation by turns: tasks are found by size and project. Batches that are ending are found at once, however many
// are open. A session says whether it is a worker's.
import { type Kysely, sql } from 'kysely'

export const fairPreparation = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema
      .alterTable('workers')
      .addColumn('role', 'text', (column) => column.notNull().defaultTo('worker'))
      .execute()
    await db.schema
      .alterTable('tasks')
      .addColumn('large', 'integer', (column) => column.notNull().defaultTo(0))
      .execute()
    await sql`CREATE INDEX tasks_by_turn ON tasks (kind, large, project_id, run_at, id)
      WHERE state = 'ready'`.execute(db)
    await sql`CREATE INDEX tasks_by_subject ON tasks (subject)`.execute(db)
    await sql`CREATE INDEX batches_cancelling ON batches (id) WHERE status = 'cancelling'`.execute(db)
    await sql`CREATE INDEX batches_input_deleted ON batches (status, id)
      WHERE input_deleted_at IS NOT NULL`.execute(db)
  },
}
