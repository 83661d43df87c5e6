import assert from 'node:assert/strict'
import test from 'node:test'
import { StepModel } from './step-model.ts'

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
