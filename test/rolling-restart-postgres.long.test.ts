// As rolling-restart.test.ts, of a service of several processes.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { withoutPostgres } from './fakes/postgres-server.ts'
import { sharedStorage } from './fakes/shared-storage.ts'
import { rollingRestart } from './support/rolling-restart.ts'

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
