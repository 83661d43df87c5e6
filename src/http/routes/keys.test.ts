import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { object, testServer } from '../../../test/support/test-server.ts'
import { SCOPES } from '../../domain/api-key.ts'

const NO_PROJECT = 'proj_00000000000000000000000000'
const NO_KEY = 'key_00000000000000000000000000'

describe('keys', () => {
  test('a key issues one that works, is listed with its last use, and is revoked', async () => {
    await using server = await testServer()
    const admin = await server.issue({ scopes: ['keys:read', 'keys:write', 'batches:read'] })
    const key = admin.key
    const made = await server.call('POST', '/v1/keys', {
      key,
      body: { name: 'nightly', scopes: ['batches:read'] },
    })
    assert.equal(made.outcome, '200')
    assert.deepEqual(
      [made.json.name, made.json.scopes, made.json.project, made.json.last_used_at, made.json.revoked_at],
      ['nightly', ['batches:read'], 'default', null, null],
    )
    const issued = String(made.json.key)
    assert.equal((await server.call('GET', '/v1/batches', { key: issued })).outcome, '200')
    assert.equal((await server.call('GET', '/v1/files', { key: issued })).outcome, '403 missing_scope')

    const list = await server.call('GET', '/v1/keys', { key })
    assert.deepEqual(list.ids, [made.id, admin.id, server.key.id])
    const [first] = list.data
    assert.equal(first?.last_used_at, Math.floor(server.clock.now() / 1000))
    assert.ok(!list.text.includes(issued))
    const record = await server.call('GET', `/v1/requests/${made.request_id}`)
    assert.equal(object(record.json.response).key, '[secret]')

    const revoked = await server.call('DELETE', `/v1/keys/${made.id}`, { key })
    assert.equal(revoked.json.revoked_at, Math.floor(server.clock.now() / 1000))
    assert.equal((await server.call('GET', '/v1/batches', { key: issued })).outcome, '401 invalid_api_key')
    assert.deepEqual((await server.call('DELETE', `/v1/keys/${made.id}`, { key })).json, revoked.json)
    assert.deepEqual((await server.call('GET', `/v1/keys/${made.id}`, { key })).json, revoked.json)
  })

  test('without scopes a key gives what it has, but neither operator nor keys:write', async () => {
    await using server = await testServer()
    const { key } = await server.issue({ scopes: ['keys:write', 'operator', 'files:read', 'batches:read'] })
    const made = await server.call('POST', '/v1/keys', { key, body: {} })
    assert.deepEqual(made.json.scopes, ['batches:read', 'files:read'])
  })

  test('a key for strict clients says so, and its answers have their form', async () => {
    await using server = await testServer()
    const { key } = await server.issue({ scopes: ['keys:read', 'keys:write'] })
    const made = await server.call('POST', '/v1/keys', { key, body: { compat: 'openai' } })
    const usual = await server.call('POST', '/v1/keys', { key, body: {} })
    assert.deepEqual([made.json.compat, usual.json.compat], ['openai', null])
    assert.equal((await server.call('GET', `/v1/keys/${made.id}`, { key })).json.compat, 'openai')
    const strict = await server.call('GET', '/v1/batches/batch_x', { key: String(made.json.key) })
    assert.equal(strict.error.param, null)
    const unknown = await server.call('POST', '/v1/keys', { key, body: { compat: 'other' } })
    assert.equal(unknown.outcome, '400 invalid_request')
  })

  test('a key gives no scope that it has not itself', async () => {
    await using server = await testServer()
    const { key } = await server.issue({ scopes: ['keys:write', 'batches:read'] })
    for (const scopes of [['operator'], ['batches:read', 'files:read'], ['keys:read']]) {
      const answer = await server.call('POST', '/v1/keys', { key, body: { scopes } })
      assert.equal(answer.outcome, '403 missing_scope')
      assert.match(String(answer.error.message), /cannot give/)
    }
    for (const body of [{ scopes: ['all'] }, { scopes: [] }, { name: '' }, { project: 'x' }])
      assert.equal((await server.call('POST', '/v1/keys', { key, body })).outcome, '400 invalid_request')
    const repeated = await server.call('POST', '/v1/keys', {
      key,
      body: {},
      headers: { 'idempotency-key': 'x' },
    })
    assert.equal(repeated.outcome, '400 invalid_request')
    const only = await server.issue({ scopes: ['keys:write'] })
    assert.equal(
      (await server.call('POST', '/v1/keys', { key: only.key, body: {} })).outcome,
      '400 invalid_request',
    )
    assert.equal((await server.call('POST', '/v1/keys', { body: {} })).outcome, '403 missing_scope')
  })

  test("another project's keys are not there, except for operators", async () => {
    await using server = await testServer()
    const other = await server.issue({ project: 'other', scopes: ['keys:read', 'keys:write'] })
    const operator = await server.issue({ scopes: SCOPES })
    const theirs = server.key.id
    for (const [method, path, nowhere] of [
      ['GET', `/v1/keys/${theirs}`, `/v1/keys/${NO_KEY}`],
      ['DELETE', `/v1/keys/${theirs}`, `/v1/keys/${NO_KEY}`],
      ['GET', `/v1/keys?project_id=${server.key.project_id}`, `/v1/keys?project_id=${NO_PROJECT}`],
      ['GET', `/v1/projects/${server.key.project_id}`, `/v1/projects/${NO_PROJECT}`],
    ] as const) {
      const answer = await server.call(method, path, { key: other.key })
      const never = await server.call(method, nowhere, { key: other.key })
      assert.equal(answer.status, 404, path)
      assert.equal(answer.text, never.text)
    }
    const into = await server.call('POST', '/v1/keys', {
      key: other.key,
      body: { project_id: server.key.project_id },
    })
    assert.equal(into.outcome, '404 project_not_found')
    assert.deepEqual((await server.call('GET', '/v1/keys', { key: other.key })).ids, [other.id])

    const all = await server.call('GET', '/v1/keys', { key: operator.key })
    assert.deepEqual(all.ids, [operator.id, other.id, theirs])
    const some = await server.call('GET', `/v1/keys?project_id=${other.project_id}&limit=1`, {
      key: operator.key,
    })
    assert.deepEqual(some.ids, [other.id])
    const made = await server.call('POST', '/v1/keys', {
      key: operator.key,
      body: { project_id: other.project_id, scopes: ['files:read'] },
    })
    assert.equal(made.json.project, 'other')
  })

  test('no key is made where this process does not know the plan of the project, with or without a cap', async () => {
    await using server = await testServer()
    const operator = await server.issue({ scopes: ['operator', 'files:read'] })
    const { project_id } = await server.issue({ project: 'other', plan: 'gone' })
    const limit = { metric: 'requests', amount: 5, window: 'day' }
    for (const more of [{}, { limit }]) {
      const body = { project_id, scopes: ['files:read'], ...more }
      const answer = await server.call('POST', '/v1/keys', { key: operator.key, body })
      assert.equal(answer.outcome, '503 service_unavailable')
      assert.match(JSON.stringify(answer.json), /does not know the plan of the project, `gone`/)
    }
  })

  test('a key of an operator is revoked by operators alone', async () => {
    await using server = await testServer()
    const { key } = await server.issue({ scopes: ['keys:write'] })
    const operator = await server.issue({ scopes: ['operator'] })
    const path = `/v1/keys/${operator.id}`
    assert.equal((await server.call('DELETE', path, { key })).outcome, '403 missing_scope')
    assert.equal((await server.call('DELETE', path, { key: operator.key })).outcome, '200')
  })
})

