// Every process is restarted in turn, while clients call and batches run. The model server counts the calls.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { withoutPostgres } from '../fakes/postgres-server.ts'
import { sharedStorage } from '../fakes/shared-storage.ts'
import { rollingRestart } from '../support/rolling-restart.ts'

test('a rolling restart of the whole service on SQLite loses no call and repeats no line', async () => {
  const report = await rollingRestart(['serve'], { yaml: '', env: {} })
  assert.deepEqual(report.complaints, [])
  assert.equal(report.restarts, 1)
  assert.ok(report.batches > 0, JSON.stringify(report))
})

test('a rolling restart of two APIs and two workers on PostgreSQL and a bucket loses no call and repeats no line', {
  skip: withoutPostgres,
  timeout: 120_000,
}, async () => {
  await using storage = await sharedStorage()
  const report = await rollingRestart(['api', 'api', 'worker', 'worker'], await storage.make())
  assert.deepEqual(report.complaints, [])
  assert.equal(report.restarts, 4)
  assert.ok(report.batches > 0, JSON.stringify(report))
})
