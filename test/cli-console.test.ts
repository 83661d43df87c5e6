// The link that a shell makes for a browser, against the real service.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { offpeak, offpeakJson } from './fakes/offpeak.ts'
import { configFor, TestService } from './service.ts'

test('offpeak console prints a link that signs in once', async () => {
  await using service = await TestService.start(configFor('http://127.0.0.1:1/v1'), { worker: false })
  const { out, err, code } = await offpeak(service, 'console', '--no-open')
  assert.equal(code, 0, err)
  assert.match(err, /once, within a minute/)
  const url = new URL(out.trim())
  assert.equal(url.origin + url.pathname, `${service.url}/console`)
  const signIn = () =>
    fetch(`${service.url}/console/session`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'x-offpeak-console': '1' },
      body: JSON.stringify({ link: url.hash.slice('#link='.length) }),
    })
  assert.equal((await signIn()).status, 200)
  assert.equal((await signIn()).status, 401)
  const other = await offpeakJson<{ url: string }>(service, 'console')
  assert.notEqual(other.url, out.trim())
})
