// The console behind a real nginx with the configuration that deploy/ has, which asks a stand-in for oauth2-proxy who
// the browser's user is.
import assert from 'node:assert/strict'

import { existsSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import { type TestContext, test } from 'node:test'
import { freePort } from '../../src/engines/engine-access.ts'
import { folderOf, NGINX, startNginx } from '../fakes/programs.ts'
import { listen } from '../support/listen.ts'
import { testServer } from '../support/test-server.ts'

const CONF = new URL('../../deploy/sign-in/nginx.conf', import.meta.url)

/** Knows people by their cookie. */
const PEOPLE: Readonly<Record<string, { email: string; groups: string }>> = {
  'sid=alice': { email: 'alice@example.com', groups: 'staff,platform' },
  'sid=bob': { email: 'bob@example.com', groups: 'staff' },
}

async function oauth2Proxy(t: TestContext): Promise<number> {
  const server = createServer((request, response) => {
    const person = PEOPLE[request.headers.cookie ?? '']
    if (request.url !== '/oauth2/auth')
      response.writeHead(200).end(`${request.url} leads to ${request.headers['x-auth-request-redirect']}`)
    else if (!person) response.writeHead(401).end()
    else
      response
        .writeHead(202, { 'x-auth-request-email': person.email, 'x-auth-request-groups': person.groups })
        .end()
  })
  const { port, close } = await listen(server)
  t.after(close)
  return port
}

async function nginx(t: TestContext, offpeak: number, proxy: number): Promise<string> {
  const folder = await folderOf(t)
  const port = await freePort()
  const shipped = await readFile(CONF, 'utf8')
  const conf = shipped
    .replace('127.0.0.1:8080', `127.0.0.1:${offpeak}`)
    .replace('server 127.0.0.1:4180', `server 127.0.0.1:${proxy}`)
    .replace('listen 8443', `listen 127.0.0.1:${port}`)
  await startNginx(t, folder, conf, port)
  return `http://127.0.0.1:${port}`
}

test('nginx and oauth2-proxy sign people in to the console', {
  skip: existsSync(NGINX) ? false : 'nginx is not installed',
}, async (t) => {
  await using server = await testServer({
    signInProxy: {
      header: 'x-auth-request-email',
      groups_header: 'x-auth-request-groups',
      from: ['127.0.0.1'],
      groups: new Map([
        ['platform', { project: 'default', scopes: ['batches:read', 'limits:read', 'requests:read'] }],
      ]),
      sign_out: '/oauth2/sign_out',
    },
  })
  const url = await nginx(t, server.port, await oauth2Proxy(t))
  const get = (path: string, headers: Record<string, string>): Promise<Response> =>
    fetch(`${url}${path}`, { headers, redirect: 'manual' })

  const stranger = await get('/console/batches/compare?a=one&b=two', {})
  assert.equal(stranger.status, 403)
  assert.equal(await stranger.text(), '/oauth2/sign_in leads to /console/batches/compare?a=one&b=two')

  const alice = await get('/console/session', { cookie: 'sid=alice' })
  assert.equal(Object(await alice.json()).person, 'alice@example.com')
  const page = await get('/console/batches', { cookie: 'sid=alice' })
  assert.match(await page.text(), /data-cookie="yes"/)

  // What a browser sends under the names of the proxy's headers is replaced; so is a key, which goes another way.
  const forged = { 'X-Auth-Request-Email': 'root@example.com', 'X-Auth-Request-Groups': 'platform' }
  const bob = await get('/console/session', { cookie: 'sid=bob', ...forged })
  assert.equal(bob.status, 403)
  assert.match(await bob.text(), /signed in as bob@example.com, but none of your groups/)
  assert.equal((await get('/v1/batches', forged)).status, 403)
  const byKey = { cookie: 'sid=bob', authorization: `Bearer ${server.key.key}` }
  assert.equal((await get('/v1/batches', byKey)).status, 403)

  const made = await fetch(`${url}/v1/limits`, {
    method: 'POST',
    headers: { cookie: 'sid=alice', 'x-offpeak-console': '1', 'content-type': 'application/json' },
    body: JSON.stringify({ scope: 'project', metric: 'tokens', amount: 5, window: 'day' }),
  })
  assert.equal(made.status, 200)
  const record = await server.call('GET', `/v1/requests/${made.headers.get('x-service-request-id')}`)
  assert.equal(record.json.person, 'alice@example.com')
})
