// What bounds callers: records of calls that no key vouches for, the rate limit's buckets, and the index by which a
// project's stored bytes are summed. Batches remember how soon their result files are to be gone.
import { type Kysely, sql } from 'kysely'

/** The key of a first start may do everything, also what scopes that came later open. */
const FIRST_KEY = 'made at the first start'

export const callers = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema
      .createTable('anonymous_requests')
      .addColumn('id', 'text', (c) => c.primaryKey())
      .addColumn('method', 'text', (c) => c.notNull())
      .addColumn('path', 'text', (c) => c.notNull())
      .addColumn('status', 'integer', (c) => c.notNull())
      .addColumn('created', 'bigint', (c) => c.notNull())
      .addColumn('duration_ms', 'integer', (c) => c.notNull())
      .addColumn('address', 'text', (c) => c.notNull())
      .addColumn('key_id', 'text')
      .execute()
    await db.schema
      .createTable('rate_buckets')
      .addColumn('key_id', 'text', (c) => c.primaryKey())
      .addColumn('full_at', 'bigint', (c) => c.notNull())
      .addColumn('granted', 'bigint', (c) => c.notNull())
      .execute()
    await sql`CREATE INDEX files_stored ON files (project_id, bytes) WHERE deleted_at IS NULL`.execute(db)
    await db.schema.alterTable('batches').addColumn('output_expires_after_ms', 'bigint').execute()
    await extendFirstKey(db)
  },
}

async function extendFirstKey(db: Kysely<unknown>): Promise<void> {
  const { rows } = await sql<{ id: string; scopes: string }>`
    SELECT id, scopes FROM api_keys WHERE name = ${FIRST_KEY} AND revoked_at IS NULL`.execute(db)
  for (const { id, scopes } of rows) {
    const held: unknown = JSON.parse(scopes)
    if (!Array.isArray(held)) continue
    const extended = JSON.stringify([...new Set([...held, 'operator'])])
    await sql`UPDATE api_keys SET scopes = ${extended} WHERE id = ${id}`.execute(db)
  }
}
