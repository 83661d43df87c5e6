import assert from 'node:assert/strict'
import test from 'node:test'
import { OthersLevel, Seats, StepModel } from './server-model.ts'

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

test('the number that ran when others waited is believed for longer each time that it is found again', () => {
  const seats = new Seats()
  let now = 0
  const read = (running: number, isWaiting: boolean, times = 1): number => {
    for (let i = 0; i < times; i++) {
      now += 500
      seats.add(running, isWaiting, now)
    }
    return seats.count
  }
  assert.equal(read(40, false, 100), Number.POSITIVE_INFINITY)
  assert.equal(read(64, true), 64)
  assert.ok(read(50, false, 60) > 64)
  assert.equal(read(64, true, 6), 64)
  assert.equal(read(50, false, 600), 64)
})

test('a few that wait for long prompts do not make a server smaller than it was seen to be', () => {
  const seats = new Seats()
  for (let now = 0; now < 60_000; now += 500) seats.add(60, false, now)
  seats.add(20, true, 60_500)
  assert.equal(seats.count, Number.POSITIVE_INFINITY)
})

const stepMs = (others: number, ours: number): number => 5 + 0.05 * others + 0.15 * ours
const near = (value: number, wanted: number): boolean => Math.abs(value - wanted) < 0.1 * wanted

test('what a step takes is told apart: empty, for each request of others, for each line', () => {
  const steps = new StepModel()
  assert.equal(steps.line, null)
  for (let round = 0; round < 200; round++)
    for (const others of [4, 10, 30, 60, 90]) {
      const ours = Math.max(0, 40 - others)
      steps.add(others, ours, stepMs(others, ours) + (round % 2 ? 0.3 : -0.3), 500)
    }
  const { baseMs, perOtherMs, perLineMs } = steps.line!
  assert.ok(near(baseMs, 5) && near(perOtherMs, 0.05) && near(perLineMs, 0.15))
})

test('while others and lines have only changed together, they are thought alike', () => {
  const steps = new StepModel()
  for (let round = 0; round < 10; round++)
    for (const requests of [4, 10, 30, 60, 90])
      steps.add(requests / 2, requests / 2, 5 + 0.08 * requests, 500)
  const { baseMs, perOtherMs, perLineMs } = steps.line!
  assert.ok(near(baseMs, 5) && near(perOtherMs, 0.08) && near(perLineMs, 0.08))
})
