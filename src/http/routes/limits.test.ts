import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type TestServer, testServer } from '../../../test/support/test-server.ts'

const BASE = { scope: 'project', metric: 'cost_usd', amount: 10, window: 'month' }

function create(server: TestServer, body: object, headers: Record<string, string> = {}) {
  return server.call('POST', '/v1/limits', { body, headers })
}

test('a limit is shown as it was created, and blocks by default', async () => {
  await using server = await testServer()
  const made = await create(server, {
    scope: 'entity',
    entity: 'user:42',
    metric: 'cost_usd',
    amount: 12.345678901,
    window: 'month',
    description: 'Ask finance.',
    notify_at: [0.5, 0.8],
  })
  const { unpriced_models, ...limit } = made.json
  const { id, created, ...rest } = limit
  assert.match(String(id), /^lim_/)
  assert.equal(created, Math.floor(server.clock.now() / 1000))
  assert.deepEqual(rest, {
    object: 'limit',
    scope: 'entity',
    entity: 'user:42',
    metric: 'cost_usd',
    amount: 12.345678901,
    window: 'month',
    action: 'block',
    description: 'Ask finance.',
    notify_at: [0.5, 0.8],
  })
  assert.deepEqual((await server.call('GET', `/v1/limits/${id}`)).json, limit)
  assert.deepEqual(unpriced_models, ['free'])
  const tokens = await create(server, {
    scope: 'entity_type',
    entity_type: 'team',
    metric: 'tokens',
    amount: 0,
    window: 'day',
    action: 'notify',
  })
  assert.deepEqual(
    [tokens.json.entity_type, tokens.json.amount, tokens.json.action, tokens.json.notify_at],
    ['team', 0, 'notify', []],
  )
  assert.equal('unpriced_models' in tokens.json, false)
})

test('a limit names a key of the project and a model of the service, or is a 404', async () => {
  await using server = await testServer()
  const key = server.key.id
  const made = await create(server, { ...BASE, scope: 'key', key, model: 'sim-1' })
  assert.deepEqual([made.status, made.json.key, made.json.model], [200, key, 'sim-1'])
  for (const [body, param] of [
    [{ scope: 'key', key: 'key_unknown' }, 'key'],
    [{ scope: 'model', model: 'unknown' }, 'model'],
  ] as const) {
    const { status, json } = await create(server, { ...BASE, ...body })
    assert.deepEqual([status, Reflect.get(json.error ?? {}, 'param')], [404, param])
  }
  const other = await create(server, { ...BASE, scope: 'model', model: 'free' })
  assert.deepEqual(other.json.unpriced_models, ['free'])
  for (const [query, id] of [
    [`key=${key}`, made.json.id],
    ['model=free', other.json.id],
  ]) {
    const { json } = await server.call('GET', `/v1/limits?${query}`)
    assert.deepEqual(
      (json.data as { id: string }[]).map((limit) => limit.id),
      [id],
    )
  }
})

test('an invalid combination is a 400 that names the parameter', async () => {
  await using server = await testServer()
  const refused: [object, string][] = [
    [{ ...BASE, scope: 'entity' }, 'entity'],
    [{ ...BASE, scope: 'entity', entity: 'a', entity_type: 'b' }, 'entity_type'],
    [{ ...BASE, scope: 'entity', entity_type: 'b' }, 'entity_type'],
    [{ ...BASE, scope: 'entity', entity: '' }, 'entity'],
    [{ ...BASE, scope: 'entity_type' }, 'entity_type'],
    [{ ...BASE, scope: 'entity_type', entity: 'a', entity_type: 'b' }, 'entity'],
    [{ ...BASE, scope: 'entity_type', entity_type: 'user:1' }, 'entity_type'],
    [{ ...BASE, entity: 'a' }, 'entity'],
    [{ ...BASE, entity_type: 'a' }, 'entity_type'],
    [{ ...BASE, scope: 'key' }, 'key'],
    [{ ...BASE, scope: 'key', key: 'k', entity: 'a' }, 'entity'],
    [{ ...BASE, scope: 'model' }, 'model'],
    [{ ...BASE, scope: 'entity', entity: 'a', model: ' ' }, 'model'],
    [{ ...BASE, key: 'key_1' }, 'key'],
    [{ ...BASE, scope: 'planet' }, 'scope'],
    [{ ...BASE, metric: 'lines' }, 'metric'],
    [{ ...BASE, window: 'year' }, 'window'],
    [{ ...BASE, action: 'warn' }, 'action'],
    [{ ...BASE, amount: -0.01 }, 'amount'],
    [{ ...BASE, amount: 1e10 }, 'amount'],
    [{ ...BASE, amount: '10' }, 'amount'],
    [{ ...BASE, metric: 'tokens', amount: 1.5 }, 'amount'],
    [{ ...BASE, notify_at: [0.5, 0.5] }, 'notify_at'],
    [{ ...BASE, notify_at: [0] }, 'notify_at.0'],
    [{ ...BASE, notify_at: [1.01] }, 'notify_at.0'],
    [{ ...BASE, notify_at: 0.5 }, 'notify_at'],
    [{ ...BASE, description: 7 }, 'description'],
    [{ metric: 'cost_usd', amount: 1, window: 'day' }, 'scope'],
    [{ ...BASE, amount: undefined }, 'amount'],
  ]
  for (const [body, param] of refused) {
    const answer = await create(server, body)
    assert.equal(answer.outcome, '400 invalid_request', JSON.stringify(body))
    assert.equal(answer.error.param, param, JSON.stringify(body))
  }
  assert.deepEqual((await server.call('GET', '/v1/limits')).data, [])
})

