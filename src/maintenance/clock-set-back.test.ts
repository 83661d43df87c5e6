// Tests a clock that was ahead and is corrected: times that were stored meanwhile are in the future.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { sql } from 'kysely'
import { queuedBatch } from '../../test/support/queued-batch.ts'
import { newId } from '../domain/ids.ts'
import { takeCalls } from '../store/calls.ts'
import { claimChunks } from '../store/chunk-claims.ts'
import { parkChunk, wakeParked } from '../store/chunks.ts'
import { claimInterval } from '../store/database-properties.ts'
import { insertRow } from '../store/rows.ts'
import type { Store } from '../store/store.ts'
import { claimTask, insertTask, postponeTask, type TaskChoice } from '../store/tasks.ts'
import { beginCompletion, NOT_COMPLETING } from '../store/uploads.ts'
import { openSession, requeueExpiredLeases } from '../store/workers.ts'
import { ClockSetBack } from './maintenance.ts'

const MINUTE_MS = 60_000
const HOUR_MS = 60 * MINUTE_MS
const DAY_MS = 24 * HOUR_MS
const LEASE_MS = MINUTE_MS
const BUCKET = { calls_max: 10, interval_us: 6_000_000 }
const COMPLETION = { order: 'x', lease_ms: 15_000 }

for (const [name, ahead_ms] of [
  ['40 days', 40 * DAY_MS],
  ['three hours', 3 * HOUR_MS],
] as const)
  test(`nothing waits longer than usual for times of a clock that was ${name} ahead`, async () => {
    await using world = await queuedBatch({ chunks: 2, lines: 1 })
    const { store, clock, project_id } = world
    const gone = await store.write((tx) => openSession(tx, LEASE_MS, clock.now()))
    const upload_id = newId('upload', clock.now())
    const deliver: TaskChoice = { kinds: ['deliver'], large: false }
    await store.write(async (tx) => {
      const [parked] = await claimChunks(tx, { worker_id: gone, urgentBefore: 0, count: 2 })
      await parkChunk(tx, parked!, MINUTE_MS, 'usage_limit')
      await insertTask(tx, { kind: 'deliver', subject: 'a', project_id }, clock.now())
      await postponeTask(tx, (await claimTask(tx, gone, deliver))!, clock.now() + HOUR_MS, null)
      await takeCalls(tx, 'key_1', 10, BUCKET)
      await claimInterval(tx, 'swept_at', HOUR_MS)
      const file = { filename: 'f', mime_type: 'application/jsonl', bytes: 1, part_bytes: 0, file_id: null }
      const ends = { file_expires_after_ms: null, created: clock.now(), expires_at: clock.now() + DAY_MS }
      const row = {
        id: upload_id,
        project_id,
        status: 'pending',
        ...file,
        ...ends,
        ...NOT_COMPLETING,
      } as const
      await insertRow(tx, 'uploads', row)
      await beginCompletion(tx, upload_id, COMPLETION)
    })
    await addToTimes(store, clock.now(), ahead_ms)

    const setBack = new ClockSetBack()
    assert.ok((await setBack.check(world)) > 0, 'the first look is that of a process that starts')
    assert.equal(await setBack.check(world), 0)

    await clock.advance(LEASE_MS)
    assert.deepEqual(await store.write((tx) => requeueExpiredLeases(tx)), [gone])
    assert.equal(await store.write((tx) => wakeParked(tx)), 1)
    assert.equal((await store.write((tx) => takeCalls(tx, 'key_1', 10, BUCKET))).granted, 0)
    await clock.advance(MINUTE_MS)
    assert.equal((await store.write((tx) => takeCalls(tx, 'key_1', 10, BUCKET))).granted, 10)
    assert.equal(await store.write((tx) => beginCompletion(tx, upload_id, COMPLETION)), 2)
    assert.ok(await store.write((tx) => claimInterval(tx, 'swept_at', HOUR_MS)))
    await clock.advance(DAY_MS)
    const worker = await store.write((tx) => openSession(tx, LEASE_MS, clock.now()))
    assert.equal((await store.write((tx) => claimTask(tx, worker, deliver)))?.subject, 'a')
  })

test('a process notices that its clock is set back, by more than clocks are corrected by', async () => {
  await using world = await queuedBatch({ chunks: 1, lines: 1 })
  const { store, clock } = world
  const setBack = new ClockSetBack()
  let skew_ms = 3 * HOUR_MS
  const skewed = { ...clock, now: () => clock.now() + skew_ms }
  await setBack.check({ store, clock: skewed })
  await store.write((tx) => openSession(tx, LEASE_MS, clock.now()))
  await addToTimes(store, clock.now(), skew_ms)
  skew_ms -= 500
  assert.equal(await setBack.check({ store, clock: skewed }), 0)
  skew_ms = 0
  assert.equal(await setBack.check({ store, clock: skewed }), 1)
})

/** Moves all stored times ahead, as if the clock had been ahead when they were stored. */
async function addToTimes({ write }: Store, now: number, ahead_ms: number): Promise<void> {
  await write(async (tx) => {
    const columns = await sql<{ table: string; column: string }>`
      SELECT m.name AS "table", c.name AS "column" FROM sqlite_master AS m, pragma_table_info(m.name) AS c
      WHERE m.type = 'table' AND m.name NOT LIKE 'kysely%' AND m.name NOT LIKE 'sqlite%'`.execute(tx)
    for (const { table, column } of columns.rows)
      for (const unit of [1, 1_000]) {
        const near = sql`CAST(${sql.ref(column)} AS integer) BETWEEN ${(now - DAY_MS) * unit} AND ${(now + DAY_MS) * unit}`
        await sql`UPDATE ${sql.table(table)} SET ${sql.ref(column)} = CAST(${sql.ref(column)} AS integer) + ${ahead_ms * unit} WHERE ${near}`.execute(
          tx,
        )
      }
  })
}
