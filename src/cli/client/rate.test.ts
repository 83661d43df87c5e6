import assert from 'node:assert/strict'
import { test } from 'node:test'
import { leftMs, nextRate, perSecond, startRate } from './watch-batch.ts'

test('the rate of a steady batch is known from the second sample on', () => {
  let point = startRate(0, 1000)
  assert.equal(perSecond(point), null)
  assert.equal(leftMs(point, 100), null)
  for (let look = 1; look <= 10; look++) {
    point = nextRate(point, look * 20, 1000 + look * 100)
    assert.ok(Math.abs((perSecond(point) ?? 0) - 200) < 1e-9)
  }
  assert.ok(Math.abs((leftMs(point, 400) ?? 0) - 1000) < 1e-6)
})

test('after one half-life the rate has moved half-way to a new speed', () => {
  let point = startRate(0, 0)
  for (let at = 1000; at <= 100_000; at += 1000) point = nextRate(point, at / 10, at)
  const done = point.done
  // It stands still from here on.
  for (let at = 101_000; at <= 105_000; at += 1000) point = nextRate(point, done, at)
  const rate = perSecond(point) ?? Number.NaN
  assert.ok(rate > 45 && rate < 55, `${rate}`)
})

test('a batch without progress has no estimate of the time left', () => {
  const point = nextRate(startRate(0, 0), 0, 5000)
  assert.equal(perSecond(point), 0)
  assert.equal(leftMs(point, 10), null)
})

test('lines done before the first sample, as in a resumed run, do not count', () => {
  const point = nextRate(startRate(5000, 0), 5010, 1000)
  assert.equal(perSecond(point), 10)
})

test('two samples at the same instant lose no lines', () => {
  let point = nextRate(startRate(0, 0), 5, 0)
  point = nextRate(point, 10, 1000)
  assert.equal(perSecond(point), 10)
})

test('when all lines are done, no time is left', () => {
  const point = nextRate(startRate(0, 0), 10, 1000)
  assert.equal(leftMs(point, 10), 0)
})
