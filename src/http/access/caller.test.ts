import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { Registry } from 'prom-client'
import { testServer } from '../../../test/support/test-server.ts'
import { openapiDocument } from '../routes/openapi.ts'
import { urlOfCall } from './caller.ts'

describe('a call in the form of Azure OpenAI', () => {
  test('is the call of the same endpoint below /v1, without the version of the API', () => {
    for (const [url, routed] of [
      ['/openai/files', '/v1/files'],
      ['/openai/files?api-version=2024-10-21', '/v1/files'],
      ['/openai/v1/batches?limit=5&api-version=preview&after=x', '/v1/batches?limit=5&after=x'],
      ['/openai/batches/batch_1/cancel?api-version=1', '/v1/batches/batch_1/cancel'],
      ['/openai/deployments/gpt-4o/chat/completions?api-version=1', '/v1/chat/completions'],
    ])
      assert.equal(urlOfCall({ url, headers: {} }), routed)
    for (const url of [
      '/v1/files?api-version=1',
      '/openai',
      '/openai/keys',
      '/openai/v1/limits',
      '/x/openai/files',
    ])
      assert.equal(urlOfCall({ url, headers: {} }), url)
  })

  test('is authenticated by `api-key`, needs the same scopes, and is recorded and counted', async () => {
    const metrics = new Registry()
    await using server = await testServer({ metrics, requests_per_minute: 3 })
    const { key } = await server.issue({ scopes: ['files:read'] })
    const call = (method: string, path: string, apiKey: string) =>
      server.call(method, `${path}?api-version=2024-10-21`, { key: null, headers: { 'api-key': apiKey } })
    const listed = await call('GET', '/openai/files', key)
    assert.deepEqual([listed.outcome, listed.headers.get('x-ratelimit-remaining-requests')], ['200', '2'])
    assert.equal((await call('GET', '/openai/batches', key)).outcome, '403 missing_scope')
    assert.equal((await call('GET', '/openai/files', `${key}x`)).outcome, '401 invalid_api_key')
    assert.equal((await call('DELETE', '/openai/files', key)).outcome, '405 method_not_supported')
    assert.equal((await call('GET', '/openai/files', key)).outcome, '429 rate_limit_exceeded')
    const record = await server.call('GET', `/v1/requests/${listed.request_id}`)
    assert.deepEqual([record.json.path, record.json.status_code], ['/openai/files', 200])
    assert.match(await metrics.metrics(), /route="\/v1\/files",status="200"/)
    assert.doesNotMatch(await metrics.metrics(), /openai/)
    assert.doesNotMatch(JSON.stringify(openapiDocument(server.app.routeTable.all).paths), /\/openai\//)
  })

  test('is answered in the form of OpenAI, unless it says otherwise', async () => {
    await using server = await testServer()
    const { id } = await server.upload()
    const get = async (headers: Record<string, string>) =>
      (await server.call('GET', `/openai/files/${id}`, { headers })).json.status
    assert.deepEqual([await get({}), await get({ 'x-offpeak-compat': 'none' })], ['uploaded', 'pending'])
  })
})

test("calls of Anthropic's clients bring their key in a header of theirs, under their paths alone", () => {
  const keyOf = (url: string, headers: Record<string, string>) => {
    urlOfCall({ url, headers })
    return headers.authorization
  }
  assert.equal(keyOf('/v1/messages/batches', { 'x-api-key': 'k' }), 'Bearer k')
  assert.equal(keyOf('/v1/messages/batches', { 'x-api-key': 'k', authorization: 'Bearer own' }), 'Bearer own')
  for (const url of ['/v1/batches', '/v1/messagesx', '/v1/files?x=/v1/messages'])
    assert.equal(keyOf(url, { 'x-api-key': 'k' }), undefined, url)
  const routed = (url: string): string => urlOfCall({ url, headers: {} })
  assert.equal(routed('/v1/messages/batches?beta=true'), '/v1/messages/batches')
  assert.equal(routed('/v1/messages/batches?beta=true&limit=1'), '/v1/messages/batches?limit=1')
})
