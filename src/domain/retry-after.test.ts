import assert from 'node:assert/strict'
import test from 'node:test'
import { retryAfterMs } from './retry-after.ts'

const now = Date.parse('2026-03-01T00:00:00Z')

test('Retry-After is read as seconds, fractions of seconds or an HTTP date', () => {
  assert.equal(retryAfterMs({ 'retry-after': '7' }, now), 7000)
  assert.equal(retryAfterMs({ 'retry-after': ' 0.25 ' }, now), 250)
  assert.equal(retryAfterMs({ 'retry-after': 'Sun, 01 Mar 2026 00:00:30 GMT' }, now), 30_000)
})

test('retry-after-ms wins over Retry-After', () => {
  assert.equal(retryAfterMs({ 'retry-after': '7', 'retry-after-ms': '6500.5' }, now), 6501)
})

test("what LiteLLM's proxy passes on is read, where it says nothing itself", () => {
  const passedOn = { 'llm_provider-retry-after': '60' }
  assert.equal(retryAfterMs(passedOn, now), 60_000)
  assert.equal(retryAfterMs({ ...passedOn, 'retry-after': '30' }, now), 30_000)
  assert.equal(retryAfterMs({ ...passedOn, 'llm_provider-retry-after-ms': '1500' }, now), 1_500)
})

test('a past date is no wait', () => {
  assert.equal(retryAfterMs({ 'retry-after': 'Sat, 28 Feb 2026 00:00:00 GMT' }, now), 0)
})

test('a longer wait is an hour, or the bound that the caller gives', () => {
  assert.equal(retryAfterMs({ 'retry-after': '99999999999999' }, now), 3_600_000)
  assert.equal(retryAfterMs({ 'retry-after-ms': '9'.repeat(400) }, now), 3_600_000)
  assert.equal(retryAfterMs({ 'retry-after': 'Mon, 01 Mar 2027 00:00:00 GMT' }, now), 3_600_000)
  assert.equal(retryAfterMs({ 'retry-after': '7200' }, now, 86_400_000), 7_200_000)
})

test('a header that cannot be read is ignored', () => {
  assert.equal(retryAfterMs({}, now), undefined)
  assert.equal(retryAfterMs({ 'retry-after': 'soon' }, now), undefined)
  assert.equal(retryAfterMs({ 'retry-after': '' }, now), undefined)
  assert.equal(retryAfterMs({ 'retry-after-ms': 'soon', 'retry-after': '2' }, now), 2000)
})

test('the first of two headers counts', () => {
  assert.equal(retryAfterMs({ 'retry-after': ['3', '9'] }, now), 3000)
})
