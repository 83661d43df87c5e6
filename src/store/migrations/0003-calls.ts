// Events and webhooks, records of HTTP calls, idempotency keys and rate limits, and properties of the database itself.
import { type Kysely, sql } from 'kysely'
import { counter, index, ofProject, primary, required } from './columns.ts'

/** `partitioned`: whether the database divides `http_requests` by the month. */
export function calls(partitioned: boolean) {
  return {
    async up(db: Kysely<unknown>): Promise<void> {
      await db.schema
        .createTable('events')
        .addColumn('id', 'text', primary)
        .addColumn('project_id', 'text', ofProject)
        .addColumn('type', 'text', required)
        .addColumn('data', 'text', required)
        .addColumn('created', 'bigint', required)
        .execute()
      await index(db, 'events_listed', 'events', 'project_id, id')
      await index(db, 'events_listed_by_type', 'events', 'project_id, type, id')
      await index(db, 'events_by_age', 'events', 'created')

      await db.schema
        .createTable('webhooks')
        .addColumn('id', 'text', primary)
        .addColumn('project_id', 'text', ofProject)
        .addColumn('url', 'text', required)
        .addColumn('description', 'text')
        .addColumn('event_types', 'text')
        .addColumn('wrapped_secret', 'text', required)
        .addColumn('previous_secret', 'text')
        .addColumn('previous_until', 'bigint')
        .addColumn('disabled_at', 'bigint')
        .addColumn('disabled_reason', 'text')
        .addColumn('created', 'bigint', required)
        .execute()
      await index(db, 'webhooks_listed', 'webhooks', 'project_id, id')

      await db.schema
        .createTable('deliveries')
        .addColumn('id', 'text', primary)
        .addColumn('webhook_id', 'text', (c) => c.notNull().references('webhooks.id'))
        .addColumn('event_id', 'text', (c) => c.notNull().references('events.id'))
        .addColumn('status', 'text', required)
        .addColumn('started', 'bigint', required)
        .addColumn('attempts', 'bigint', counter)
        .addColumn('next_attempt_at', 'bigint')
        .addColumn('last_attempt_at', 'bigint')
        .addColumn('last_status', 'bigint')
        .addColumn('last_error', 'text')
        .addColumn('created', 'bigint', required)
        .addUniqueConstraint('deliveries_once', ['webhook_id', 'event_id'])
        .execute()
      await index(db, 'deliveries_listed', 'deliveries', 'webhook_id, status, id')
      await index(db, 'deliveries_by_event', 'deliveries', 'event_id')

      const requests = db.schema
        .createTable('http_requests')
        .addColumn('id', 'text', primary)
        .addColumn('project_id', 'text', required)
        .addColumn('key_id', 'text', required)
        .addColumn('method', 'text', required)
        .addColumn('path', 'text', required)
        .addColumn('status', 'integer', required)
        .addColumn('created', 'bigint', required)
        .addColumn('duration_ms', 'integer', required)
        .addColumn('entity', 'text')
        .addColumn('response', 'text')
      await (partitioned ? requests.modifyEnd(sql`PARTITION BY RANGE (id)`) : requests).execute()

      await db.schema
        .createTable('anonymous_requests')
        .addColumn('id', 'text', primary)
        .addColumn('method', 'text', required)
        .addColumn('path', 'text', required)
        .addColumn('status', 'integer', required)
        .addColumn('created', 'bigint', required)
        .addColumn('duration_ms', 'integer', required)
        .addColumn('address', 'text', required)
        .addColumn('key_id', 'text')
        .execute()

      await db.schema
        .createTable('idempotency_keys')
        .addColumn('project_id', 'text', required)
        .addColumn('route', 'text', required)
        .addColumn('key', 'text', required)
        .addColumn('fingerprint', 'text', required)
        .addColumn('state', 'text', required)
        .addColumn('request_id', 'text', required)
        .addColumn('status', 'integer')
        .addColumn('response', 'text')
        .addColumn('created', 'bigint', required)
        .addColumn('expires', 'bigint', required)
        .addPrimaryKeyConstraint('idempotency_keys_pk', ['project_id', 'route', 'key'])
        .execute()
      await index(db, 'idempotency_keys_expiring', 'idempotency_keys', 'expires')

      await db.schema
        .createTable('rate_buckets')
        .addColumn('key_id', 'text', primary)
        .addColumn('full_at', 'bigint', required)
        .addColumn('granted', 'bigint', required)
        .execute()

      await db.schema
        .createTable('database_properties')
        .addColumn('name', 'text', primary)
        .addColumn('value', 'text', required)
        .execute()
    },
  }
}
