import assert from 'node:assert/strict'
import { test } from 'node:test'
import { testServer } from '../../../test/support/test-server.ts'

test('the record of a call has its request and status, and for a change also the response', async () => {
  await using server = await testServer()
  const upload = await server.upload()
  const record = await server.call('GET', `/v1/requests/${upload.request_id}`)
  assert.deepEqual(
    { ...record.json, duration_ms: 0 },
    {
      id: upload.request_id,
      object: 'request',
      kind: 'http',
      method: 'POST',
      path: '/v1/files',
      status_code: 200,
      api_key_id: server.key.id,
      entity: null,
      created: Math.floor(server.clock.now() / 1000),
      duration_ms: 0,
      response: upload.json,
    },
  )
  const download = await server.call('GET', `/v1/files/${upload.id}/content`)
  const read = await server.call('GET', `/v1/requests/${download.request_id}`)
  assert.deepEqual([read.json.path, read.json.response], [`/v1/files/${upload.id}/content`, null])
})

test('a failed call is recorded with its error', async () => {
  await using server = await testServer()
  const refused = await server.createBatch('file_x')
  const { json } = await server.call('GET', `/v1/requests/${refused.request_id}`)
  assert.deepEqual([json.status_code, json.response], [404, refused.json])
})

test('a call without a valid key leaves no record', async () => {
  await using server = await testServer()
  const { request_id } = await server.call('GET', '/v1/files', { key: null })
  assert.equal((await server.call('GET', `/v1/requests/${request_id}`)).outcome, '404 request_not_found')
})

const WEBHOOK_URL = 'https://hooks.example/a?version=2&token=t0p'
const RECORDED_URL = 'https://hooks.example/a?version=2&token=(hidden)'

test('no record contains the secret of a webhook or of its URL, whether it was created or rotated', async () => {
  await using server = await testServer()
  const made = await server.call('POST', '/v1/webhooks', { body: { url: WEBHOOK_URL } })
  const rotated = await server.call('POST', `/v1/webhooks/${made.id}/rotate_secret`)
  const { key } = await server.issue({ scopes: ['batches:read'] })
  for (const { request_id, json } of [made, rotated]) {
    assert.match(String(json.secret), /^whsec_/)
    const record = await server.call('GET', `/v1/requests/${request_id}`, { key })
    assert.deepEqual(record.json.response, { ...json, url: RECORDED_URL, secret: '[secret]' })
  }
  const { read } = server.deps.store
  const kept = JSON.stringify([
    await read.selectFrom('http_requests').selectAll().execute(),
    await read.selectFrom('idempotency_keys').selectAll().execute(),
    await read.selectFrom('webhooks').selectAll().execute(),
  ])
  for (const { json } of [made, rotated]) assert.ok(!kept.includes(String(json.secret)))
  assert.equal(kept.split('t0p').length, 2, 'the table of webhooks alone has the URL')
})

test('a key in the path of a call is not recorded', async () => {
  await using server = await testServer()
  const { request_id } = await server.call('GET', `/v1/files/${server.key.key}`)
  const { json } = await server.call('GET', `/v1/requests/${request_id}`)
  assert.equal(json.path, '/v1/files/[secret]')
})
