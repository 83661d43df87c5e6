import assert from 'node:assert/strict'
import { test } from 'node:test'
import {
  type Blame,
  backoffMs,
  countMiss,
  isExhausted,
  type MissedResult,
  noTries,
  type RetryPolicy,
} from './retry-policy.ts'

const POLICY: RetryPolicy = {
  attempts_max: 3,
  backoff_min_ms: 500,
  backoff_max_ms: 30_000,
  outage_patience_ms: 600_000,
  throttled_attempts_max: 60,
  throttled_share: 0.5,
}
const DAY_MS = 86_400_000
const NEVER = Number.NEGATIVE_INFINITY
const SERVER_ERROR: MissedResult = {
  kind: 'failed',
  status: 500,
  code: 'upstream_unavailable',
  reason: '500',
}
const NOBODY_THERE: MissedResult = { ...SERVER_ERROR, status: null, reason: 'refused', unreachable: true }
const THROTTLED: MissedResult = { kind: 'throttled', status: 429, reason: '429' }

/** After how many such misses the line fails; null: not after a thousand. */
function endsAfter(miss: MissedResult, blame: Blame): number | null {
  const tries = noTries()
  for (let count = 1; count <= 1_000; count++) {
    countMiss(tries, miss, blame, NEVER, 1)
    if (isExhausted(POLICY, tries, miss, 1, DAY_MS)) return count
  }
  return null
}

test('a line fails after as many misses through its own fault as the policy allows', () => {
  assert.equal(endsAfter(SERVER_ERROR, 'line'), 3)
  assert.equal(endsAfter(THROTTLED, 'line'), 3)
})

test('a line that is always throttled fails too, and sooner while others are answered', () => {
  assert.equal(endsAfter(THROTTLED, 'server'), 60)
  assert.equal(endsAfter(THROTTLED, 'unlucky'), 15)
})

test('a throttled line waits for at most its share of the completion window, whatever the server asks for', () => {
  const asked = { ...THROTTLED, retry_after_ms: 3_600_000 }
  const tries = noTries()
  let waitedMs = 0
  for (;;) {
    countMiss(tries, asked, 'server', NEVER, 1)
    if (isExhausted(POLICY, tries, asked, 1, 4 * 3_600_000)) break
    const waitMs = backoffMs(POLICY, tries, asked, 0.5, 4 * 3_600_000)
    tries.throttledMs += waitMs
    waitedMs += waitMs
  }
  assert.equal(tries.throttles, 3)
  assert.equal(waitedMs, 2 * 3_600_000)
})

test('lines of an unavailable server fail only after the outage patience', () => {
  assert.equal(endsAfter(NOBODY_THERE, 'server'), null)
  const tries = { ...noTries(), failures: 50, firstFailureAt: 1_000 }
  assert.ok(!isExhausted(POLICY, tries, NOBODY_THERE, 600_999, DAY_MS))
  assert.ok(isExhausted(POLICY, tries, NOBODY_THERE, 601_000, DAY_MS))
})

test('the outage patience starts again when the server answered in between', () => {
  const tries = noTries()
  countMiss(tries, NOBODY_THERE, 'server', NEVER, 1_000)
  countMiss(tries, NOBODY_THERE, 'server', 500, 2_000)
  assert.equal(tries.firstFailureAt, 1_000)
  countMiss(tries, NOBODY_THERE, 'server', 3_000, 4_000)
  assert.equal(tries.firstFailureAt, 4_000)
})

test('the backoff grows, has jitter, and stays within its bounds', () => {
  const at = (failures: number, random: number): number =>
    backoffMs(POLICY, { ...noTries(), failures }, SERVER_ERROR, random, DAY_MS)
  assert.equal(at(1, 0), 250)
  assert.ok(at(1, 0.999) < 500)
  assert.ok(at(5, 0.999) > 7_900 && at(5, 0.999) < 8_000)
  assert.ok(at(60, 0.999) < 30_000)
  assert.equal(at(60, 0), 250)
})

test('a longer Retry-After overrides the backoff', () => {
  const asked = { ...THROTTLED, retry_after_ms: 45_000 }
  assert.equal(backoffMs(POLICY, { ...noTries(), throttles: 1 }, asked, 0.5, DAY_MS), 45_000)
})

test('a throttled line is retried soon at first, and then less and less often', () => {
  const at = (throttles: number, random: number): number =>
    backoffMs(POLICY, { ...noTries(), failures: 2, throttles }, THROTTLED, random, DAY_MS)
  assert.ok(at(1, 0.999) <= 20)
  assert.ok(at(12, 0.999) > 29_000 && at(12, 0.999) <= 30_000)
})
