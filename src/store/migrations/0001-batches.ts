// Projects, files, batches and their chunks, and the workers that run them. Partial indexes keep what is claimed often
// small, however many chunks are sealed.
import type { Kysely } from 'kysely'
import { counter, index, ofProject, primary, required } from './columns.ts'

const OPEN = `status IN ('validating', 'queued', 'in_progress', 'cancelling')`

export const batches = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema
      .createTable('projects')
      .addColumn('id', 'text', primary)
      .addColumn('name', 'text', (c) => c.notNull().unique())
      .addColumn('plan', 'text', required)
      .addColumn('created', 'bigint', required)
      .execute()

    await db.schema
      .createTable('api_keys')
      .addColumn('id', 'text', primary)
      .addColumn('project_id', 'text', ofProject)
      .addColumn('name', 'text')
      .addColumn('secret_sha256', 'text', required)
      .addColumn('scopes', 'text', required)
      .addColumn('created', 'bigint', required)
      .addColumn('revoked_at', 'bigint')
      .execute()

    await db.schema
      .createTable('files')
      .addColumn('id', 'text', primary)
      .addColumn('project_id', 'text', ofProject)
      .addColumn('purpose', 'text', required)
      .addColumn('filename', 'text', required)
      .addColumn('bytes', 'bigint', required)
      .addColumn('line_count', 'bigint', required)
      .addColumn('status', 'text', required)
      .addColumn('status_details', 'text')
      .addColumn('errors', 'text')
      .addColumn('created', 'bigint', required)
      .addColumn('expires_at', 'bigint', required)
      .addColumn('deleted_at', 'bigint')
      .addColumn('content_blob', 'text')
      .addColumn('index_blob', 'text')
      .addColumn('batch_id', 'text')
      .addColumn('part', 'text')
      .execute()
    await index(db, 'files_listed', 'files', 'project_id, id', 'deleted_at IS NULL')
    await index(db, 'files_expiring', 'files', 'expires_at', 'deleted_at IS NULL')
    await index(db, 'files_stored', 'files', 'project_id, bytes', 'deleted_at IS NULL')

    await db.schema
      .createTable('batches')
      .addColumn('id', 'text', primary)
      .addColumn('project_id', 'text', ofProject)
      .addColumn('key_id', 'text', required)
      .addColumn('status', 'text', required)
      .addColumn('endpoint', 'text', required)
      .addColumn('input_file_id', 'text', (c) => c.notNull().references('files.id'))
      .addColumn('output_file_id', 'text')
      .addColumn('error_file_id', 'text')
      .addColumn('completion_window', 'text', required)
      .addColumn('metadata', 'text')
      .addColumn('header_entity', 'text')
      .addColumn('language', 'text')
      .addColumn('total', 'bigint', required)
      .addColumn('completed', 'bigint', counter)
      .addColumn('failed', 'bigint', counter)
      .addColumn('cost_nanos', 'bigint', counter)
      .addColumn('expired_lines', 'bigint', counter)
      .addColumn('chunk_count', 'bigint', counter)
      .addColumn('chunks_sealed', 'bigint', counter)
      .addColumn('output_bytes', 'bigint', counter)
      .addColumn('output_lines', 'bigint', counter)
      .addColumn('error_bytes', 'bigint', counter)
      .addColumn('error_lines', 'bigint', counter)
      .addColumn('input_deleted_at', 'bigint')
      .addColumn('created', 'bigint', required)
      .addColumn('in_progress_at', 'bigint')
      .addColumn('completed_at', 'bigint')
      .addColumn('failed_at', 'bigint')
      .addColumn('expired_at', 'bigint')
      .addColumn('cancelling_at', 'bigint')
      .addColumn('cancelled_at', 'bigint')
      .addColumn('expires_at', 'bigint', required)
      .addColumn('rate_sampled_at', 'bigint')
      .addColumn('rate_lines', 'bigint', counter)
      .addColumn('lines_per_s', 'double precision')
      .addColumn('output_expires_after_ms', 'bigint')
      .addColumn('projected_nanos', 'bigint', counter)
      .addColumn('projected_tokens', 'bigint', counter)
      .execute()
    await index(db, 'batches_listed', 'batches', 'project_id, id')
    await index(db, 'batches_listed_by_status', 'batches', 'project_id, status, id')
    await index(db, 'batches_open', 'batches', 'expires_at', OPEN)
    await index(db, 'batches_by_input', 'batches', 'input_file_id')
    await index(db, 'batches_open_of_project', 'batches', 'project_id', OPEN)
    await index(db, 'batches_cancelling', 'batches', 'id', `status = 'cancelling'`)
    await index(db, 'batches_input_deleted', 'batches', 'status, id', 'input_deleted_at IS NOT NULL')

    await db.schema
      .createTable('chunks')
      .addColumn('batch_id', 'text', (c) => c.notNull().references('batches.id'))
      .addColumn('idx', 'bigint', required)
      .addColumn('project_id', 'text', required)
      .addColumn('state', 'text', required)
      .addColumn('epoch', 'bigint', counter)
      .addColumn('worker_id', 'text')
      .addColumn('run_at', 'bigint', counter)
      .addColumn('parked_reason', 'text')
      .addColumn('deadline', 'bigint', required)
      .addColumn('first_line', 'bigint', required)
      .addColumn('line_count', 'bigint', required)
      .addColumn('byte_start', 'bigint', required)
      .addColumn('byte_end', 'bigint', required)
      .addColumn('completed', 'bigint', counter)
      .addColumn('failed', 'bigint', counter)
      .addColumn('cost_nanos', 'bigint', counter)
      .addColumn('output_blob', 'text')
      .addColumn('output_bytes', 'bigint', counter)
      .addColumn('error_blob', 'text')
      .addColumn('error_bytes', 'bigint', counter)
      .addColumn('audit_blob', 'text')
      .addColumn('model', 'text')
      .addColumn('entity', 'text', (c) => c.notNull().defaultTo(''))
      .addColumn('commit_seq', 'bigint', counter)
      .addColumn('reservation_seq', 'bigint', counter)
      .addColumn('record_error', 'text')
      .addColumn('line_tries', 'text')
      .addPrimaryKeyConstraint('chunks_pk', ['batch_id', 'idx'])
      .execute()
    await index(db, 'chunks_ready', 'chunks', 'project_id, deadline, batch_id, idx', `state = 'ready'`)
    await index(db, 'chunks_urgent', 'chunks', 'deadline, batch_id, idx', `state = 'ready'`)
    await index(db, 'chunks_leased', 'chunks', 'worker_id', `state = 'leased'`)
    await index(db, 'chunks_parked', 'chunks', 'run_at', `state = 'parked'`)
    await index(db, 'chunks_unsealed', 'chunks', 'batch_id, idx', `state <> 'sealed'`)
    await index(
      db,
      'chunks_of_entity',
      'chunks',
      'project_id, entity, deadline, batch_id, idx',
      `state = 'ready'`,
    )

    await db.schema
      .createTable('journal_parts')
      .addColumn('batch_id', 'text', required)
      .addColumn('idx', 'bigint', required)
      .addColumn('journal_blob', 'text', required)
      .addColumn('byte_start', 'bigint', required)
      .addColumn('byte_end', 'bigint', required)
      .addColumn('sums', 'text')
      .addPrimaryKeyConstraint('journal_parts_pk', ['batch_id', 'idx', 'journal_blob'])
      .execute()
    await index(db, 'journal_parts_by_blob', 'journal_parts', 'journal_blob')

    await db.schema
      .createTable('tasks')
      .addColumn('id', 'text', primary)
      .addColumn('kind', 'text', required)
      .addColumn('subject', 'text', required)
      .addColumn('project_id', 'text', required)
      .addColumn('state', 'text', required)
      .addColumn('epoch', 'bigint', counter)
      .addColumn('worker_id', 'text')
      .addColumn('run_at', 'bigint', counter)
      .addColumn('attempts', 'bigint', counter)
      .addColumn('last_error', 'text')
      .addColumn('created', 'bigint', required)
      .addColumn('large', 'integer', counter)
      .execute()
    await index(db, 'tasks_ready', 'tasks', 'run_at, id', `state = 'ready'`)
    await index(db, 'tasks_leased', 'tasks', 'worker_id', `state = 'leased'`)
    await index(db, 'tasks_by_project', 'tasks', 'kind, large, project_id, run_at, id', `state = 'ready'`)
    await index(db, 'tasks_by_subject', 'tasks', 'subject')

    await db.schema
      .createTable('workers')
      .addColumn('id', 'text', primary)
      .addColumn('lease_until', 'bigint', required)
      .addColumn('started', 'bigint', required)
      .addColumn('lease_ms', 'bigint')
      .addColumn('role', 'text', (c) => c.notNull().defaultTo('worker'))
      .execute()

    await db.schema
      .createTable('lane_reports')
      .addColumn('worker_id', 'text', required)
      .addColumn('model', 'text', required)
      .addColumn('state', 'text', required)
      .addColumn('since', 'bigint', required)
      .addColumn('details', 'text')
      .addPrimaryKeyConstraint('lane_reports_pk', ['worker_id', 'model'])
      .execute()

    await db.schema
      .createTable('blobs')
      .addColumn('key', 'text', primary)
      .addColumn('project_id', 'text', required)
      .addColumn('wrapped_key', 'text', required)
      .addColumn('bytes', 'bigint', required)
      .addColumn('created', 'bigint', required)
      .addColumn('deletion_pending_since', 'bigint')
      .execute()
    await index(
      db,
      'blobs_pending_deletion',
      'blobs',
      'deletion_pending_since',
      'deletion_pending_since IS NOT NULL',
    )
  },
}
