// The tables, columns and indexes that were added since version 0.2.0.
import { type Kysely, sql } from 'kysely'
import { counter, index } from './columns.ts'

/** Of batches at batch APIs: how often each was to be created, and an index to find one by its ID there. */
export const remoteLooks = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema.alterTable('remote_batches').addColumn('creations', 'integer', counter).execute()
    await index(db, 'remote_batches_open', 'remote_batches', 'remote_id', "state = 'open'")
  },
}

/** Which lines of a chunk ask what an earlier line of their batch asks (jsonl/first-lines.ts). */
export const firstLines = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema.alterTable('chunks').addColumn('first_lines', 'text').execute()
  },
}

/** Of batches at batch APIs: the day to which their lines are charged. */
export const chargedDays = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema.alterTable('remote_batches').addColumn('day', 'bigint').execute()
  },
}

const OPEN = `status IN ('validating', 'queued', 'in_progress', 'cancelling')`

/** Indexes in the order of the lists that they serve, whatever a list is filtered by (store/page.ts). */
export const listIndexes = {
  async up(db: Kysely<unknown>): Promise<void> {
    await index(db, 'files_listed_by_purpose', 'files', 'project_id, purpose, id', 'deleted_at IS NULL')
    await index(db, 'api_keys_listed', 'api_keys', 'project_id, id')
    await index(db, 'deliveries_of_webhook', 'deliveries', 'webhook_id, id')
    await index(db, 'chunks_by_line', 'chunks', 'batch_id, first_line')
    for (const name of ['limits_matched', 'batches_open_of_project'])
      await db.schema.dropIndex(name).execute()
    await index(db, 'limits_of_subject', 'limits', 'project_id, subject, scope, id')
    await index(db, 'batches_open_listed', 'batches', 'project_id, id', OPEN)
  },
}

/** Which call completes an upload, and how the last one failed. */
export const uploadCompletions = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema.alterTable('uploads').addColumn('completion_attempt', 'bigint', counter).execute()
    await db.schema.alterTable('uploads').addColumn('completing_until', 'bigint').execute()
    for (const column of ['completion_order', 'completion_failure'])
      await db.schema.alterTable('uploads').addColumn(column, 'text').execute()
  },
}

/** The sessions and links of a key, the oldest first. */
export const sessionsOfKeys = {
  async up(db: Kysely<unknown>): Promise<void> {
    await index(db, 'console_sessions_of_key', 'console_sessions', 'key_id, kind, created')
  },
}

/** Of batches that send identical requests once: what the lines share, and which of them do not. */
export const sharedLines = {
  async up(db: Kysely<unknown>): Promise<void> {
    for (const column of ['shared_lines', 'unshared_lines'])
      await db.schema.alterTable('batches').addColumn(column, 'integer', counter).execute()
    await db.schema.alterTable('batches').addColumn('saved_nanos', 'bigint', counter).execute()
  },
}

/** The name of a batch's input, which a list of batches shows and is searched by. */
export const batchNames = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema.alterTable('batches').addColumn('input_filename', 'text').execute()
    await sql`UPDATE batches SET input_filename = (SELECT filename FROM files WHERE files.id = input_file_id)`.execute(
      db,
    )
  },
}
