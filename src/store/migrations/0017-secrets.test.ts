import assert from 'node:assert/strict'
import { mkdtemp, readFile, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { emptyPostgres } from '../../../test/fakes/empty-postgres.ts'
import { postgresServer, withoutPostgres } from '../../../test/fakes/postgres-server.ts'
import { SCOPES } from '../../domain/api-key.ts'
import { newId } from '../../domain/ids.ts'
import { insertKey } from '../api-keys.ts'
import { insertHttpRequests } from '../http-requests.ts'
import { ensureProject } from '../projects.ts'
import { sqliteStore } from '../sqlite/store.ts'
import type { Store } from '../store.ts'
import { secrets } from './0017-secrets.ts'

const SECRET = `whsec_${Buffer.alloc(32, 0xab).toString('base64')}`
const NOW = Date.now()
const BEFORE = SCOPES.filter((scope) => scope !== 'limits:write')
const RECORDS = 1_203

async function fill(store: Store): Promise<{ other: string }> {
  const other = newId('request', NOW)
  const row = { project_id: 'proj_1', key_id: 'key_1', method: 'POST', status: 200, created: NOW }
  const rest = { duration_ms: 1, entity: null }
  await store.write(async (tx) => {
    await ensureProject(tx, { id: 'proj_1', name: 'p', plan: 'payg', created: NOW })
    await insertHttpRequests(
      tx,
      Array.from({ length: RECORDS }, (_, i) => ({
        ...{ ...row, ...rest, id: newId('request', NOW) },
        path: i % 2 === 0 ? '/v1/webhooks' : '/v1/webhooks/wh_1/rotate_secret',
        response: JSON.stringify({ id: 'wh_1', secret: SECRET, n: i }),
      })),
    )
    await insertHttpRequests(tx, [
      { ...row, ...rest, id: other, path: '/v1/batches', response: '{"metadata":{"a":"whsec_mine"}}' },
    ])
    for (const [id, scopes] of Object.entries({ key_full: BEFORE, key_part: ['limits:read'] }))
      await insertKey(tx, {
        ...{ id, project_id: 'proj_1', name: null, secret_sha256: 'x', created: NOW, revoked_at: null },
        scopes: JSON.stringify(scopes),
      })
  })
  return { other }
}

async function purgedAndExtended(store: Store): Promise<void> {
  const { other } = await fill(store)
  await store.write((tx) => secrets.up(tx))
  const rows = await store.read.selectFrom('http_requests').selectAll().execute()
  assert.equal(rows.length, RECORDS + 1)
  for (const { id, response } of rows) {
    if (id === other) assert.equal(response, '{"metadata":{"a":"whsec_mine"}}')
    else assert.equal(JSON.parse(response ?? '').secret, '[secret]')
  }
  const keys = await store.read.selectFrom('api_keys').select(['id', 'scopes']).orderBy('id').execute()
  assert.deepEqual(
    keys.map(({ scopes }) => JSON.parse(scopes)),
    [[...BEFORE, 'limits:write'], ['limits:read']],
  )
}

test('secrets leave the records of earlier calls, down to the bytes of the file, and full keys stay full', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-migration-'))
  const path = join(folder, 'offpeak.db')
  const store = sqliteStore({ path })
  try {
    await store.migrate()
    assert.equal((await stat(`${path}-wal`)).size, 0, 'what was migrated does not stay in the log')
    await purgedAndExtended(store)
    await store.close()
    assert.ok(!(await readFile(path)).includes(SECRET))
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
})

test('the same on PostgreSQL', { skip: withoutPostgres }, async () => {
  await using server = await postgresServer()
  await using database = await emptyPostgres(server)
  const store = database.open()
  await store.migrate()
  await purgedAndExtended(store)
})
