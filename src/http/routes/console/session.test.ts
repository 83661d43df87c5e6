import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { type Answer, type TestServer, testServer } from '../../../../test/support/test-server.ts'
import { revokeKey } from '../../../store/projects.ts'

const CONSOLE: Record<string, string> = { 'x-offpeak-console': '1' }
const DAY_MS = 24 * 3_600_000

/** The `name=value` of the cookie that an answer sets. */
function cookieOf(answer: Answer): string {
  return (answer.headers.get('set-cookie') ?? '').split(';')[0] ?? ''
}

async function signIn(server: TestServer, key = server.key.key): Promise<string> {
  const answer = await server.call('POST', '/console/session', {
    key: null,
    body: { api_key: key },
    headers: CONSOLE,
  })
  assert.equal(answer.outcome, '200')
  return cookieOf(answer)
}

describe('signing in to the console', () => {
  test('a key becomes a session that reads and changes what the key may', async () => {
    await using server = await testServer()
    const answer = await server.call('POST', '/console/session', {
      key: null,
      body: { api_key: server.key.key },
      headers: CONSOLE,
    })
    assert.equal(answer.outcome, '200')
    assert.equal(answer.json.api_key_id, server.key.id)
    assert.deepEqual(answer.json.project, { id: server.key.project_id, name: 'default', plan: 'payg' })
    const attributes = (answer.headers.get('set-cookie') ?? '').split('; ').slice(1)
    assert.deepEqual(attributes, ['Path=/', 'Max-Age=604800', 'HttpOnly', 'SameSite=Strict'])

    const cookie = cookieOf(answer)
    const who = await server.call('GET', '/console/session', { key: null, headers: { cookie } })
    assert.deepEqual(who.json, answer.json)
    const limit = { scope: 'project', metric: 'tokens', amount: 5, window: 'day' }
    const made = await server.call('POST', '/v1/limits', {
      key: null,
      body: limit,
      headers: { cookie, ...CONSOLE },
    })
    assert.equal(made.outcome, '200')
    const read = await server.call('GET', `/v1/limits/${made.id}`, { key: null, headers: { cookie } })
    assert.equal(read.outcome, '200')
  })

  test('over TLS the cookie is secure', async () => {
    await using server = await testServer()
    const answer = await server.call('POST', '/console/session', {
      key: null,
      body: { api_key: server.key.key },
      headers: { ...CONSOLE, origin: 'https://offpeak.example.com' },
    })
    assert.match(answer.headers.get('set-cookie') ?? '', /; Secure$/)
  })

  test('a broken or revoked key, and neither key nor link, sign nobody in', async () => {
    await using server = await testServer()
    const { key, id } = await server.issue()
    await server.deps.store.write((tx) => revokeKey(tx, id, server.clock.now()))
    for (const api_key of [key, 'x', '', `${server.key.key}x`]) {
      const answer = await server.call('POST', '/console/session', {
        key: null,
        body: { api_key },
        headers: CONSOLE,
      })
      assert.equal(answer.outcome, '401 invalid_api_key', api_key)
      assert.equal(answer.headers.get('set-cookie'), null)
    }
    for (const body of [{}, { api_key: server.key.key, link: 'opc_x' }]) {
      const answer = await server.call('POST', '/console/session', { key: null, body, headers: CONSOLE })
      assert.equal(answer.outcome, '400 invalid_request')
    }
  })

  test('signing in ends the session that the browser had; a link that has expired does not', async () => {
    await using server = await testServer()
    const old = await signIn(server)
    const { json: link } = await server.call('POST', '/console/links')
    const use = (token: unknown) =>
      server.call('POST', '/console/session', {
        key: null,
        body: { link: token },
        headers: { ...CONSOLE, cookie: old },
      })
    const read = (cookie: string) =>
      server.call('GET', '/console/session', { key: null, headers: { cookie } })
    assert.equal((await use(`${link.token}x`)).outcome, '401 invalid_api_key')
    assert.equal((await read(old)).outcome, '200')
    const signedIn = await use(link.token)
    assert.equal(signedIn.outcome, '200')
    assert.equal((await read(old)).outcome, '401 invalid_api_key')
    assert.equal((await read(cookieOf(signedIn))).outcome, '200')
  })

  test('without its header nothing is changed: not by a cookie, and nobody is signed in', async () => {
    await using server = await testServer()
    const cookie = await signIn(server)
    const file = await server.upload()
    const headersSent: Record<string, string>[] = [{}, { 'x-offpeak-console': '0' }]
    for (const header of headersSent) {
      const headers = { cookie, ...header }
      const answer = await server.call('DELETE', `/v1/files/${file.id}`, { key: null, headers })
      assert.equal(answer.status, 403)
      assert.equal(answer.error.code, 'cross_site_request')
    }
    assert.equal((await server.call('GET', `/v1/files/${file.id}`)).outcome, '200')
    const forged = await server.call('POST', '/console/session', {
      key: null,
      body: { api_key: server.key.key },
    })
    assert.equal(forged.outcome, '403 cross_site_request')
  })

  test('a revoked key ends its sessions with the next call', async () => {
    await using server = await testServer()
    const { key, id } = await server.issue()
    const cookie = await signIn(server, key)
    assert.equal((await server.call('GET', '/v1/batches', { key: null, headers: { cookie } })).outcome, '200')
    await server.deps.store.write((tx) => revokeKey(tx, id, server.clock.now()))
    const ended = await server.call('GET', '/v1/batches', { key: null, headers: { cookie } })
    assert.equal(ended.outcome, '401 invalid_api_key')
  })

  test('a session ends by signing out, and after a week', async () => {
    await using server = await testServer()
    const [first, second] = [await signIn(server), await signIn(server)]
    const out = await server.call('DELETE', '/console/session', {
      key: null,
      headers: { cookie: first, ...CONSOLE },
    })
    assert.deepEqual(out.json, { object: 'console_session', deleted: true })
    assert.match(out.headers.get('set-cookie') ?? '', /^offpeak_console=; Path=\/; Max-Age=0;/)
    const after = await server.call('GET', '/console/session', { key: null, headers: { cookie: first } })
    assert.equal(after.outcome, '401 invalid_api_key')
    const other = await server.call('GET', '/console/session', { key: null, headers: { cookie: second } })
    assert.equal(other.outcome, '200')
    await server.clock.advance(7 * DAY_MS)
    const late = await server.call('GET', '/console/session', { key: null, headers: { cookie: second } })
    assert.equal(late.outcome, '401 invalid_api_key')
    // The next sign-in removes expired sessions.
    await signIn(server)
    const rows = await server.deps.store.read.selectFrom('console_sessions').selectAll().execute()
    assert.equal(rows.length, 1)
  })

  test('the page of a browser that is signed in says who that is, and loads at once what its script imports', async () => {
    await using server = await testServer()
    const { key } = await server.issue({ project: '</script><b>' })
    const cookie = await signIn(server, key)
    const pageFor = async (headers: Record<string, string>): Promise<string> =>
      (await server.call('GET', '/console', { key: null, headers })).text
    const who = await server.call('GET', '/console/session', { key: null, headers: { cookie } })
    const page = await pageFor({ cookie })
    const [, known = ''] = /<script type="application\/json" id="session">(.*?)<\/script>/.exec(page) ?? []
    assert.deepEqual(JSON.parse(known), who.json)
    for (const other of ['', `${cookie}x`])
      assert.doesNotMatch(await pageFor({ cookie: other }), /id="session"/)
    const [, script = ''] = /<script type="module" src="(.*?)"/.exec(page) ?? []
    const { text } = await server.call('GET', `/${script}`, { key: null })
    const imported = [...text.matchAll(/(?:from|import)"\.\/(.*?)"/g)].map(([, path]) => path)
    const preloaded = [...page.matchAll(/<link rel="modulepreload" href="(.*?)">/g)].map(
      ([, path = '']) => path,
    )
    assert.ok(imported.length > 0)
    assert.deepEqual(
      preloaded.map((path) => path.split('/').at(-1)),
      imported,
    )
    for (const path of preloaded)
      assert.equal((await server.call('GET', `/${path}`, { key: null })).status, 200)
  })

  test('a one-time link signs in once, within a minute, and only a key makes one', async () => {
    await using server = await testServer()
    const link = await server.call('POST', '/console/links')
    assert.equal(link.outcome, '200')
    assert.equal(link.json.path, `/console#link=${link.json.token}`)
    const use = (token: unknown) =>
      server.call('POST', '/console/session', { key: null, body: { link: token }, headers: CONSOLE })
    const used = await use(link.json.token)
    assert.equal(used.outcome, '200')
    assert.equal(used.json.api_key_id, server.key.id)
    assert.equal((await use(link.json.token)).outcome, '401 invalid_api_key')
    const late = await server.call('POST', '/console/links')
    await server.clock.advance(60_000)
    assert.equal((await use(late.json.token)).outcome, '401 invalid_api_key')
    // A session's token is not accepted as a link's, nor the other way round.
    const cookie = cookieOf(used)
    assert.equal((await use(cookie.split('=')[1])).outcome, '401 invalid_api_key')
    const bySession = await server.call('POST', '/console/links', {
      key: null,
      headers: { cookie, ...CONSOLE },
    })
    assert.equal(bySession.outcome, '403 missing_scope')
  })

  test('a link of a revoked key signs nobody in', async () => {
    await using server = await testServer()
    const { key, id } = await server.issue()
    const link = await server.call('POST', '/console/links', { key })
    await server.deps.store.write((tx) => revokeKey(tx, id, server.clock.now()))
    const answer = await server.call('POST', '/console/session', {
      key: null,
      body: { link: link.json.token },
      headers: CONSOLE,
    })
    assert.equal(answer.outcome, '401 invalid_api_key')
  })

  test('no record of a call holds a token', async () => {
    await using server = await testServer()
    const link = await server.call('POST', '/console/links')
    const record = await server.call('GET', `/v1/requests/${link.request_id}`)
    assert.deepEqual(record.json.response, {
      ...link.json,
      token: '[secret]',
      path: '/console#link=[secret]',
    })
    const cookie = await signIn(server)
    const rows = await server.deps.store.read.selectFrom('http_requests').selectAll().execute()
    assert.ok(
      rows.some(({ path }) => path === '/console/session'),
      'signing in is recorded',
    )
    assert.ok(!JSON.stringify(rows).includes(cookie.split('=')[1] ?? ''))
  })

  test('a key has so many sessions and links; the oldest end', async () => {
    await using server = await testServer()
    const first = await signIn(server)
    for (let i = 0; i < 25; i++) {
      await server.clock.advance(1)
      await signIn(server)
      await server.call('POST', '/console/links')
    }
    const { key, id } = await server.issue()
    await server.call('POST', '/console/links', { key })
    const rows = async (): Promise<string[]> =>
      (await server.deps.store.read.selectFrom('console_sessions').selectAll().execute()).map(
        (row) => `${row.kind} of ${row.key_id === id ? 'another' : 'one'}`,
      )
    const counts = Object.groupBy(await rows(), (row) => row)
    assert.deepEqual(
      Object.entries(counts)
        .map(([kind, all]) => [kind, all?.length])
        .sort(),
      [
        ['link of another', 1],
        ['link of one', 20],
        ['session of one', 20],
      ],
    )
    const ended = await server.call('GET', '/console/session', { key: null, headers: { cookie: first } })
    assert.equal(ended.outcome, '401 invalid_api_key')
    await server.deps.store.write((tx) => revokeKey(tx, server.key.id, server.clock.now()))
    assert.deepEqual(await rows(), ['link of another'], 'they end with their key')
  })

  test('signing in with a token that is none writes nothing', async () => {
    await using server = await testServer()
    let writes = 0
    const { store } = server.deps
    const write: typeof store.write = (change) => {
      writes++
      return store.write(change)
    }
    await using watched = await testServer({ ...server.deps, store: { ...store, write } })
    writes = 0
    const none = { key: null, body: { link: `opc_${'x'.repeat(43)}` }, headers: CONSOLE }
    assert.equal((await watched.call('POST', '/console/session', none)).outcome, '401 invalid_api_key')
    const noKey = { ...none, body: { api_key: 'x' } }
    assert.equal((await watched.call('POST', '/console/session', noKey)).outcome, '401 invalid_api_key')
    assert.equal(writes, 0)
  })

  test('/ leads browsers to the console, and tells others where everything is', async () => {
    await using server = await testServer()
    const browser = await fetch(server.url, { redirect: 'manual', headers: { accept: 'text/html,*/*' } })
    assert.equal(browser.status, 302)
    assert.equal(browser.headers.get('location'), 'console')
    const { json } = await server.call('GET', '/', { key: null })
    for (const path of ['reference', 'openapi', 'console'].map((name) => String(json[name])))
      assert.equal((await server.call('GET', path, { key: null })).status, 200, path)
  })
})
