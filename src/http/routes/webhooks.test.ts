import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type Answer, type TestServer, testServer } from '../../../test/support/test-server.ts'
import { recordEvent } from '../../notify/record-event.ts'
import { readRow } from '../../store/rows.ts'

const URL = 'https://hooks.example/offpeak'

async function create(server: TestServer, body: object = {}, key?: string): Promise<Answer> {
  return await server.call('POST', '/v1/webhooks', { body: { url: URL, ...body }, key })
}

async function happen(server: TestServer): Promise<string> {
  const { store } = server.deps
  const project = await readRow(store.read, 'projects', { name: 'default' })
  assert(project)
  const event = { project_id: project.id, type: 'batch.completed', data: { n: 1 } } as const
  await store.write((tx) => recordEvent(tx, event, server.clock.now()))
  return (await server.call('GET', '/v1/events?limit=1')).ids[0] ?? ''
}

test('a webhook shows its secret only when it is created', async () => {
  await using server = await testServer()
  const made = await create(server, { event_types: ['batch.failed'], description: 'pager' })
  const { secret, ...shown } = made.json
  assert.match(String(secret), /^whsec_[A-Za-z0-9+/]{43}=$/)
  assert.deepEqual(shown, {
    id: made.id,
    object: 'webhook',
    url: URL,
    description: 'pager',
    event_types: ['batch.failed'],
    enabled: true,
    disabled_reason: null,
    created: Math.floor(server.clock.now() / 1000),
  })
  assert.deepEqual((await server.call('GET', `/v1/webhooks/${made.id}`)).json, shown)
  assert.deepEqual((await server.call('GET', '/v1/webhooks')).data, [shown])
  const [row] = await server.deps.store.read.selectFrom('webhooks').selectAll().execute()
  const key = Buffer.from(String(secret).slice('whsec_'.length), 'base64')
  for (const text of [key.toString('base64'), key.toString('base64url'), key.toString('hex')])
    assert.ok(!JSON.stringify(row).includes(text), 'the secret lies nowhere in the clear')
})

test('an invalid webhook is rejected with the name of the parameter', async () => {
  await using server = await testServer()
  for (const [body, param] of [
    [{ url: 'http://hooks.example/' }, 'url'],
    [{ url: 'https://127.0.0.1/' }, 'url'],
    [{ event_types: [] }, 'event_types'],
    [{ event_types: ['batch.finished'] }, 'event_types.0'],
    [{ description: 'x'.repeat(513) }, 'description'],
  ] as const) {
    const answer = await create(server, body)
    assert.deepEqual([answer.outcome, answer.error.param], ['400 invalid_request', param])
  }
})

test('a project has at most twenty webhooks', async () => {
  await using server = await testServer()
  for (let i = 0; i < 20; i++) assert.equal((await create(server)).status, 200)
  const answer = await create(server)
  assert.equal(answer.outcome, '429 quota_exceeded')
  const { key } = await server.issue({ project: 'other' })
  assert.equal((await create(server, {}, key)).status, 200)
})

test('a change affects only the fields that it names', async () => {
  await using server = await testServer()
  const { id, json } = await create(server, { description: 'one', event_types: ['batch.failed'] })
  const { secret: _, ...before } = json
  const path = `/v1/webhooks/${id}`
  assert.deepEqual((await server.call('POST', path)).json, before)
  const changed = await server.call('POST', path, { body: { event_types: null, enabled: false } })
  assert.deepEqual(changed.json, {
    ...before,
    event_types: null,
    enabled: false,
    disabled_reason: 'disabled by its owner',
  })
  const back = await server.call('POST', path, {
    body: { event_types: ['batch.failed'], enabled: true, url: `${URL}/2`, description: null },
  })
  assert.deepEqual(back.json, { ...before, url: `${URL}/2`, description: null })
  const bad = await server.call('POST', path, { body: { url: 'https://10.0.0.1' } })
  assert.deepEqual([bad.outcome, bad.error.param], ['400 invalid_request', 'url'])
})

test('an event is queued only for webhooks with its type', async () => {
  await using server = await testServer()
  const all = await create(server)
  const wanted = await create(server, { event_types: ['batch.completed', 'limit.reached'] })
  const other = await create(server, { event_types: ['batch.failed'] })
  const disabled = await create(server)
  await server.call('POST', `/v1/webhooks/${disabled.id}`, { body: { enabled: false } })
  const event_id = await happen(server)
  for (const [webhook, count] of [
    [all, 1],
    [wanted, 1],
    [other, 0],
    [disabled, 0],
  ] as const) {
    const { data } = await server.call('GET', `/v1/webhooks/${webhook.id}/deliveries?status=pending`)
    assert.equal(data.length, count)
    if (count > 0) assert.deepEqual([data[0]?.event_id, data[0]?.event_type], [event_id, 'batch.completed'])
    const failed = await server.call('GET', `/v1/webhooks/${webhook.id}/deliveries?status=failed`)
    assert.deepEqual(failed.data, [])
  }
  const tasks = await server.deps.store.read.selectFrom('tasks').selectAll().execute()
  assert.equal(tasks.filter(({ kind }) => kind === 'deliver').length, 2)
})

test('deleting a webhook deletes its deliveries', async () => {
  await using server = await testServer()
  const { id } = await create(server)
  await happen(server)
  const deleted = await server.call('DELETE', `/v1/webhooks/${id}`)
  assert.deepEqual(deleted.json, { id, object: 'webhook', deleted: true })
  for (const [method, path] of [
    ['GET', ''],
    ['DELETE', ''],
    ['POST', ''],
    ['GET', '/deliveries'],
    ['POST', '/replay'],
    ['POST', '/rotate_secret'],
  ] as const)
    assert.equal(
      (await server.call(method, `/v1/webhooks/${id}${path}`)).outcome,
      '404 webhook_not_found',
      method + path,
    )
  const rows = await server.deps.store.read.selectFrom('deliveries').selectAll().execute()
  assert.deepEqual(rows, [])
})

test('events and webhooks of another project are a 404', async () => {
  await using server = await testServer()
  const { id } = await create(server)
  const event_id = await happen(server)
  const { key } = await server.issue({ project: 'other' })
  assert.deepEqual((await server.call('GET', '/v1/events', { key })).ids, [])
  assert.deepEqual((await server.call('GET', '/v1/webhooks', { key })).ids, [])
  assert.equal((await server.call('GET', `/v1/events/${event_id}`, { key })).outcome, '404 event_not_found')
  assert.equal(
    (await server.call('GET', `/v1/events?after=${event_id}`, { key })).outcome,
    '404 cursor_not_found',
  )
  for (const [method, path] of [
    ['GET', ''],
    ['POST', ''],
    ['DELETE', ''],
    ['GET', '/deliveries'],
    ['POST', '/replay'],
    ['POST', '/rotate_secret'],
  ] as const) {
    const answer = await server.call(method, `/v1/webhooks/${id}${path}`, { key })
    assert.equal(answer.outcome, '404 webhook_not_found', method + path)
  }
  const theirs = await create(server, {}, key)
  const answer = await server.call('POST', `/v1/webhooks/${theirs.id}/replay`, { key, body: { event_id } })
  assert.equal(answer.outcome, '404 event_not_found')
  assert.equal((await server.call('GET', `/v1/webhooks/${id}`)).json.enabled, true)
})
