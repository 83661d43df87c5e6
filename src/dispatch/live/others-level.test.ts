import assert from 'node:assert/strict'
import test from 'node:test'
import { OthersLevel } from './others-level.ts'

test('a quantile is the number that others stayed below for so much of the time; old days count less', () => {
  const level = new OthersLevel()
  assert.equal(level.quantile(0.85), 0)
  const day = (most: number): void => {
    for (let minute = 0; minute < 1440; minute++) level.add((most * minute) / 1440, 60_000)
  }
  day(100)
  assert.ok(Math.abs(level.quantile(0.85) - 85) < 6, `${level.quantile(0.85)}`)
  assert.ok(Math.abs(level.shareAbove(50) - 0.55) < 0.1)
  for (let i = 0; i < 6; i++) day(20)
  assert.ok(level.quantile(0.85) < 25)
})

test('a peak has passed when others are fewer by more than chance, until there is a higher one', () => {
  const level = new OthersLevel()
  const hold = (others: number): boolean => {
    for (let i = 0; i < 60; i++) level.add(others, 500)
    return level.hasPassedPeak
  }
  assert.deepEqual([10, 50, 100, 80].map(hold), [false, false, false, false])
  assert.equal(hold(40), true)
  assert.equal(hold(100), true)
  assert.equal(hold(150), false)
})
