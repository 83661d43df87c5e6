// Events, who wants to hear of them, and how each delivery stands.
import { type Kysely, sql } from 'kysely'

export const notices = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema
      .createTable('events')
      .addColumn('id', 'text', (c) => c.primaryKey())
      .addColumn('project_id', 'text', (c) => c.notNull().references('projects.id'))
      .addColumn('type', 'text', (c) => c.notNull())
      .addColumn('data', 'text', (c) => c.notNull())
      .addColumn('created', 'bigint', (c) => c.notNull())
      .execute()
    await sql`CREATE INDEX events_listed ON events (project_id, id)`.execute(db)
    await sql`CREATE INDEX events_listed_by_type ON events (project_id, type, id)`.execute(db)
    await sql`CREATE INDEX events_by_age ON events (created)`.execute(db)

    await db.schema
      .createTable('webhooks')
      .addColumn('id', 'text', (c) => c.primaryKey())
      .addColumn('project_id', 'text', (c) => c.notNull().references('projects.id'))
      .addColumn('url', 'text', (c) => c.notNull())
      .addColumn('description', 'text')
      .addColumn('event_types', 'text')
      .addColumn('wrapped_secret', 'text', (c) => c.notNull())
      .addColumn('previous_secret', 'text')
      .addColumn('previous_until', 'bigint')
      .addColumn('disabled_at', 'bigint')
      .addColumn('disabled_reason', 'text')
      .addColumn('created', 'bigint', (c) => c.notNull())
      .execute()
    await sql`CREATE INDEX webhooks_listed ON webhooks (project_id, id)`.execute(db)

    await db.schema
      .createTable('deliveries')
      .addColumn('id', 'text', (c) => c.primaryKey())
      .addColumn('webhook_id', 'text', (c) => c.notNull().references('webhooks.id'))
      .addColumn('event_id', 'text', (c) => c.notNull().references('events.id'))
      .addColumn('status', 'text', (c) => c.notNull())
      .addColumn('started', 'bigint', (c) => c.notNull())
      .addColumn('attempts', 'bigint', (c) => c.notNull().defaultTo(0))
      .addColumn('next_attempt_at', 'bigint')
      .addColumn('last_attempt_at', 'bigint')
      .addColumn('last_status', 'bigint')
      .addColumn('last_error', 'text')
      .addColumn('created', 'bigint', (c) => c.notNull())
      .addUniqueConstraint('deliveries_once', ['webhook_id', 'event_id'])
      .execute()
    await sql`CREATE INDEX deliveries_listed ON deliveries (webhook_id, status, id)`.execute(db)
    await sql`CREATE INDEX deliveries_by_event ON deliveries (event_id)`.execute(db)
    await extendFullKeys(db)
  },
}

const SCOPES_BEFORE = [
  'batches:write',
  'batches:read',
  'files:write',
  'files:read',
  'files:delete',
  'limits:read',
  'usage:read',
  'requests:read',
]

/** A key that might do everything before may do so still. */
async function extendFullKeys(db: Kysely<unknown>): Promise<void> {
  const { rows } = await sql<{ id: string; scopes: string }>`SELECT id, scopes FROM api_keys`.execute(db)
  for (const { id, scopes } of rows) {
    const held: unknown = JSON.parse(scopes)
    if (!Array.isArray(held) || !SCOPES_BEFORE.every((scope) => held.includes(scope))) continue
    const all = JSON.stringify([...held, 'events:read', 'webhooks:read', 'webhooks:write'])
    await sql`UPDATE api_keys SET scopes = ${all} WHERE id = ${id}`.execute(db)
  }
}
