import assert from 'node:assert/strict'
import { test } from 'node:test'
import { retryDelayMs, worthRetrying } from './client.ts'

test('delays double, stay between half and whole, and end at ten seconds', () => {
  assert.deepEqual(
    [1, 2, 3].map((attempt) => retryDelayMs(attempt, null, 0)),
    [125, 250, 500],
  )
  assert.equal(retryDelayMs(1, null, 0.999_999_9) <= 250, true)
  assert.equal(retryDelayMs(50, null, 0.5), 7500)
})

test('no retry comes before Retry-After', () => {
  assert.equal(retryDelayMs(1, 7000, 0.5), 7000)
  assert.equal(retryDelayMs(9, 1, 0), 5000)
})

test('a spending limit that is used up is not retried like a rate limit', () => {
  assert.equal(worthRetrying(429, 'rate_limit_exceeded'), true)
  assert.equal(worthRetrying(429, null), true)
  assert.equal(worthRetrying(429, 'usage_limit_exceeded'), false)
  for (const status of [500, 502, 503, 504]) assert.equal(worthRetrying(status, null), true)
  for (const status of [400, 401, 403, 404, 409, 422, 501]) assert.equal(worthRetrying(status, null), false)
})
