import assert from 'node:assert/strict'
import { test } from 'node:test'
import { backoffMs, givesUp, type RetryPolicy } from './retry-policy.ts'

const POLICY: RetryPolicy = {
  attempts_max: 3,
  backoff_min_ms: 500,
  backoff_max_ms: 30_000,
  outage_patience_ms: 600_000,
}
const SERVER_ERROR = { kind: 'failed', status: 500, code: 'upstream_unavailable', reason: '500' } as const
const NOBODY_THERE = {
  kind: 'failed',
  status: null,
  code: 'upstream_unavailable',
  reason: 'refused',
} as const
const THROTTLED = { kind: 'throttled', status: 429, reason: '429' } as const

test('a line is given up after as many failures as the policy allows', () => {
  assert.ok(!givesUp(POLICY, { failures: 2, throttles: 0, first_failure_at: 0 }, SERVER_ERROR, 1))
  assert.ok(givesUp(POLICY, { failures: 3, throttles: 0, first_failure_at: 0 }, SERVER_ERROR, 1))
})

test('being throttled is no failure, however often', () => {
  assert.ok(!givesUp(POLICY, { failures: 0, throttles: 1_000, first_failure_at: null }, THROTTLED, 1))
})

test('a server that cannot be reached is waited for before its lines are given up', () => {
  const tries = { failures: 50, throttles: 0, first_failure_at: 1_000 }
  assert.ok(!givesUp(POLICY, tries, NOBODY_THERE, 600_999))
  assert.ok(givesUp(POLICY, tries, NOBODY_THERE, 601_000))
})

test('pauses grow, are spread by chance, and stay within their bounds', () => {
  const at = (failures: number, random: number): number =>
    backoffMs(POLICY, { failures, throttles: 0, first_failure_at: 0 }, SERVER_ERROR, random)
  assert.equal(at(1, 0), 250)
  assert.ok(at(1, 0.999) < 500)
  assert.ok(at(5, 0.999) > 7_900 && at(5, 0.999) < 8_000)
  assert.ok(at(60, 0.999) < 30_000)
  assert.equal(at(60, 0), 250)
})

test('what the server asks for counts more', () => {
  const asked = { ...THROTTLED, retry_after_ms: 45_000 }
  assert.equal(backoffMs(POLICY, { failures: 0, throttles: 1, first_failure_at: null }, asked, 0.5), 45_000)
})

test('a line that found no room is back soon; one that never finds any comes ever more rarely', () => {
  const at = (throttles: number, random: number): number =>
    backoffMs(POLICY, { failures: 2, throttles, first_failure_at: 0 }, THROTTLED, random)
  assert.ok(at(1, 0.999) <= 20)
  assert.ok(at(12, 0.999) > 29_000 && at(12, 0.999) <= 30_000)
})
