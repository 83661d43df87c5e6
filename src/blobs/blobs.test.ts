import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { cutRange } from './blobs.ts'

describe('cutting a range', () => {
  it('keeps what lies within, and is empty where nothing does', () => {
    assert.deepEqual(cutRange(undefined, 10), { start: 0, end: 10 })
    assert.deepEqual(cutRange({ start: 2, end: 5 }, 10), { start: 2, end: 5 })
    assert.deepEqual(cutRange({ start: 2, end: 50 }, 10), { start: 2, end: 10 })
    assert.deepEqual(cutRange({ start: 20, end: 50 }, 10), { start: 10, end: 10 })
    assert.deepEqual(cutRange({ start: 5, end: 2 }, 10), { start: 5, end: 5 })
    assert.deepEqual(cutRange({ start: 5, end: -2 }, 10), { start: 5, end: 5 })
  })

  it('refuses what is no range', () => {
    assert.throws(() => cutRange({ start: -1, end: 2 }, 10), RangeError)
    assert.throws(() => cutRange({ start: 0, end: 1.5 }, 10), RangeError)
    assert.throws(() => cutRange({ start: 0, end: Number.POSITIVE_INFINITY }, 10), RangeError)
  })
})
