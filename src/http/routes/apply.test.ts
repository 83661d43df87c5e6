import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type Answer, object, type TestServer, testServer } from '../../../test/support/test-server.ts'

const LIMIT = { scope: 'project', metric: 'cost_usd', amount: 5, window: 'month' }
const TOKENS = { scope: 'entity', entity: 'user:1', metric: 'tokens', amount: 100, window: 'day' }
const HOOK = { url: 'https://example.com/hook', event_types: ['batch.completed'] }

async function operatorOf(server: TestServer): Promise<string> {
  const scopes = ['operator', 'limits:write', 'limits:read', 'webhooks:write', 'keys:read'] as const
  return (await server.issue({ project: 'ops', scopes })).key
}

function apply(server: TestServer, key: string, body: object, query = ''): Promise<Answer> {
  return server.call('POST', `/v1/projects/apply${query}`, { key, body })
}

const changesOf = ({ json }: Answer): string[] => {
  assert.ok(Array.isArray(json.changes))
  return json.changes.map(object).map(({ action, kind }) => `${action} ${kind}`)
}

test('a project is made as described, and described again nothing is changed', async () => {
  await using server = await testServer()
  const key = await operatorOf(server)
  const wanted = { name: 'team-a', plan: 'enterprise', limits: [LIMIT, TOKENS], webhooks: [HOOK] }
  const planned = await apply(server, key, wanted, '?dry_run=true')
  const all = ['create project', 'create limit', 'create limit', 'create webhook']
  assert.deepEqual(changesOf(planned), all)
  assert.equal((await server.call('GET', '/v1/projects', { key })).data.length, 2, 'a dry run makes nothing')
  const made = await apply(server, key, wanted)
  assert.deepEqual(changesOf(made), all)
  assert.match(JSON.stringify(made.json.changes), /"secret":"whsec_/)
  assert.deepEqual(changesOf(await apply(server, key, wanted, '?prune=true')), [])
  const { json } = await server.call('GET', `/v1/projects/${made.json.project_id}`, { key })
  assert.deepEqual([json.name, json.plan], ['team-a', 'enterprise'])
})

test('what differs is changed in place, and what is not described is deleted with prune alone', async () => {
  await using server = await testServer()
  const key = await operatorOf(server)
  const first = await apply(server, key, { name: 'default', limits: [LIMIT, TOKENS], webhooks: [HOOK] })
  const ids = (answer: Answer): unknown[] => Object(answer.json.changes).map(({ id }: { id: string }) => id)
  const changed = { ...LIMIT, amount: 7.5, notify_at: [0.5], action: 'notify', description: 'Ask us.' }
  const next = {
    name: 'default',
    limits: [changed],
    webhooks: [{ ...HOOK, event_types: null, enabled: false }],
  }
  const planned = await apply(server, key, next, '?dry_run=true&prune=true')
  assert.deepEqual(changesOf(planned), ['update limit', 'delete limit', 'update webhook'])
  const second = await apply(server, key, next)
  assert.deepEqual(changesOf(second), ['update limit', 'update webhook'])
  assert.deepEqual(ids(second), [ids(first)[0], ids(first)[2]])
  const [limit, hook] = Object(second.json.changes)
  assert.deepEqual([limit.before.amount, limit.after.amount, limit.after.action], [5, 7.5, 'notify'])
  assert.deepEqual([hook.before.enabled, hook.after.enabled, hook.after.event_types], [true, false, null])
  assert.deepEqual(
    changesOf(await apply(server, key, { name: 'default' }, '?prune=true')),
    [],
    'lists left out stay',
  )
  assert.deepEqual(changesOf(await apply(server, key, next, '?prune=true')), ['delete limit'])
  const none = { name: 'default', limits: [], webhooks: [] }
  assert.deepEqual(changesOf(await apply(server, key, none, '?prune=true')), [
    'delete limit',
    'delete webhook',
  ])
  assert.equal((await server.call('GET', '/v1/limits')).data.length, 0)
})

test('a mistake changes nothing, and is named with its place', async () => {
  await using server = await testServer()
  const key = await operatorOf(server)
  for (const [body, outcome, param] of [
    [{ limits: [LIMIT, { ...TOKENS, amount: 0.5 }] }, '400 invalid_request', 'limits[1].amount'],
    [{ limits: [LIMIT, { ...LIMIT, amount: 6 }] }, '400 invalid_request', 'limits[1]'],
    [{ limits: [LIMIT, { ...LIMIT, model: 'nope' }] }, '404 model_not_found', 'limits[1].model'],
    [{ limits: [{ ...LIMIT, scope: 'key', key: 'key_x' }] }, '404 key_not_found', 'limits[0].key'],
    [
      { limits: [LIMIT], webhooks: [{ url: 'http://example.com' }] },
      '400 invalid_request',
      'webhooks[0].url',
    ],
    [{ webhooks: [HOOK, HOOK] }, '400 invalid_request', 'webhooks[1]'],
    [{ plan: 'gold' }, '400 invalid_request', 'plan'],
    [{ limit: [] }, '400 invalid_request', 'limit'],
  ] as const) {
    const answer = await apply(server, key, { name: 'new', ...body })
    assert.deepEqual([answer.outcome, answer.error.param], [outcome, param], JSON.stringify(body))
  }
  assert.equal((await server.call('GET', '/v1/projects', { key })).data.length, 2)
})

test('another project and a plan need an operator; limits and webhooks their scopes', async () => {
  await using server = await testServer()
  const own = server.key.key
  assert.equal((await apply(server, own, { name: 'default', plan: 'payg', limits: [LIMIT] })).outcome, '200')
  for (const body of [{ name: 'other' }, { name: 'default', plan: 'enterprise' }]) {
    const answer = await apply(server, own, body)
    assert.equal(answer.outcome, '403 missing_scope')
    assert.match(String(answer.error.message), /`operator`/)
  }
  const { key } = await server.issue({ scopes: ['limits:write'] })
  assert.equal((await apply(server, key, { name: 'default', limits: [] })).outcome, '200')
  assert.equal((await apply(server, key, { name: 'default', webhooks: [] })).outcome, '403 missing_scope')
})
