// The trace context of callers: of each recorded call, and of the call that created a batch.
import type { Kysely } from 'kysely'

export const traces = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema.alterTable('http_requests').addColumn('traceparent', 'text').execute()
    await db.schema.alterTable('batches').addColumn('traceparent', 'text').execute()
  },
}
