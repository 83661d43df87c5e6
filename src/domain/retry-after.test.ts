import assert from 'node:assert/strict'
import test from 'node:test'
import { retryAfterMs } from './retry-after.ts'

const now = Date.parse('2026-03-01T00:00:00Z')

test('seconds, fractions of them and HTTP dates are understood', () => {
  assert.equal(retryAfterMs({ 'retry-after': '7' }, now), 7000)
  assert.equal(retryAfterMs({ 'retry-after': ' 0.25 ' }, now), 250)
  assert.equal(retryAfterMs({ 'retry-after': 'Sun, 01 Mar 2026 00:00:30 GMT' }, now), 30_000)
})

test('the header in milliseconds is the finer one and wins', () => {
  assert.equal(retryAfterMs({ 'retry-after': '7', 'retry-after-ms': '6500.5' }, now), 6501)
})

test('a date that has passed means now', () => {
  assert.equal(retryAfterMs({ 'retry-after': 'Sat, 28 Feb 2026 00:00:00 GMT' }, now), 0)
})

test('a wait beyond all reason, or a date by a clock that is wrong, is an hour', () => {
  assert.equal(retryAfterMs({ 'retry-after': '99999999999999' }, now), 3_600_000)
  assert.equal(retryAfterMs({ 'retry-after-ms': '9'.repeat(400) }, now), 3_600_000)
  assert.equal(retryAfterMs({ 'retry-after': 'Mon, 01 Mar 2027 00:00:00 GMT' }, now), 3_600_000)
})

test('nonsense is as good as nothing', () => {
  assert.equal(retryAfterMs({}, now), undefined)
  assert.equal(retryAfterMs({ 'retry-after': 'soon' }, now), undefined)
  assert.equal(retryAfterMs({ 'retry-after': '' }, now), undefined)
  assert.equal(retryAfterMs({ 'retry-after-ms': 'soon', 'retry-after': '2' }, now), 2000)
})

test('of a header sent twice the first counts', () => {
  assert.equal(retryAfterMs({ 'retry-after': ['3', '9'] }, now), 3000)
})
