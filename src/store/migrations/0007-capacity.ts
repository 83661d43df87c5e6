// Batches that start later or are paused, and models that a project has paused.
import type { Kysely } from 'kysely'
import { required } from './columns.ts'

export const capacity = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema.alterTable('batches').addColumn('start_after', 'bigint').execute()
    await db.schema.alterTable('batches').addColumn('paused_at', 'bigint').execute()
    await db.schema.alterTable('batches').addColumn('models', 'text').execute()
    await db.schema
      .createTable('paused_models')
      .addColumn('project_id', 'text', required)
      .addColumn('model', 'text', required)
      .addColumn('paused_at', 'bigint', required)
      .addPrimaryKeyConstraint('paused_models_pk', ['project_id', 'model'])
      .execute()
  },
}
