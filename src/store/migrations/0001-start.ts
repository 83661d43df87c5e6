// The first schema. Partial indexes keep what is claimed often small, however many chunks lie sealed.
import { type Kysely, sql } from 'kysely'

export const start = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema
      .createTable('projects')
      .addColumn('id', 'text', (c) => c.primaryKey())
      .addColumn('name', 'text', (c) => c.notNull().unique())
      .addColumn('plan', 'text', (c) => c.notNull())
      .addColumn('created', 'bigint', (c) => c.notNull())
      .execute()

    await db.schema
      .createTable('api_keys')
      .addColumn('id', 'text', (c) => c.primaryKey())
      .addColumn('project_id', 'text', (c) => c.notNull().references('projects.id'))
      .addColumn('name', 'text')
      .addColumn('secret_sha256', 'text', (c) => c.notNull())
      .addColumn('scopes', 'text', (c) => c.notNull())
      .addColumn('created', 'bigint', (c) => c.notNull())
      .addColumn('revoked_at', 'bigint')
      .execute()

    await db.schema
      .createTable('files')
      .addColumn('id', 'text', (c) => c.primaryKey())
      .addColumn('project_id', 'text', (c) => c.notNull().references('projects.id'))
      .addColumn('purpose', 'text', (c) => c.notNull())
      .addColumn('filename', 'text', (c) => c.notNull())
      .addColumn('bytes', 'bigint', (c) => c.notNull())
      .addColumn('line_count', 'bigint', (c) => c.notNull())
      .addColumn('status', 'text', (c) => c.notNull())
      .addColumn('status_details', 'text')
      .addColumn('errors', 'text')
      .addColumn('created', 'bigint', (c) => c.notNull())
      .addColumn('expires_at', 'bigint', (c) => c.notNull())
      .addColumn('deleted_at', 'bigint')
      .addColumn('content_blob', 'text')
      .addColumn('index_blob', 'text')
      .addColumn('batch_id', 'text')
      .addColumn('part', 'text')
      .execute()
    await index(db, 'files_listed', 'files', 'project_id, id', 'deleted_at IS NULL')
    await index(db, 'files_expiring', 'files', 'expires_at', 'deleted_at IS NULL')

    await db.schema
      .createTable('batches')
      .addColumn('id', 'text', (c) => c.primaryKey())
      .addColumn('project_id', 'text', (c) => c.notNull().references('projects.id'))
      .addColumn('key_id', 'text', (c) => c.notNull())
      .addColumn('status', 'text', (c) => c.notNull())
      .addColumn('endpoint', 'text', (c) => c.notNull())
      .addColumn('input_file_id', 'text', (c) => c.notNull().references('files.id'))
      .addColumn('output_file_id', 'text')
      .addColumn('error_file_id', 'text')
      .addColumn('completion_window', 'text', (c) => c.notNull())
      .addColumn('metadata', 'text')
      .addColumn('header_entity', 'text')
      .addColumn('language', 'text')
      .addColumn('total', 'bigint', (c) => c.notNull())
      .addColumn('completed', 'bigint', (c) => c.notNull().defaultTo(0))
      .addColumn('failed', 'bigint', (c) => c.notNull().defaultTo(0))
      .addColumn('cost_nanos', 'bigint', (c) => c.notNull().defaultTo(0))
      .addColumn('expired_lines', 'bigint', (c) => c.notNull().defaultTo(0))
      .addColumn('chunk_count', 'bigint', (c) => c.notNull().defaultTo(0))
      .addColumn('chunks_sealed', 'bigint', (c) => c.notNull().defaultTo(0))
      .addColumn('output_bytes', 'bigint', (c) => c.notNull().defaultTo(0))
      .addColumn('output_lines', 'bigint', (c) => c.notNull().defaultTo(0))
      .addColumn('error_bytes', 'bigint', (c) => c.notNull().defaultTo(0))
      .addColumn('error_lines', 'bigint', (c) => c.notNull().defaultTo(0))
      .addColumn('input_deleted_at', 'bigint')
      .addColumn('created', 'bigint', (c) => c.notNull())
      .addColumn('in_progress_at', 'bigint')
      .addColumn('completed_at', 'bigint')
      .addColumn('failed_at', 'bigint')
      .addColumn('expired_at', 'bigint')
      .addColumn('cancelling_at', 'bigint')
      .addColumn('cancelled_at', 'bigint')
      .addColumn('expires_at', 'bigint', (c) => c.notNull())
      .execute()
    await index(db, 'batches_listed', 'batches', 'project_id, id')
    await index(db, 'batches_listed_by_status', 'batches', 'project_id, status, id')
    await index(
      db,
      'batches_open',
      'batches',
      'expires_at',
      `status IN ('validating', 'queued', 'in_progress', 'cancelling')`,
    )
    await index(db, 'batches_by_input', 'batches', 'input_file_id')

    await db.schema
      .createTable('chunks')
      .addColumn('batch_id', 'text', (c) => c.notNull().references('batches.id'))
      .addColumn('idx', 'bigint', (c) => c.notNull())
      .addColumn('project_id', 'text', (c) => c.notNull())
      .addColumn('state', 'text', (c) => c.notNull())
      .addColumn('epoch', 'bigint', (c) => c.notNull().defaultTo(0))
      .addColumn('worker_id', 'text')
      .addColumn('run_at', 'bigint', (c) => c.notNull().defaultTo(0))
      .addColumn('parked_reason', 'text')
      .addColumn('deadline', 'bigint', (c) => c.notNull())
      .addColumn('first_line', 'bigint', (c) => c.notNull())
      .addColumn('line_count', 'bigint', (c) => c.notNull())
      .addColumn('byte_start', 'bigint', (c) => c.notNull())
      .addColumn('byte_end', 'bigint', (c) => c.notNull())
      .addColumn('completed', 'bigint', (c) => c.notNull().defaultTo(0))
      .addColumn('failed', 'bigint', (c) => c.notNull().defaultTo(0))
      .addColumn('cost_nanos', 'bigint', (c) => c.notNull().defaultTo(0))
      .addColumn('output_blob', 'text')
      .addColumn('output_bytes', 'bigint', (c) => c.notNull().defaultTo(0))
      .addColumn('error_blob', 'text')
      .addColumn('error_bytes', 'bigint', (c) => c.notNull().defaultTo(0))
      .addColumn('audit_blob', 'text')
      .addPrimaryKeyConstraint('chunks_pk', ['batch_id', 'idx'])
      .execute()
    await index(db, 'chunks_ready', 'chunks', 'project_id, deadline, batch_id, idx', `state = 'ready'`)
    await index(db, 'chunks_urgent', 'chunks', 'deadline, batch_id, idx', `state = 'ready'`)
    await index(db, 'chunks_leased', 'chunks', 'worker_id', `state = 'leased'`)
    await index(db, 'chunks_parked', 'chunks', 'run_at', `state = 'parked'`)

    await db.schema
      .createTable('journal_parts')
      .addColumn('batch_id', 'text', (c) => c.notNull())
      .addColumn('idx', 'bigint', (c) => c.notNull())
      .addColumn('journal_blob', 'text', (c) => c.notNull())
      .addColumn('byte_start', 'bigint', (c) => c.notNull())
      .addColumn('byte_end', 'bigint', (c) => c.notNull())
      .addPrimaryKeyConstraint('journal_parts_pk', ['batch_id', 'idx', 'journal_blob'])
      .execute()
    await index(db, 'journal_parts_by_blob', 'journal_parts', 'journal_blob')

    await db.schema
      .createTable('tasks')
      .addColumn('id', 'text', (c) => c.primaryKey())
      .addColumn('kind', 'text', (c) => c.notNull())
      .addColumn('subject', 'text', (c) => c.notNull())
      .addColumn('project_id', 'text', (c) => c.notNull())
      .addColumn('state', 'text', (c) => c.notNull())
      .addColumn('epoch', 'bigint', (c) => c.notNull().defaultTo(0))
      .addColumn('worker_id', 'text')
      .addColumn('run_at', 'bigint', (c) => c.notNull().defaultTo(0))
      .addColumn('attempts', 'bigint', (c) => c.notNull().defaultTo(0))
      .addColumn('last_error', 'text')
      .addColumn('created', 'bigint', (c) => c.notNull())
      .execute()
    await index(db, 'tasks_ready', 'tasks', 'run_at, id', `state = 'ready'`)
    await index(db, 'tasks_leased', 'tasks', 'worker_id', `state = 'leased'`)

    await db.schema
      .createTable('workers')
      .addColumn('id', 'text', (c) => c.primaryKey())
      .addColumn('lease_until', 'bigint', (c) => c.notNull())
      .addColumn('started', 'bigint', (c) => c.notNull())
      .execute()

    await db.schema
      .createTable('blobs')
      .addColumn('key', 'text', (c) => c.primaryKey())
      .addColumn('project_id', 'text', (c) => c.notNull())
      .addColumn('wrapped_key', 'text', (c) => c.notNull())
      .addColumn('bytes', 'bigint', (c) => c.notNull())
      .addColumn('created', 'bigint', (c) => c.notNull())
      .addColumn('deletion_pending_since', 'bigint')
      .execute()
    await index(
      db,
      'blobs_pending_deletion',
      'blobs',
      'deletion_pending_since',
      'deletion_pending_since IS NOT NULL',
    )

    await db.schema
      .createTable('http_requests')
      .addColumn('id', 'text', (c) => c.primaryKey())
      .addColumn('project_id', 'text', (c) => c.notNull())
      .addColumn('key_id', 'text', (c) => c.notNull())
      .addColumn('method', 'text', (c) => c.notNull())
      .addColumn('path', 'text', (c) => c.notNull())
      .addColumn('status', 'integer', (c) => c.notNull())
      .addColumn('created', 'bigint', (c) => c.notNull())
      .addColumn('duration_ms', 'integer', (c) => c.notNull())
      .addColumn('entity', 'text')
      .addColumn('response', 'text')
      .execute()

    await db.schema
      .createTable('idempotency_keys')
      .addColumn('project_id', 'text', (c) => c.notNull())
      .addColumn('route', 'text', (c) => c.notNull())
      .addColumn('key', 'text', (c) => c.notNull())
      .addColumn('fingerprint', 'text', (c) => c.notNull())
      .addColumn('state', 'text', (c) => c.notNull())
      .addColumn('request_id', 'text', (c) => c.notNull())
      .addColumn('status', 'integer')
      .addColumn('response', 'text')
      .addColumn('created', 'bigint', (c) => c.notNull())
      .addColumn('expires', 'bigint', (c) => c.notNull())
      .addPrimaryKeyConstraint('idempotency_keys_pk', ['project_id', 'route', 'key'])
      .execute()
    await index(db, 'idempotency_keys_expiring', 'idempotency_keys', 'expires')
  },
}

/** Kysely's builder binds no values into DDL, so a partial index is written out. */
async function index(
  db: Kysely<unknown>,
  name: string,
  table: string,
  columns: string,
  where?: string,
): Promise<void> {
  const condition = where === undefined ? sql`` : sql.raw(` WHERE ${where}`)
  await sql`CREATE INDEX ${sql.id(name)} ON ${sql.table(table)} (${sql.raw(columns)})${condition}`.execute(db)
}
