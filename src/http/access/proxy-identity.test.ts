import assert from 'node:assert/strict'
import { connect } from 'node:net'
import { text } from 'node:stream/consumers'
import { describe, test } from 'node:test'
import { type Answer, type TestServer, testServer } from '../../../test/support/test-server.ts'
import { PROJECT_SCOPES } from '../../domain/api-key.ts'
import { revokeKey } from '../../store/projects.ts'
import { ProxyIdentity, type SignInProxy } from './proxy-identity.ts'

const RULES: SignInProxy = {
  header: 'x-email',
  groups_header: 'x-groups',
  from: ['127.0.0.1'],
  groups: new Map([
    ['platform', { project: 'default', scopes: ['batches:read', 'limits:read', 'requests:read'] }],
    ['readers', { project: 'readers', scopes: ['batches:read', 'requests:read', 'keys:write', 'keys:read'] }],
  ]),
  sign_out: '/oauth2/sign_out',
}
const ALICE = { 'x-email': 'alice@example.com', 'x-groups': 'staff, platform' }
const CONSOLE = { 'x-offpeak-console': '1' }
const LIMIT = { scope: 'project', metric: 'tokens', amount: 5, window: 'day' }

function call(
  server: TestServer,
  method: string,
  path: string,
  headers: Record<string, string>,
  body?: object,
): Promise<Answer> {
  return server.call(method, path, { key: null, headers, body })
}

const who = (server: TestServer, headers: Record<string, string>): Promise<Answer> =>
  call(server, 'GET', '/console/session', headers)

describe('a person signed in by a trusted proxy', () => {
  test('has the project and scopes of the first group that is configured, and no session', async () => {
    await using server = await testServer({ signInProxy: RULES })
    const { json } = await who(server, { ...ALICE, 'x-groups': 'readers,platform' })
    assert.deepEqual(json.project, { id: server.key.project_id, name: 'default', plan: 'payg' })
    assert.deepEqual(json.scopes, ['batches:read', 'limits:read', 'requests:read'])
    assert.deepEqual([json.person, json.sign_out], ['alice@example.com', '/oauth2/sign_out'])
    assert.equal(json.expires_at, null)
    const other = await who(server, { ...ALICE, 'x-groups': 'readers' })
    assert.equal(Object(other.json.project).name, 'readers', 'a project that was not there is made')
    assert.notEqual(other.json.api_key_id, json.api_key_id)
    const page = await fetch(`${server.url}/console`, { headers: ALICE })
    assert.match(await page.text(), /data-cookie="yes"/)
    const link = await call(server, 'POST', '/console/links', { ...ALICE, ...CONSOLE })
    assert.equal(link.outcome, '403 missing_scope')
    const rows = await server.deps.store.read.selectFrom('console_sessions').selectAll().execute()
    assert.deepEqual(rows, [])
  })

  test('everybody is in the group *, with the scopes of a key that names none', async () => {
    const groups = new Map([['*', { project: 'default', scopes: null }]])
    await using server = await testServer({ signInProxy: { ...RULES, groups_header: null, groups } })
    const { json } = await who(server, { 'x-email': 'Zo\u00eb' })
    assert.deepEqual(json.scopes, [...PROJECT_SCOPES])
    // Node and fetch send and read headers as Latin-1, proxies as UTF-8.
    const bytes = Buffer.from('Zo\u00eb').toString('latin1')
    assert.equal((await who(server, { 'x-email': bytes })).json.person, 'Zo\u00eb')
  })

  test('is signed in by nobody where one of the headers comes twice', async () => {
    await using server = await testServer({ signInProxy: RULES })
    const socket = connect(server.port, '127.0.0.1')
    const twice = 'x-groups: readers\r\nx-groups: platform\r\n'
    socket.write(
      `GET /v1/models HTTP/1.1\r\nhost: x\r\nx-email: a@example.com\r\n${twice}connection: close\r\n\r\n`,
    )
    assert.match(await text(socket), /^HTTP\/1\.1 401 /)
  })

  test('loses at the next call what the groups no longer give, and gets what they give now', async () => {
    await using server = await testServer({ signInProxy: RULES })
    const path = '/v1/batches'
    assert.equal((await call(server, 'GET', path, ALICE)).outcome, '200')
    const out = await call(server, 'GET', path, { ...ALICE, 'x-groups': 'staff' })
    assert.equal(out.outcome, '403 missing_scope')
    assert.match(String(out.error.message), /signed in as alice@example.com, but none of your groups/)
    const groups = new Map([['platform', { project: 'default', scopes: ['usage:read' as const] }]])
    const { store } = server.deps
    await using next = await testServer({ ...server.deps, store, signInProxy: { ...RULES, groups } })
    assert.deepEqual((await who(next, ALICE)).json.scopes, ['usage:read'])
    assert.equal((await call(next, 'GET', path, ALICE)).outcome, '403 missing_scope')
  })

  test('is named by audit records, and can be revoked like a key without counting as one', async () => {
    await using server = await testServer({ signInProxy: RULES })
    const made = await call(server, 'POST', '/v1/limits', { ...ALICE, ...CONSOLE }, LIMIT)
    assert.equal(made.outcome, '200')
    const { json: record } = await server.call('GET', `/v1/requests/${made.request_id}`)
    assert.deepEqual([record.person, record.path], ['alice@example.com', '/v1/limits'])
    const { data } = await server.call('GET', '/v1/requests?reads=false')
    assert.deepEqual(
      data.map(({ person, api_key_id }) => [person, api_key_id]),
      [['alice@example.com', record.api_key_id]],
    )
    const ofKey = await server.call('GET', '/v1/requests?reads=true')
    assert.ok(ofKey.data.every((one) => one.api_key_id !== server.key.id || !('person' in one)))
    const quotas = await server.call('GET', '/v1/quotas')
    assert.equal(Object(Object(quotas.json.quotas).keys).used, 1)
    const { data: keys } = await server.call('GET', '/v1/keys')
    assert.deepEqual(
      keys.map(({ name }) => name),
      ['alice@example.com', null],
    )
    await server.deps.store.write((tx) => revokeKey(tx, String(record.api_key_id), server.clock.now()))
    const revoked = await who(server, ALICE)
    assert.equal(revoked.outcome, '401 invalid_api_key')
    assert.match(String(revoked.error.message), /access of alice@example.com to the project was revoked/)
  })
})

