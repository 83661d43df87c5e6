// How fast a batch moves, which model a chunk needs, and which lanes of which worker are in trouble.
import type { Kysely } from 'kysely'

export const progress = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema.alterTable('batches').addColumn('rate_sampled_at', 'bigint').execute()
    await db.schema
      .alterTable('batches')
      .addColumn('rate_lines', 'bigint', (c) => c.notNull().defaultTo(0))
      .execute()
    await db.schema.alterTable('batches').addColumn('lines_per_s', 'double precision').execute()
    await db.schema.alterTable('chunks').addColumn('model', 'text').execute()
    await db.schema
      .createTable('lane_reports')
      .addColumn('worker_id', 'text', (c) => c.notNull())
      .addColumn('model', 'text', (c) => c.notNull())
      .addColumn('state', 'text', (c) => c.notNull())
      .addColumn('since', 'bigint', (c) => c.notNull())
      .addPrimaryKeyConstraint('lane_reports_pk', ['worker_id', 'model'])
      .execute()
  },
}
