// Every process is restarted in turn, while clients call and batches run. The model server is the witness.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { withoutPostgres } from './fakes/postgres-server.ts'
import { sharedStorage } from './fakes/shared-storage.ts'
import { rollingRestart } from './rolling.ts'

describe('a rolling restart loses no call and repeats no line', { timeout: 120_000 }, () => {
  test('of the whole service on SQLite', async () => {
    const report = await rollingRestart(['serve'], { yaml: '', env: {} }, 2)
    assert.deepEqual(report.complaints, [])
    assert.equal(report.restarts, 2)
    assert.ok(report.batches > 0, JSON.stringify(report))
  })

  test('of two APIs and two workers on PostgreSQL and a bucket', { skip: withoutPostgres }, async () => {
    await using storage = await sharedStorage()
    const report = await rollingRestart(['api', 'api', 'worker', 'worker'], await storage.make())
    assert.deepEqual(report.complaints, [])
    assert.equal(report.restarts, 4)
    assert.ok(report.batches > 0, JSON.stringify(report))
  })
})
