// Calls every endpoint with every kind of key. The cases are generated from the routes, so a new endpoint is covered at
// once.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import fastify from 'fastify'
import { type Answer, type TestServer, testServer } from '../../../test/support/test-server.ts'
import { SCOPES, type Scope } from '../../domain/api-key.ts'
import { ID_PREFIXES, lineRequestId } from '../../domain/ids.ts'
import { revokeKey } from '../../store/projects.ts'
import { type Declared, publicRoute, RouteTable } from '../route.ts'

const NEVER = '0'.repeat(26)

const NO_ID: Record<string, string> = {
  file_id: ID_PREFIXES.file + NEVER,
  batch_id: ID_PREFIXES.batch + NEVER,
  request_id: ID_PREFIXES.request + NEVER,
  limit_id: ID_PREFIXES.limit + NEVER,
  key_id: ID_PREFIXES.key + NEVER,
  project_id: ID_PREFIXES.project + NEVER,
  '*': 'no-such-model',
}

/** Public endpoints that only answer browsers, or need a key in the body. */
const ASKS_FOR_MORE = new Set(['/console/session', '/console/assets/:version/*', '/v1/batch-apis/webhook'])

function fill(url: string, ids: Record<string, string>): string {
  return url.replace(/:(\w+)|\*/g, (text, name) => ids[name ?? text] ?? text)
}

/** One call per method of each endpoint, on objects with these IDs. */
function callsOf({ methods, url }: Declared, ids: Record<string, string>): [string, string][] {
  return methods.map((name) => [name, fill(url, ids)])
}

/** Bodies without which a call is rejected before its object is looked up. */
const BODIES: Record<string, object> = { '/v1/uploads/:upload_id/complete': { part_ids: ['part_1'] } }

function withoutIds(answer: Answer): object {
  const varying = ['date', 'x-service-request-id', 'x-request-id', 'request-id', 'connection', 'keep-alive']
  const headers = [...answer.headers].filter(([name]) => !varying.includes(name))
  return { status: answer.status, text: answer.text.replaceAll(answer.request_id, 'req'), headers }
}

function routesOf(server: TestServer): readonly Declared[] {
  const all = server.app.routeTable.all
  assert.ok(all.length > 12, 'the routes are found')
  return all
}

test('no key, a broken one, one of another region, an unknown and a revoked one: the same 401', async () => {
  await using server = await testServer()
  const { key, id } = await server.issue()
  await server.deps.store.write((tx) => revokeKey(tx, id, server.clock.now()))
  const good = server.key.key
  const refused = {
    revoked: key,
    broken: good.slice(0, -1),
    'of another region': good.replace('opk_local_', 'opk_eu_'),
    unknown: good.replace(server.key.id.slice(4), NEVER),
    'with another secret': good.slice(0, -2) + (good.endsWith('AA') ? 'BB' : 'AA'),
    'no key': 'x',
  }
  const kinds = Object.entries(refused)
  for (const [i, declared] of routesOf(server).entries()) {
    for (const [method, path] of callsOf(declared, NO_ID)) {
      const bare = await server.call(method, path, { key: null })
      if (declared.access === 'public') {
        if (!ASKS_FOR_MORE.has(declared.url)) assert.equal(bare.status, 200, path)
        continue
      }
      assert.equal(bare.status, 401, `${method} ${path}`)
      assert.equal(bare.headers.get('www-authenticate'), 'Bearer')
      // Keys are checked before any endpoint: each kind meets some of them.
      for (const [kind, text] of [kinds[i % kinds.length]!, kinds[(i + 1) % kinds.length]!]) {
        const answer = await server.call(method, path, { key: text })
        assert.deepEqual(withoutIds(answer), withoutIds(bare), `${method} ${path} with a key ${kind}`)
      }
    }
  }
})

test('only the scheme Bearer is accepted, in any case', async () => {
  await using server = await testServer()
  const { key } = server.key
  for (const authorization of [key, `Basic ${key}`, `Bearer  ${key} x`, 'Bearer', `Bearer ${key},${key}`]) {
    const answer = await server.call('GET', '/v1/models', { key: null, headers: { authorization } })
    assert.equal(answer.outcome, '401 invalid_api_key', authorization)
  }
  const answer = await server.call('GET', '/v1/models', {
    key: null,
    headers: { authorization: `bearer ${key}` },
  })
  assert.equal(answer.status, 200)
})