describe('projects', () => {
  test('operators make projects and change their plans; others see their own', async () => {
    await using server = await testServer()
    const { key } = await server.issue({ scopes: SCOPES })
    const made = await server.call('POST', '/v1/projects', { key, body: { name: 'research' } })
    assert.deepEqual([made.json.name, made.json.plan], ['research', 'payg'])
    assert.ok('open_batches' in object(made.json.quotas))
    const changed = await server.call('POST', `/v1/projects/${made.id}`, {
      key,
      body: { plan: 'enterprise' },
    })
    assert.equal(changed.json.plan, 'enterprise')
    assert.deepEqual((await server.call('GET', `/v1/projects/${made.id}`, { key })).json, changed.json)
    assert.deepEqual((await server.call('GET', '/v1/projects', { key })).ids, [
      made.id,
      server.key.project_id,
    ])
    assert.deepEqual((await server.call('GET', '/v1/projects')).ids, [server.key.project_id])

    for (const [path, body] of [
      ['/v1/projects', { name: '' }],
      ['/v1/projects', { name: 'x', plan: 'free' }],
      [`/v1/projects/${made.id}`, { plan: 'free' }],
      [`/v1/projects/${made.id}`, { name: 'y' }],
    ] as const)
      assert.equal((await server.call('POST', path, { key, body })).outcome, '400 invalid_request')
    const same = await server.call('POST', '/v1/projects', { key, body: { name: 'research' } })
    assert.equal(same.outcome, '409 project_exists')
    const nowhere = await server.call('POST', `/v1/projects/${NO_PROJECT}`, { key, body: { plan: 'payg' } })
    assert.equal(nowhere.outcome, '404 project_not_found')
    assert.equal(
      (await server.call('POST', '/v1/projects', { body: { name: 'x' } })).outcome,
      '403 missing_scope',
    )
  })
})
