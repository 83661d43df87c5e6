import assert from 'node:assert/strict'
import { test } from 'node:test'
import { OperatorFields, type Priority } from './request-body.ts'

const AT = Date.UTC(2026, 0, 1)
const HOUR_MS = 3_600_000

function sent(priority: Priority, deadline: number): number {
  const bytes = Buffer.from('xx{"model":"m"}yy')
  const body = new OperatorFields(priority, null).setIn(bytes, { start: 2, end: 15 }, deadline, null)
  return JSON.parse(Buffer.from(body).toString()).priority
}

test('the sooner deadline has the lower priority, or the higher one, and both fit into 32 bits', () => {
  const [sooner, later] = [sent('deadline', AT), sent('deadline', AT + HOUR_MS)]
  assert.deepEqual([later - sooner, sooner > 0 && later < 2 ** 31], [60, true])
  const higher = [sent('deadline-higher-first', AT), sent('deadline-higher-first', AT + HOUR_MS)]
  assert.deepEqual(higher, [-sooner, -later])
  assert.equal(sent(10, AT), 10)
})
