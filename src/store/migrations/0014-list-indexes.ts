// Indexes in the order of the lists that they serve, whatever a list is filtered by (store/page.ts).
import type { Kysely } from 'kysely'
import { index } from './columns.ts'

const OPEN = `status IN ('validating', 'queued', 'in_progress', 'cancelling')`

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
