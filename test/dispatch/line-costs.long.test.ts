// What a line costs, in numbers that are the same on any machine: a change that makes each line allocate more, or asks the
// database more often, fails here and not in a measurement of time.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Bench } from '../../bench/harness.ts'
import { lineCosts } from '../../bench/worker-counts.ts'

test('a line of 1 KiB allocates at most 6,200 bytes on the heap, and its statements are those of many lines', async (t) => {
  await using bench = new Bench('line-costs')
  const line = await lineCosts(bench, 1_024)
  t.diagnostic(JSON.stringify(line))
  assert.ok(line.heapBytes <= 6_200, `${line.heapBytes} bytes`)
  assert.ok(line.statements <= 0.02, `${line.statements} statements`)
  assert.ok(Math.abs(line.socketWrites - 1) < 0.05, `${line.socketWrites} writes`)
})