describe('a header of the proxy', () => {
  test('is ignored on connections from elsewhere, whatever X-Forwarded-For says', async () => {
    await using server = await testServer({ signInProxy: { ...RULES, from: ['10.0.0.0/8', '::1'] } })
    const claims: Record<string, string>[] = [
      {},
      { 'x-forwarded-for': '10.0.0.1' },
      { forwarded: 'for=10.0.0.1' },
      CONSOLE,
    ]
    for (const more of claims)
      assert.equal((await who(server, { ...ALICE, ...more })).outcome, '401 invalid_api_key')
    const page = await fetch(`${server.url}/console`, { headers: ALICE })
    assert.match(await page.text(), /data-cookie="no"/)
  })

  test('signs nobody in where it is given twice, lists several names, or is none of text', async () => {
    await using server = await testServer({ signInProxy: RULES })
    const identity = new ProxyIdentity(RULES, server.deps.store, server.clock)
    const refused = (names: string[]): void => {
      const received = { 'x-email': names, 'x-groups': ['platform'] }
      assert.equal(
        identity.personOf({ socket: { remoteAddress: '127.0.0.1' }, headersDistinct: received }),
        null,
        JSON.stringify(names),
      )
    }
    for (const names of [[], [''], ['a', 'b'], ['a, b'], ['a;b'], ['\u0000'], ['x'.repeat(201)]])
      refused(names)
    for (const hidden of ['\u202ea', 'a\u2028b']) refused([Buffer.from(hidden).toString('latin1')])
  })

  test('counts by the address of the connection, IPv4 and IPv6', async () => {
    await using server = await testServer()
    const rules = { ...RULES, from: ['10.1.0.0/16', 'fd00::/8', '192.0.2.7'] }
    const identity = new ProxyIdentity(rules, server.deps.store, server.clock)
    const nameAt = (remoteAddress: string | undefined): string | null =>
      identity.personOf({ socket: { remoteAddress }, headersDistinct: { 'x-email': ['a'] } })?.name ?? null
    for (const address of ['10.1.2.3', '::ffff:10.1.2.3', 'fd12::1', '192.0.2.7'])
      assert.equal(nameAt(address), 'a', address)
    for (const address of ['10.2.0.1', '::ffff:10.2.0.1', 'fe80::1', '192.0.2.8', ''])
      assert.equal(nameAt(address), null, address)
    assert.equal(nameAt(undefined), null, 'a Unix socket, or a connection that has ended')
  })

  test('changes nothing without the header that only the console sends', async () => {
    await using server = await testServer({ signInProxy: RULES })
    const forged = await call(server, 'POST', '/v1/limits', ALICE, LIMIT)
    assert.equal(forged.outcome, '403 cross_site_request')
    assert.equal((await server.call('GET', '/v1/limits')).data.length, 0)
  })

  test('gives way to an API key, not to other words in Authorization, and wins over a session', async () => {
    await using server = await testServer({ signInProxy: RULES })
    const signedIn = await server.call('POST', '/console/session', {
      key: null,
      body: { api_key: server.key.key },
      headers: CONSOLE,
    })
    const cookie = (signedIn.headers.get('set-cookie') ?? '').split(';')[0] ?? ''
    const keyOf = async (headers: Record<string, string>): Promise<unknown> =>
      (await who(server, headers)).json.api_key_id
    const alice = await keyOf({ ...ALICE, authorization: 'Basic YWxpY2U6' })
    assert.notEqual(alice, server.key.id)
    assert.equal(await keyOf({ ...ALICE, authorization: `Bearer ${server.key.key}` }), server.key.id)
    assert.equal(await keyOf({ ...ALICE, cookie }), alice)
    assert.equal(await keyOf({ ...ALICE, cookie, 'x-groups': '' }), server.key.id)
    const wrong = await who(server, { ...ALICE, authorization: `Bearer ${server.key.key}x` })
    assert.equal(wrong.outcome, '200', 'what is no key of ours is no key')
  })

  test('has a stream of live updates that goes on until the access is revoked', async () => {
    await using server = await testServer({ signInProxy: RULES })
    const { json } = await who(server, ALICE)
    const headers = { ...ALICE, accept: 'text/event-stream' }
    const stream = (await fetch(`${server.url}/v1/live`, { headers })).body!.pipeThrough(
      new TextDecoderStream(),
    )
    const pieces = stream[Symbol.asyncIterator]()
    assert.match((await pieces.next()).value ?? '', /^event: update/)
    for (const _ of 'ab') {
      // Until it looks again, and says that it is there.
      const next = pieces.next()
      for (let s = 0; s < 20; s++) await server.clock.advance(1000)
      assert.equal((await next).value, ': still here\n\n')
    }
    await server.deps.store.write((tx) => revokeKey(tx, String(json.api_key_id), server.clock.now()))
    const end = pieces.next()
    for (let s = 0; s < 3; s++) await server.clock.advance(1000)
    assert.equal((await end).done, true)
  })

  test('is nothing where no proxy is configured', async () => {
    await using server = await testServer()
    assert.equal((await who(server, ALICE)).outcome, '401 invalid_api_key')
  })
})
