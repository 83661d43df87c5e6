// Batches at batch APIs that lines of a chunk were sent to.
import type { Kysely } from 'kysely'
import { counter, index, primary, required } from './columns.ts'

export const remoteBatches = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema.alterTable('chunks').addColumn('remote_batches', 'integer', counter).execute()
    await db.schema
      .createTable('remote_batches')
      .addColumn('id', 'text', primary)
      .addColumn('batch_id', 'text', (c) => c.notNull().references('batches.id'))
      .addColumn('idx', 'integer', required)
      .addColumn('project_id', 'text', required)
      .addColumn('model', 'text', required)
      .addColumn('upstream', 'text', required)
      .addColumn('state', 'text', required)
      .addColumn('lines', 'text', required)
      .addColumn('reserved', 'text')
      .addColumn('file_id', 'text')
      .addColumn('remote_id', 'text')
      .addColumn('output_file_id', 'text')
      .addColumn('error_file_id', 'text')
      .addColumn('status', 'text')
      .addColumn('detail', 'text')
      .addColumn('created', 'bigint', required)
      .addColumn('creating_at', 'bigint')
      .addColumn('cancelled_at', 'bigint')
      .addColumn('failing_since', 'bigint')
      .addColumn('poll_at', 'bigint')
      .addColumn('line_count', 'integer', required)
      .addColumn('answered', 'integer', counter)
      .addColumn('cost_nanos', 'bigint', counter)
      .addColumn('remote_report', 'text')
      .execute()
    await index(db, 'remote_batches_of_chunk', 'remote_batches', 'batch_id, idx')
    await index(db, 'remote_batches_due', 'remote_batches', 'poll_at', 'poll_at IS NOT NULL')
  },
}
