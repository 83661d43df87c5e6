// The ledger: limits, what was settled, what is held and what open batches may still cost. An entity that is
// nobody is written as an empty text, so that it can be part of a key.
import { type Kysely, sql } from 'kysely'

export const ledger = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema
      .createTable('limits')
      .addColumn('id', 'text', (c) => c.primaryKey())
      .addColumn('project_id', 'text', (c) => c.notNull().references('projects.id'))
      .addColumn('scope', 'text', (c) => c.notNull())
      .addColumn('subject', 'text', (c) => c.notNull())
      .addColumn('metric', 'text', (c) => c.notNull())
      .addColumn('amount', 'bigint', (c) => c.notNull())
      .addColumn('window', 'text', (c) => c.notNull())
      .addColumn('action', 'text', (c) => c.notNull())
      .addColumn('description', 'text')
      .addColumn('notify_at', 'text', (c) => c.notNull())
      .addColumn('created', 'bigint', (c) => c.notNull())
      .execute()
    await db.schema
      .createIndex('limits_matched')
      .on('limits')
      .columns(['project_id', 'subject', 'scope'])
      .execute()
    await db.schema.createIndex('limits_listed').on('limits').columns(['project_id', 'id']).execute()

    await db.schema
      .createTable('limit_versions')
      .addColumn('project_id', 'text', (c) => c.primaryKey())
      .addColumn('version', 'bigint', (c) => c.notNull())
      .execute()

    await db.schema
      .createTable('usage_days')
      .addColumn('project_id', 'text', (c) => c.notNull())
      .addColumn('entity', 'text', (c) => c.notNull())
      .addColumn('day', 'bigint', (c) => c.notNull())
      .addColumn('model', 'text', (c) => c.notNull())
      .addColumn('entity_type', 'text', (c) => c.notNull())
      .addColumn('succeeded', 'bigint', (c) => c.notNull())
      .addColumn('failed', 'bigint', (c) => c.notNull())
      .addColumn('prompt_tokens', 'bigint', (c) => c.notNull())
      .addColumn('completion_tokens', 'bigint', (c) => c.notNull())
      .addColumn('total_tokens', 'bigint', (c) => c.notNull())
      .addColumn('cost_nanos', 'bigint', (c) => c.notNull())
      .addPrimaryKeyConstraint('usage_days_pk', ['project_id', 'entity', 'day', 'model'])
      .execute()

    await db.schema
      .createTable('project_days')
      .addColumn('project_id', 'text', (c) => c.notNull())
      .addColumn('day', 'bigint', (c) => c.notNull())
      .addColumn('cost_nanos', 'bigint', (c) => c.notNull())
      .addColumn('tokens', 'bigint', (c) => c.notNull())
      .addPrimaryKeyConstraint('project_days_pk', ['project_id', 'day'])
      .execute()

    await db.schema
      .createTable('ledger_entries')
      .addColumn('id', 'text', (c) => c.primaryKey())
      .addColumn('project_id', 'text', (c) => c.notNull())
      .addColumn('batch_id', 'text', (c) => c.notNull())
      .addColumn('idx', 'bigint', (c) => c.notNull())
      .addColumn('entity', 'text', (c) => c.notNull())
      .addColumn('day', 'bigint', (c) => c.notNull())
      .addColumn('kind', 'text', (c) => c.notNull())
      .addColumn('lines', 'bigint', (c) => c.notNull())
      .addColumn('tokens', 'bigint', (c) => c.notNull())
      .addColumn('cost_nanos', 'bigint', (c) => c.notNull())
      .addColumn('created', 'bigint', (c) => c.notNull())
      .execute()
    await db.schema
      .createIndex('ledger_entries_of_batch')
      .on('ledger_entries')
      .columns(['project_id', 'batch_id', 'idx'])
      .execute()

    await db.schema
      .createTable('reservations')
      .addColumn('batch_id', 'text', (c) => c.notNull())
      .addColumn('idx', 'bigint', (c) => c.notNull())
      .addColumn('entity', 'text', (c) => c.notNull())
      .addColumn('project_id', 'text', (c) => c.notNull())
      .addColumn('cost_nanos', 'bigint', (c) => c.notNull())
      .addColumn('tokens', 'bigint', (c) => c.notNull())
      .addPrimaryKeyConstraint('reservations_pk', ['batch_id', 'idx', 'entity'])
      .execute()
    await db.schema
      .createIndex('reservations_of_entity')
      .on('reservations')
      .columns(['project_id', 'entity'])
      .execute()

    await db.schema
      .createTable('batch_projected_spend')
      .addColumn('batch_id', 'text', (c) => c.notNull())
      .addColumn('entity', 'text', (c) => c.notNull())
      .addColumn('project_id', 'text', (c) => c.notNull())
      .addColumn('cost_nanos', 'bigint', (c) => c.notNull())
      .addColumn('tokens', 'bigint', (c) => c.notNull())
      .addPrimaryKeyConstraint('batch_projected_spend_pk', ['batch_id', 'entity'])
      .execute()
    await db.schema
      .createIndex('batch_projected_spend_of_entity')
      .on('batch_projected_spend')
      .columns(['project_id', 'entity'])
      .execute()

    for (const column of ['projected_nanos', 'projected_tokens']) {
      await db.schema
        .alterTable('batches')
        .addColumn(column, 'bigint', (c) => c.notNull().defaultTo(0))
        .execute()
    }
    await sql`CREATE INDEX batches_open_of_project ON batches (project_id)
      WHERE status IN ('validating', 'queued', 'in_progress', 'cancelling')`.execute(db)

    await db.schema
      .createTable('limit_crossings')
      .addColumn('limit_id', 'text', (c) => c.notNull())
      .addColumn('entity', 'text', (c) => c.notNull())
      .addColumn('window_start', 'bigint', (c) => c.notNull())
      .addColumn('threshold', 'double precision', (c) => c.notNull())
      .addColumn('created', 'bigint', (c) => c.notNull())
      .addPrimaryKeyConstraint('limit_crossings_pk', ['limit_id', 'entity', 'window_start', 'threshold'])
      .execute()
  },
}
