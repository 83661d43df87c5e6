// What the console is built on: its sessions, statistics of batches, reports of workers, the last use of keys, and the
// list of HTTP calls.
import type { Kysely } from 'kysely'
import { index, primary, required } from './columns.ts'

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
