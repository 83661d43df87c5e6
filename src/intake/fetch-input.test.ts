import assert from 'node:assert/strict'
import { test } from 'node:test'
import { queuedBatch } from '../../test/support/queued-batch.ts'
import { newId } from '../domain/ids.ts'
import { insertBatch } from '../store/batches.ts'
import { readRow } from '../store/rows.ts'
import { claimTask } from '../store/tasks.ts'
import { openSession } from '../store/workers.ts'
import { type FetchDeps, fetchInput, insertFetchedFile } from './fetch-input.ts'

test('a fetch is not given up while a batch is created from its file', async (t) => {
  await using world = await queuedBatch({ chunks: 1, lines: 1 })
  const { store, sealed, clock, project_id } = world
  const { id: _, ...row } = await world.batch()
  const url = 's3://bucket/in.jsonl'
  const file_id = await store.write((tx) =>
    insertFetchedFile(tx, { project_id, url, retention_ms: 1e9 }, clock.now()),
  )
  const task = await store.write(async (tx) => {
    const worker_id = await openSession(tx, 60_000, clock.now())
    return await claimTask(tx, worker_id, { kinds: ['fetch'], large: false })
  })
  assert.ok(task)
  const write: typeof store.write = async (change) => {
    const { key_id, endpoint, completion_window, expires_at, created } = row
    const batch = { ...{ key_id, endpoint, completion_window, expires_at, created }, total: 0, project_id }
    await store.write((tx) =>
      insertBatch(tx, {
        ...{ ...batch, id: newId('batch', clock.now()), input_file_id: file_id },
        ...{ metadata: null, header_entity: null, language: null },
      }),
    )
    return await store.write(change)
  }
  const openBucket = () => assert.fail('nothing is fetched for batches that have ended')
  const deps: FetchDeps = {
    ...{ sealed, clock, openBucket, store: { ...store, write } },
    ...{ plans: new Map(), file_bytes_max: 1 },
  }
  await assert.rejects(fetchInput(deps, task, t.signal), /was created as its fetch was given up/)
  assert.equal((await readRow(store.read, 'files', { id: file_id }))?.status, 'pending')
})
