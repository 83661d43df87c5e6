import assert from 'node:assert/strict'
import { test } from 'node:test'
import { cancelMs, isOnTime, recallAt } from './deadline.ts'

const MINUTE_MS = 60_000
const DAY_MS = 24 * 60 * MINUTE_MS
const window = (ms: number) => ({ created: 0, expires_at: ms })

test('a batch API has nine tenths of a window, and two thirds of a short one', () => {
  assert.equal(recallAt(window(DAY_MS)), 0.9 * DAY_MS)
  assert.equal(recallAt(window(5 * MINUTE_MS)), 4 * MINUTE_MS)
  assert.equal(Math.round(recallAt(window(30_000))), 20_000)
})

test('a cancellation ends before the window does', () => {
  for (const ms of [30_000, 5 * MINUTE_MS, DAY_MS])
    assert.ok(recallAt(window(ms)) + cancelMs(window(ms)) < ms)
  assert.equal(cancelMs(window(DAY_MS)), 15 * MINUTE_MS)
})

test('a batch is on time if it will be through in half of what is left', () => {
  const at = 0.9 * DAY_MS
  assert.equal(isOnTime({ done: 0.99 }, 0, window(DAY_MS), at), true)
  assert.equal(isOnTime({ done: 0.9 }, 0, window(DAY_MS), at), false)
  assert.equal(isOnTime({ done: 0 }, 0, window(DAY_MS), at), false)
})
