import assert from 'node:assert/strict'
import { test } from 'node:test'
import { testServer } from './test-server.ts'

test('each key may send so many calls a minute, whatever they are', async () => {
  await using server = await testServer({ requests_per_minute: 3 })
  const first = await server.call('GET', '/v1/models')
  assert.equal(first.headers.get('x-ratelimit-limit-requests'), '3')
  assert.equal(first.headers.get('x-ratelimit-remaining-requests'), '2')
  assert.match(first.headers.get('x-ratelimit-reset-requests') ?? '', /^\d+s$/)
  await server.call('GET', '/v1/nowhere')
  await server.call('POST', '/v1/batches', { body: {} })
  const refused = await server.call('GET', '/v1/models')
  assert.equal(refused.outcome, '429 rate_limit_exceeded')
  const wait_s = Number(refused.headers.get('retry-after'))
  assert.ok(wait_s >= 1 && wait_s <= 60)
  assert.equal(refused.headers.get('x-ratelimit-remaining-requests'), '0')
  assert.equal(refused.headers.get('x-should-retry'), null)
  const { key } = await server.issue()
  assert.equal((await server.call('GET', '/v1/models', { key })).status, 200)
  assert.equal((await server.call('GET', '/healthz', { key: null })).status, 200)
})

test('without a limit nothing is counted', async () => {
  await using server = await testServer({ requests_per_minute: null })
  const answer = await server.call('GET', '/v1/models')
  assert.equal(answer.headers.get('x-ratelimit-limit-requests'), null)
})
