// The tables and columns that version 0.2.0 added.
import type { Kysely } from 'kysely'
import { counter, index, ofProject, primary, required } from './columns.ts'

/** Whether identical requests of a batch are sent once. */
export const dedupe = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema.alterTable('batches').addColumn('dedupe', 'text').execute()
  },
}

/**
 * What clients of OpenAI's API ask for beside a batch itself: how a key wants its answers, usage and errors of batches,
 * and uploads in parts.
 */
export const openaiClients = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema.alterTable('api_keys').addColumn('compat', 'text').execute()

    // SQLite adds one column in a statement. Batches that are there already have no sums of tokens.
    for (const column of ['queued_at', 'prompt_tokens', 'completion_tokens', 'total_tokens'])
      await db.schema.alterTable('batches').addColumn(column, 'bigint').execute()
    await db.schema.alterTable('batches').addColumn('errors', 'text').execute()

    await db.schema
      .createTable('uploads')
      .addColumn('id', 'text', primary)
      .addColumn('project_id', 'text', ofProject)
      .addColumn('status', 'text', required)
      .addColumn('filename', 'text', required)
      .addColumn('mime_type', 'text', required)
      .addColumn('bytes', 'bigint', required)
      .addColumn('part_bytes', 'bigint', counter)
      .addColumn('file_expires_after_ms', 'bigint')
      .addColumn('file_id', 'text')
      .addColumn('created', 'bigint', required)
      .addColumn('expires_at', 'bigint', required)
      .execute()
    await index(db, 'uploads_listed', 'uploads', 'project_id, id')
    await index(db, 'uploads_expiring', 'uploads', 'expires_at', `status = 'pending'`)
    await index(db, 'uploads_pending', 'uploads', 'project_id', `status = 'pending'`)

    await db.schema
      .createTable('upload_parts')
      .addColumn('id', 'text', primary)
      .addColumn('upload_id', 'text', (c) => c.notNull().references('uploads.id'))
      .addColumn('bytes', 'bigint', required)
      .addColumn('sha256', 'text', required)
      .addColumn('blob', 'text', required)
      .addColumn('created', 'bigint', required)
      .execute()
    await index(db, 'upload_parts_listed', 'upload_parts', 'upload_id, id')
    await index(db, 'upload_parts_by_blob', 'upload_parts', 'blob')
  },
}

/**
 * What the console is built on: its sessions, statistics of batches, reports of workers, the last use of keys, and the
 * list of HTTP calls.
 */
export const console = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema
      .createTable('console_sessions')
      .addColumn('token_sha256', 'text', primary)
      .addColumn('kind', 'text', required)
      .addColumn('key_id', 'text', (c) => c.notNull().references('api_keys.id'))
      .addColumn('created', 'bigint', required)
      .addColumn('expires', 'bigint', required)
      .execute()
    await index(db, 'console_sessions_expiring', 'console_sessions', 'expires')

    await db.schema
      .createTable('batch_statistics')
      .addColumn('batch_id', 'text', (c) => c.primaryKey().references('batches.id'))
      .addColumn('errors', 'text', required)
      .addColumn('timeline', 'text', required)
      .execute()

    await db.schema
      .createTable('worker_reports')
      .addColumn('worker_id', 'text', primary)
      .addColumn('reported_at', 'bigint', required)
      .addColumn('report', 'text', required)
      .execute()

    await db.schema.alterTable('api_keys').addColumn('last_used_at', 'bigint').execute()

    await index(db, 'http_requests_listed', 'http_requests', 'project_id, id')
  },
}

/** Batches that start later or are paused, and models that a project has paused. */
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

/** Batches at batch APIs that lines of a chunk were sent to. */
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

/** How many tokens of a batch came from a server's cache, and how many a model thought with. */
export const usageDetails = {
  async up(db: Kysely<unknown>): Promise<void> {
    for (const column of ['cached_tokens', 'reasoning_tokens'])
      await db.schema.alterTable('batches').addColumn(column, 'bigint', counter).execute()
  },
}

/** The trace context of callers: of each recorded call, and of the call that created a batch. */
export const traces = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema.alterTable('http_requests').addColumn('traceparent', 'text').execute()
    await db.schema.alterTable('batches').addColumn('traceparent', 'text').execute()
  },
}
