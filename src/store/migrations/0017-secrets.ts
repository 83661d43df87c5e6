// Secrets of webhooks leave the records of the calls that made them, and keys that may do everything may change and
// delete limits, as they could before this had a scope of its own.
import { type QueryExecutorProvider, sql } from 'kysely'

const ROWS_AT_ONCE = 500

export const secrets = {
  async up(db: QueryExecutorProvider): Promise<void> {
    await purgeRecords(db)
    await extendFullKeys(db)
  },
}

async function purgeRecords(db: QueryExecutorProvider): Promise<void> {
  for (let after = '', more = true; more; ) {
    const { rows } = await sql<{ id: string; response: string }>`
      SELECT id, response FROM http_requests
      WHERE id > ${after} AND method = 'POST' AND path LIKE '/v1/webhooks%' AND response LIKE '%whsec\\_%' ESCAPE '\\'
      ORDER BY id LIMIT ${ROWS_AT_ONCE}`.execute(db)
    for (const { id, response } of rows) {
      const purged = response.replaceAll(/whsec_[A-Za-z0-9+/_-]+={0,2}/g, '[secret]')
      await sql`UPDATE http_requests SET response = ${purged} WHERE id = ${id}`.execute(db)
      after = id
    }
    more = rows.length === ROWS_AT_ONCE
  }
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
  'events:read',
  'webhooks:read',
  'webhooks:write',
]

async function extendFullKeys(db: QueryExecutorProvider): Promise<void> {
  const { rows } = await sql<{ id: string; scopes: string }>`SELECT id, scopes FROM api_keys`.execute(db)
  for (const { id, scopes } of rows) {
    const held: unknown = JSON.parse(scopes)
    if (!Array.isArray(held) || !SCOPES_BEFORE.every((scope) => held.includes(scope))) continue
    if (held.includes('limits:write')) continue
    const all = JSON.stringify([...held, 'limits:write'])
    await sql`UPDATE api_keys SET scopes = ${all} WHERE id = ${id}`.execute(db)
  }
}
