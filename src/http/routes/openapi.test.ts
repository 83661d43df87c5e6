import assert from 'node:assert/strict'
import { test } from 'node:test'
import { testServer } from '../../../test/support/test-server.ts'

test('the API page loads everything from this server, and its content security policy allows nothing else', async () => {
  await using server = await testServer()
  const get = async (path: string) => {
    const response = await fetch(server.url + path)
    assert.equal(response.status, 200, path)
    return { headers: response.headers, text: await response.text() }
  }
  const page = await get('/docs')
  assert.match(page.headers.get('content-type') ?? '', /^text\/html/)
  assert.match(page.headers.get('content-security-policy') ?? '', /^default-src 'none'; script-src 'self';/)
  assert.doesNotMatch(page.text, /https?:|<script>|\bon\w+=/)
  const loaded = [...page.text.matchAll(/(?:src|href)="([^"]+)"/g)].map(([, path = '']) => path)
  assert.deepEqual(loaded.sort(), [
    '/docs/start.js',
    '/docs/swagger-ui-bundle.js',
    '/docs/swagger-ui.css',
    '/openapi.json',
  ])
  for (const path of loaded) assert.ok((await get(path)).text.length > 100, path)
  assert.match((await get('/docs/swagger-ui-bundle.js')).headers.get('content-type') ?? '', /javascript/)
})
