import assert from 'node:assert/strict'
import { test } from 'node:test'
import { addQueuedBatch, queuedBatch } from '../../test/support/queued-batch.ts'
import { OpeningHours } from '../domain/hours.ts'
import type { Model } from '../domain/model.ts'
import { pauseModel } from '../store/pauses.ts'
import { batchesAtRisk } from './completion.ts'

test('batches that are paused, closed or start later take no place from those at risk that can run', async () => {
  await using world = await queuedBatch({ chunks: 1, lines: 1 })
  const { store, sealed, clock, models } = world
  const now = clock.now()
  const { id } = await world.batch()
  const add = async (windowMs: number) =>
    (await addQueuedBatch(store, sealed, { chunks: 1, lines: 1, windowMs }, now)).id
  const held: string[] = []
  for (let i = 0; i < 100; i++) held.push(await add(1_000_000 + i))
  const slow = {
    status: 'in_progress',
    total: 1_000,
    completed: 1,
    rate_lines: 1,
    lines_per_s: 0.001,
  } as const
  const since = { in_progress_at: now, rate_sampled_at: now }
  const set = (ids: readonly string[], change: object) =>
    store.write((tx) => tx.updateTable('batches').set(change).where('id', 'in', ids).execute())
  await set([id, ...held], { ...slow, ...since })
  assert.deepEqual(await batchesAtRisk(store.read, now, models), held)
  await set(held, { start_after: now + 1 })
  assert.deepEqual(await batchesAtRisk(store.read, now, models), [id, ...held.slice(0, 99)])
  await set(held, { start_after: null, models: '["n"]' })
  const n = { ...models.get('m')!, id: 'n' }
  const never = [new OpeningHours([{ days: [], from: 0, to: 1, timezone: 'UTC', concurrency_max: 1 }])]
  const withModel = (model: Model) => batchesAtRisk(store.read, now, new Map([...models, ['n', model]]))
  const hours = { usual: never, atRisk: [null] }
  assert.deepEqual(await withModel({ ...n, hours }), held, 'it is open for batches at risk')
  const last = [id, ...held.slice(0, 99)]
  assert.deepEqual(await withModel({ ...n, hours: { usual: never, atRisk: never } }), last)
  const { project_id } = await world.batch()
  await store.write((tx) => pauseModel(tx, { project_id: 'another', model: 'n', paused_at: now }))
  assert.deepEqual(await withModel(n), held)
  await store.write((tx) => pauseModel(tx, { project_id, model: 'n', paused_at: now }))
  assert.deepEqual(await withModel(n), last)
  await set(held, { paused_at: now })
  assert.deepEqual(await withModel(n), [id])
})
