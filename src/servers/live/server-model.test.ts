import assert from 'node:assert/strict'
import test from 'node:test'
import { Changes, LiveLevel, Slots, StepModel } from './server-model.ts'

test('a quantile is the number that others stayed below for so much of the time; old days count less', () => {
  const level = new LiveLevel()
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
  const level = new LiveLevel()
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
  const seats = new Slots()
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
  const seats = new Slots()
  for (let now = 0; now < 60_000; now += 500) seats.add(60, false, now)
  seats.add(20, true, 60_500)
  assert.equal(seats.count, Number.POSITIVE_INFINITY)
})

/** Readings twice a second. */
function changesOf(values: readonly number[], mean: (value: number) => number): Changes {
  const changes = new Changes()
  for (const [i, value] of values.entries()) changes.add(value, mean(value), i * 500)
  return changes
}

/** Of the numerical recipes, in [0, 1). */
function randomOf(state: number): () => number {
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return state / 2 ** 32
  }
}

test('a number that varies around its mean returns to it; its deviation grows with the root of the mean', () => {
  const random = randomOf(5)
  const values = Array.from({ length: 2000 }, () => 30 + 20 * random())
  const changes = changesOf(values, () => 40)
  for (const { rise, deviation } of changes.ahead(50, 40)) {
    assert.ok(Math.abs(rise + 10) < 3, `${rise}`)
    assert.ok(deviation > 4 && deviation < 8, `${deviation}`)
  }
  const [few, many] = [40, 160].map((mean) => changes.ahead(mean, mean).at(0)!)
  assert.ok(Math.abs(many!.deviation - 2 * few!.deviation) < 0.01)
  assert.equal(few!.rise, 0)
})

test('a number that goes on rising from above its mean is not expected to return to it', () => {
  const rising = changesOf(
    Array.from({ length: 300 }, (_, i) => i),
    (value) => value - 3,
  )
  for (const { rise, deviation } of rising.ahead(300, 297)) {
    assert.equal(Math.abs(rise), 0)
    assert.ok(deviation > 1)
  }
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
