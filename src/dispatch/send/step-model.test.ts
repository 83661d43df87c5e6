import assert from 'node:assert/strict'
import test from 'node:test'
import { StepModel } from './step-model.ts'
import { UsualLevel } from './usual-level.ts'

test("a server's step is found as a part of its own and a part for each request", () => {
  const steps = new StepModel()
  assert.equal(steps.line, null)
  for (let round = 0; round < 20; round++)
    for (const requests of [4, 10, 30, 60, 90])
      steps.add(requests, 5 + 0.08 * requests + (round % 2 ? 0.3 : -0.3))
  assert.ok(Math.abs(steps.line!.baseMs - 5) < 0.5)
  assert.ok(Math.abs(steps.line!.perRequestMs - 0.08) < 0.01)
})

test('what was seen at one number of requests for long does not hide what was seen at others', () => {
  const steps = new StepModel()
  for (const requests of [4, 10, 30]) steps.add(requests, 5 + 0.08 * requests)
  for (let i = 0; i < 10_000; i++) steps.add(100, 13)
  assert.ok(Math.abs(steps.line!.baseMs - 5) < 0.5)
})

test('the usual level is the one that is exceeded for the rest of the time, and old days count less', () => {
  const usual = new UsualLevel(0.85)
  assert.equal(usual.value, 0)
  const day = (most: number): void => {
    for (let minute = 0; minute < 1440; minute++) usual.add((most * minute) / 1440, 60_000)
  }
  day(100)
  assert.ok(Math.abs(usual.value - 85) < 6, `${usual.value}`)
  for (let i = 0; i < 6; i++) day(20)
  assert.ok(usual.value < 25, `${usual.value}`)
})
