// Results that the database refuses: they end their own chunk, and hold up nobody else.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { sql } from 'kysely'
import { reconcile } from '../../src/admin/reconcile.ts'
import { echo, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService } from '../service.ts'

const COUNT = 5
const input = (name: string, entity: string): string =>
  Array.from({ length: COUNT }, (_, i) =>
    JSON.stringify({ ...line(`${name}${i}`), metadata: { entity } }),
  ).join('\n')

for (const table of ['ledger_entries', 'reservations'])
  test(`a chunk that the database refuses in ${table} ends with a reason, and all others go on`, async () => {
    await using upstream = await testUpstream(echo)
    await using service = await TestService.start(configFor(upstream.base_url))
    const { store, sealed } = service.stores
    if (table === 'reservations')
      await service.json('POST', '/v1/limits', {
        scope: 'project',
        metric: 'cost_usd',
        amount: 100,
        window: 'month',
      })
    await store.write((tx) =>
      sql`CREATE TRIGGER poison BEFORE INSERT ON ${sql.table(table)} WHEN NEW.entity = 'user:poison'
        BEGIN SELECT RAISE(ABORT, 'poison'); END`.execute(tx),
    )
    const files = [
      await service.upload(input('p', 'user:poison')),
      await service.upload(input('a', 'user:a')),
      await service.upload(input('b', 'user:b')),
    ]
    const batches = await Promise.all(files.map((file) => service.create(file.id)))
    const [poisoned, ...others] = await Promise.all(batches.map(({ id }) => service.ended(id)))
    for (const batch of others)
      assert.deepEqual(batch.request_counts, { total: COUNT, completed: COUNT, failed: 0 })
    assert.deepEqual(poisoned!.request_counts, { total: COUNT, completed: 0, failed: COUNT })
    assert.equal(poisoned!.cost_usd, 0)
    const errors = await service.lines(poisoned!.error_file_id)
    assert.deepEqual(
      errors.map(({ custom_id, error }) => [custom_id, error?.code, error?.message]),
      Array.from({ length: COUNT }, (_, i) => [
        `p${i}`,
        'internal_error',
        'The result of this line could not be stored. It is not charged.',
      ]),
    )
    assert.deepEqual((await reconcile({ store, sealed })).mismatches, [])
  })
