// What clients of OpenAI's API ask for beside a batch itself: how a key wants its answers, usage and errors of batches,
// and uploads in parts.
import type { Kysely } from 'kysely'
import { counter, index, ofProject, primary, required } from './columns.ts'

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
