// The ledger: limits, settled usage, reservations and the projected spend of open batches. A line without an entity has
// an empty text as its entity, so that the entity can be part of a primary key.
import type { Kysely } from 'kysely'
import { index, ofProject, primary, required } from './columns.ts'

export const limits = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema
      .createTable('limits')
      .addColumn('id', 'text', primary)
      .addColumn('project_id', 'text', ofProject)
      .addColumn('scope', 'text', required)
      .addColumn('subject', 'text', required)
      .addColumn('metric', 'text', required)
      .addColumn('amount', 'bigint', required)
      .addColumn('window', 'text', required)
      .addColumn('action', 'text', required)
      .addColumn('description', 'text')
      .addColumn('notify_at', 'text', required)
      .addColumn('created', 'bigint', required)
      .execute()
    await index(db, 'limits_matched', 'limits', 'project_id, subject, scope')
    await index(db, 'limits_listed', 'limits', 'project_id, id')

    await db.schema
      .createTable('limit_versions')
      .addColumn('project_id', 'text', primary)
      .addColumn('version', 'bigint', required)
      .execute()

    await db.schema
      .createTable('usage_days')
      .addColumn('project_id', 'text', required)
      .addColumn('entity', 'text', required)
      .addColumn('day', 'bigint', required)
      .addColumn('model', 'text', required)
      .addColumn('entity_type', 'text', required)
      .addColumn('succeeded', 'bigint', required)
      .addColumn('failed', 'bigint', required)
      .addColumn('prompt_tokens', 'bigint', required)
      .addColumn('completion_tokens', 'bigint', required)
      .addColumn('total_tokens', 'bigint', required)
      .addColumn('cost_nanos', 'bigint', required)
      .addPrimaryKeyConstraint('usage_days_pk', ['project_id', 'entity', 'day', 'model'])
      .execute()

    await db.schema
      .createTable('project_days')
      .addColumn('project_id', 'text', required)
      .addColumn('day', 'bigint', required)
      .addColumn('cost_nanos', 'bigint', required)
      .addColumn('tokens', 'bigint', required)
      .addPrimaryKeyConstraint('project_days_pk', ['project_id', 'day'])
      .execute()

    await db.schema
      .createTable('ledger_entries')
      .addColumn('id', 'text', primary)
      .addColumn('project_id', 'text', required)
      .addColumn('batch_id', 'text', required)
      .addColumn('idx', 'bigint', required)
      .addColumn('entity', 'text', required)
      .addColumn('day', 'bigint', required)
      .addColumn('kind', 'text', required)
      .addColumn('lines', 'bigint', required)
      .addColumn('tokens', 'bigint', required)
      .addColumn('cost_nanos', 'bigint', required)
      .addColumn('created', 'bigint', required)
      .execute()
    await index(db, 'ledger_entries_of_batch', 'ledger_entries', 'project_id, batch_id, idx')

    await db.schema
      .createTable('reservations')
      .addColumn('batch_id', 'text', required)
      .addColumn('idx', 'bigint', required)
      .addColumn('entity', 'text', required)
      .addColumn('project_id', 'text', required)
      .addColumn('cost_nanos', 'bigint', required)
      .addColumn('tokens', 'bigint', required)
      .addPrimaryKeyConstraint('reservations_pk', ['batch_id', 'idx', 'entity'])
      .execute()
    await index(db, 'reservations_of_entity', 'reservations', 'project_id, entity')

    await db.schema
      .createTable('batch_projected_spend')
      .addColumn('batch_id', 'text', required)
      .addColumn('entity', 'text', required)
      .addColumn('project_id', 'text', required)
      .addColumn('cost_nanos', 'bigint', required)
      .addColumn('tokens', 'bigint', required)
      .addPrimaryKeyConstraint('batch_projected_spend_pk', ['batch_id', 'entity'])
      .execute()
    await index(db, 'batch_projected_spend_of_entity', 'batch_projected_spend', 'project_id, entity')

    await db.schema
      .createTable('limit_crossings')
      .addColumn('limit_id', 'text', required)
      .addColumn('entity', 'text', required)
      .addColumn('window_start', 'bigint', required)
      .addColumn('threshold', 'double precision', required)
      .addColumn('created', 'bigint', required)
      .addPrimaryKeyConstraint('limit_crossings_pk', ['limit_id', 'entity', 'window_start', 'threshold'])
      .execute()

    await db.schema
      .createTable('prompt_statistics')
      .addColumn('model', 'text', (c) => c.primaryKey())
      .addColumn('bytes', 'bigint', required)
      .addColumn('tokens', 'bigint', required)
      .addColumn('long_bytes', 'bigint', required)
      .addColumn('long_tokens', 'bigint', required)
      .execute()
  },
}
