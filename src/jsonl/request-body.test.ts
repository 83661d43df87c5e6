import assert from 'node:assert/strict'
import { test } from 'node:test'
import { addOperatorFields, type Priority } from './request-body.ts'

const HOUR_MS = 3_600_000

function sent(priority: Priority, leftMs: number): number {
  const values = new Map<string, Uint8Array>()
  addOperatorFields({ priority, service_tier: null }, values, leftMs)
  return JSON.parse(Buffer.from(values.get('priority')!).toString())
}

test('a deadline is one of six priorities, the sooner the lower, or the higher', () => {
  const hours = [-1, 0, 0.1, 0.5, 3, 4, 11, 23, 24, 25, 24 * 90]
  const classes = [1, 1, 1, 2, 3, 3, 4, 5, 5, 6, 6]
  assert.deepEqual(
    hours.map((left) => sent('deadline', left * HOUR_MS)),
    classes,
  )
  assert.deepEqual(
    hours.map((left) => sent('deadline-higher-first', left * HOUR_MS)),
    classes.map((one) => -one),
  )
  assert.equal(sent(10, HOUR_MS), 10)
})
