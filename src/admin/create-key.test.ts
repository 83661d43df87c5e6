import assert from 'node:assert/strict'
import { test } from 'node:test'
import { testServer } from '../../test/support/test-server.ts'
import { PROJECT_SCOPES } from '../domain/api-key.ts'
import { listKeys } from '../store/projects.ts'
import { createKey } from './create-key.ts'

test('a key is issued for a project, which is made if there is none and keeps its plan', async () => {
  await using server = await testServer()
  const { store, clock } = server.deps
  const first = await createKey(store, clock, 'local', { project: 'p', plan: 'enterprise', name: 'laptop' })
  const second = await createKey(store, clock, 'local', {
    project: 'p',
    plan: 'payg',
    scopes: ['files:read'],
  })
  assert.equal(second.project_id, first.project_id)
  assert.equal(second.plan, 'enterprise')
  assert.deepEqual(first.scopes, PROJECT_SCOPES)
  assert.deepEqual(second.scopes, ['files:read'])
  const listed = await listKeys(store.read)
  assert.deepEqual([listed[0]?.id, listed[1]?.id, listed[1]?.name], [second.id, first.id, 'laptop'])
})

test('nothing of a key but its hash is stored', async () => {
  await using server = await testServer()
  const { key } = await server.issue()
  // A secret may hold underscores itself.
  const secret = key.split('_').slice(3).join('_')
  assert.ok(secret.length > 40)
  await server.call('GET', '/v1/models', { key })
  await server.call('POST', '/v1/batches', { key, body: {} })
  const { read } = server.deps.store
  for (const table of ['api_keys', 'http_requests'] as const) {
    const rows = await read.selectFrom(table).selectAll().execute()
    assert.ok(rows.length > 0)
    assert.doesNotMatch(JSON.stringify(rows), new RegExp(secret))
  }
})
