import assert from 'node:assert/strict'
import { join } from 'node:path'
import { test } from 'node:test'
import { testClock } from '../../test/fakes/clock.ts'
import { temporaryDisk } from '../../test/support/temporary-disk.ts'
import { newId } from '../domain/ids.ts'
import type { AnonymousRequestRow } from '../store/schema.ts'
import { sqliteStore } from '../store/sqlite/store.ts'
import { AnonymousRecords, PER_ADDRESS_MAX, PER_PROCESS_MAX } from './call-records.ts'

function call(address: string, created: number): AnonymousRequestRow {
  return {
    id: newId('request', created),
    method: 'GET',
    path: '/v1/models',
    status: 401,
    created,
    duration_ms: 1,
    address,
    key_id: null,
  }
}

test('a flood of refused calls writes so much and no more, and leaves the newest', async () => {
  await using disk = await temporaryDisk()
  const store = sqliteStore({ path: join(disk.root, 'db') })
  await store.migrate()
  const clock = testClock()
  const records = new AnonymousRecords(store, clock, undefined, 700)
  const count = async (): Promise<number> => {
    const all = store.read
      .selectFrom('anonymous_requests')
      .select((eb) => eb.fn.countAll<number>().as('rows'))
    return Number((await all.executeTakeFirstOrThrow()).rows)
  }
  const flood = async (addresses: number): Promise<void> => {
    const calls = Array.from({ length: 2000 }, (_, i) => call(`10.0.0.${i % addresses}`, clock.now()))
    await Promise.all(calls.map((row) => records.add(row)))
  }
  await flood(1)
  assert.equal(await count(), PER_ADDRESS_MAX)
  await flood(1)
  assert.equal(await count(), PER_ADDRESS_MAX)
  await flood(250)
  assert.equal(await count(), PER_PROCESS_MAX)
  for (let minute = 0; minute < 4; minute++) {
    await clock.advance(60_000)
    await flood(250)
  }
  assert.ok((await count()) <= 700 + 500, `${await count()} rows`)
  const newest = call('10.0.1.1', clock.now() + 60_000)
  await clock.advance(60_000)
  await records.add(newest)
  const row = await store.read
    .selectFrom('anonymous_requests')
    .selectAll()
    .where('id', '=', newest.id)
    .executeTakeFirst()
  assert.deepEqual({ ...row }, newest)
  await store.close()
})
