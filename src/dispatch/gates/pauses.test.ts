import assert from 'node:assert/strict'
import { StatementSync } from 'node:sqlite'
import { test } from 'node:test'
import { lineWorld } from '../../../test/support/line-world.ts'
import { readBatchStatuses } from '../../store/batches.ts'
import { pauseBatch, pauseModel, resumeModel } from '../../store/pauses.ts'
import { insertRow, readRow } from '../../store/rows.ts'
import type { Run } from '../run.ts'
import { Pauses } from './pauses.ts'

test('a pause that is seen while a chunk is opened holds for the open chunks of its batch', async () => {
  await using world = await lineWorld({ chunks: 2, lines: 1 })
  const { store, clock, runs } = world
  const [first, second] = runs as [Run, Run]
  const { id } = first.batch
  const pauses = new Pauses(store)
  const placed: Run[] = []
  const refresh = async (open: Run[]): Promise<void> => {
    const rows = await readBatchStatuses(store.read, [id])
    placed.push(...pauses.refresh(open, rows))
  }
  await pauses.loadFor(second)
  await refresh([first])
  assert.deepEqual(placed, [])
  await store.write((tx) => pauseBatch(tx, id, clock.now()))
  await pauses.loadFor(second)
  assert.ok(pauses.covers(second, 'm'))
  await refresh([first])
  assert.deepEqual(placed, [first])
  await refresh([first, second])
  assert.deepEqual(placed, [first], 'nothing has changed since')
})

test('what was read of a batch whose chunk is about to be opened is kept until it is open', async () => {
  await using world = await lineWorld({ lines: 1 })
  const { store, clock, run } = world
  const pauses = new Pauses(store)
  await store.write((tx) => pauseBatch(tx, run.batch.id, clock.now()))
  await pauses.loadFor(run)
  pauses.refresh([], [])
  assert.ok(pauses.covers(run, 'm'))
})

test('one statement reads what is paused of the batch of a chunk, also several models of its project', async (t) => {
  await using world = await lineWorld({ lines: 1 })
  const { store, clock, run } = world
  const pauses = new Pauses(store)
  const { project_id } = run.batch
  const covered = (): boolean[] => ['m', 'other', 'third'].map((model) => pauses.covers(run, model))
  for (const model of ['m', 'other'])
    await store.write((tx) => pauseModel(tx, { project_id, model, paused_at: clock.now() }))
  await store.write((tx) => pauseModel(tx, { project_id: 'another', model: 'third', paused_at: clock.now() }))
  const { mock } = t.mock.method(StatementSync.prototype, 'all')
  await pauses.loadFor(run)
  assert.equal(mock.callCount(), 1)
  assert.deepEqual([covered(), run.isPaused], [[true, true, false], false])
  // Thousands of models would be read once for each of many open batches.
  const twin = { ...(await readRow(store.read, 'batches', { id: run.batch.id }))!, id: `${run.batch.id}2` }
  await store.write((tx) => insertRow(tx, 'batches', twin))
  const rows = await readBatchStatuses(store.read, [run.batch.id, twin.id])
  assert.equal(rows.length, 3, 'a row for each model, and one for the other batch')
  await store.write((tx) => resumeModel(tx, project_id, 'm'))
  assert.deepEqual(pauses.refresh([run], await readBatchStatuses(store.read, [run.batch.id])), [run])
  assert.deepEqual(covered(), [false, true, false])
})