test('the amount of a limit can be changed, but not its subject', async () => {
  await using server = await testServer()
  const { id } = await create(server, { ...BASE, description: 'old', notify_at: [0.5] })
  const change = (body: object) => server.call('POST', `/v1/limits/${id}`, { body })
  const changed = await change({ amount: 20, action: 'notify', description: null, notify_at: [0.9, 0.4] })
  assert.deepEqual(
    [changed.json.amount, changed.json.action, changed.json.description, changed.json.notify_at],
    [20, 'notify', undefined, [0.4, 0.9]],
  )
  assert.equal((await change({})).json.amount, 20)
  for (const [body, param] of [
    [{ metric: 'tokens' }, 'metric'],
    [{ scope: 'entity' }, 'scope'],
    [{ window: 'day' }, 'window'],
    [{ amount: -1 }, 'amount'],
    [{ notify_at: [2] }, 'notify_at.0'],
  ] as const) {
    const answer = await change(body)
    assert.deepEqual([answer.outcome, answer.error.param], ['400 invalid_request', param])
  }
  const deleted = await server.call('DELETE', `/v1/limits/${id}`)
  assert.deepEqual(deleted.json, { id, object: 'limit', deleted: true })
  for (const method of ['GET', 'POST', 'DELETE'])
    assert.equal((await server.call(method, `/v1/limits/${id}`)).outcome, '404 limit_not_found')
})

test('limits are listed newest first, by scope and by entity, page by page', async () => {
  await using server = await testServer()
  const ids: string[] = []
  for (const body of [
    BASE,
    { ...BASE, scope: 'entity', entity: 'user:1' },
    { ...BASE, scope: 'entity', entity: 'user:2' },
    { ...BASE, scope: 'entity', entity: 'user:1', metric: 'tokens' },
    { ...BASE, scope: 'entity_type', entity_type: 'user' },
  ])
    ids.unshift((await create(server, body)).id)
  const list = (query = '') => server.call('GET', `/v1/limits${query}`)
  assert.deepEqual((await list()).ids, ids)
  assert.deepEqual((await list('?scope=entity')).ids, ids.slice(1, 4))
  assert.deepEqual((await list('?entity=user:1')).ids, [ids[1], ids[3]])
  assert.deepEqual((await list('?entity=user:1&scope=project')).ids, [])
  assert.equal((await list('?scope=planet')).error.param, 'scope')
  const first = await list('?limit=2')
  assert.deepEqual([first.ids, first.json.has_more], [ids.slice(0, 2), true])
  const second = await list(`?limit=3&starting_after=${first.json.next_cursor}`)
  assert.deepEqual([second.ids, second.json.has_more], [ids.slice(2), false])
})

test('an Idempotency-Key creates one limit', async () => {
  await using server = await testServer()
  const headers = { 'idempotency-key': 'k' }
  const first = await create(server, BASE, headers)
  const again = await create(server, BASE, headers)
  assert.equal(again.text, first.text)
  assert.equal(again.headers.get('idempotency-replayed'), 'true')
  assert.equal((await create(server, { ...BASE, amount: 11 }, headers)).outcome, '409 idempotency_key_reused')
  assert.equal((await server.call('GET', '/v1/limits')).data.length, 1)
})