test('a revoked key is rejected at the next call', async () => {
  await using server = await testServer()
  const { key, id } = await server.issue()
  assert.equal((await server.call('GET', '/v1/models', { key })).status, 200)
  await server.deps.store.write((tx) => revokeKey(tx, id, server.clock.now()))
  assert.equal((await server.call('GET', '/v1/models', { key })).status, 401)
})

test('each scope that an endpoint names gives access to it, and all others together do not', async () => {
  await using server = await testServer()
  const keys = new Map<string, string>()
  const keyWith = async (scopes: readonly Scope[]): Promise<string> => {
    const name = scopes.join()
    const key = keys.get(name) ?? (await server.issue({ scopes })).key
    keys.set(name, key)
    return key
  }
  for (const declared of routesOf(server)) {
    const { access } = declared
    if (access === 'public') continue
    const named: readonly Scope[] = access === 'any key' ? SCOPES : access
    const others = SCOPES.filter((scope) => !named.includes(scope))
    for (const [method, path] of callsOf(declared, NO_ID)) {
      for (const scope of named) {
        const answer = await server.call(method, path, { key: await keyWith([scope]) })
        assert.notEqual(answer.status, 403, `${method} ${path} with ${scope}: ${answer.outcome}`)
      }
      if (others.length === 0) continue
      const answer = await server.call(method, path, { key: await keyWith(others) })
      assert.equal(answer.status, 403, `${method} ${path} with ${others}: ${answer.outcome}`)
      if (answer.text === '') continue
      assert.equal(answer.outcome, '403 missing_scope')
      for (const wanted of named) assert.ok(answer.text.includes(wanted))
    }
  }
})

test("the answer for another project's object equals, byte for byte, that for one that never existed", async () => {
  await using server = await testServer()
  const file_id = await server.processedFile()
  const { id: batch_id, request_id } = await server.createBatch(file_id)
  const limit = await server.call('POST', '/v1/limits', {
    body: { scope: 'project', metric: 'tokens', amount: 10, window: 'day' },
  })
  const limit_id = limit.id
  const upload = await server.call('POST', '/v1/uploads', {
    body: { filename: 'in.jsonl', purpose: 'batch', bytes: 10, mime_type: 'application/jsonl' },
  })
  assert.equal(upload.status, 200)
  const scopes = SCOPES.filter((scope) => scope !== 'operator')
  const { key } = await server.issue({ project: 'other', scopes })
  const line = lineRequestId(batch_id, 1)
  const noLine = lineRequestId(NO_ID.batch_id ?? '', 1)
  for (const declared of routesOf(server)) {
    if (!declared.url.includes(':') || declared.access === 'public') continue
    for (const [request, never] of [
      [request_id, NO_ID.request_id],
      [line, noLine],
    ] as const) {
      const theirs = callsOf(declared, {
        ...{ file_id, batch_id, limit_id, request_id: request },
        ...{ upload_id: upload.id, key_id: server.key.id, project_id: server.key.project_id },
      })
      const nowhere = callsOf(declared, { ...NO_ID, request_id: never ?? '' })
      for (const [i, [method, path]] of theirs.entries()) {
        const [, emptyPath] = nowhere[i] ?? ['', '']
        const call = { key, ...(BODIES[declared.url] ? { body: BODIES[declared.url] } : {}) }
        const answer = await server.call(method, path, call)
        const empty = await server.call(method, emptyPath, call)
        const isForOperators: boolean = String(declared.access) === 'operator'
        assert.equal(answer.status, isForOperators ? 403 : 404, `${method} ${path}`)
        assert.deepEqual(withoutIds(answer), withoutIds(empty), `${method} ${path}`)
      }
    }
  }
  for (const [list, id] of [
    ['files', file_id],
    ['batches', batch_id],
    ['limits', limit_id],
  ]) {
    assert.deepEqual((await server.call('GET', `/v1/${list}`, { key })).ids, [])
    const cursor = await server.call('GET', `/v1/${list}?starting_after=${id}`, { key })
    assert.equal(cursor.outcome, '404 cursor_not_found')
  }
  assert.equal((await server.createBatch(file_id, { key })).outcome, '404 file_not_found')
  // The calls of the other project have changed nothing.
  assert.equal((await server.call('GET', `/v1/files/${file_id}`)).status, 200)
  assert.equal((await server.call('GET', `/v1/batches/${batch_id}`)).json.status, 'validating')
})

test('a server with an endpoint without declared access does not start', () => {
  const app = fastify()
  new RouteTable().watch(app)
  assert.throws(() => app.get('/v1/secret', () => 'x'), /does not declare who may use it/)
  publicRoute(app, 'GET /v1/open', { handler: () => 'x' })
})
