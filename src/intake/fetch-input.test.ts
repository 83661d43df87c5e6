import assert from 'node:assert/strict'
import { test } from 'node:test'
import { queuedBatch } from '../../test/support/queued-batch.ts'
import { TEST_PLANS } from '../../test/support/test-server.ts'
import { ApiError } from '../domain/errors.ts'
import { newId } from '../domain/ids.ts'
import { insertBatch } from '../store/batches.ts'
import { readRow } from '../store/rows.ts'
import { claimTask } from '../store/tasks.ts'
import { openSession } from '../store/workers.ts'
import { type FetchDeps, fetchInput, insertFetchedFile } from './fetch-input.ts'

/** A task that fetches a file, and functions on its batch. */
async function fetching() {
  const world = await queuedBatch({ chunks: 1, lines: 1 })
  const { store, clock, project_id } = world
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
  const addBatch = async (): Promise<void> => {
    const { key_id, endpoint, completion_window, expires_at, created } = row
    const batch = { ...{ key_id, endpoint, completion_window, expires_at, created }, total: 0, project_id }
    await store.write((tx) =>
      insertBatch(tx, {
        ...{ ...batch, id: newId('batch', clock.now()), input_file_id: file_id },
        ...{ metadata: null, header_entity: null, language: null },
      }),
    )
  }
  const file = () => readRow(store.read, 'files', { id: file_id })
  return Object.assign(world, { task, addBatch, file })
}

test('a fetch is not given up while a batch is created from its file', async (t) => {
  await using world = await fetching()
  const { store, sealed, clock, task } = world
  const write: typeof store.write = async (change) => {
    await world.addBatch()
    return await store.write(change)
  }
  const openBucket = () => assert.fail('nothing is fetched for batches that have ended')
  const deps: FetchDeps = {
    ...{ sealed, clock, openBucket, store: { ...store, write } },
    ...{ plans: new Map(), file_bytes_max: 1 },
  }
  await assert.rejects(fetchInput(deps, task, t.signal), /was created as its fetch was given up/)
  assert.equal((await world.file())?.status, 'pending')
})

test('a worker that does not know a bucket leaves its input to another one for a while', async (t) => {
  await using world = await fetching()
  const { store, sealed, clock, task } = world
  await world.addBatch()
  const deps: FetchDeps = {
    ...{ sealed, clock, store, plans: TEST_PLANS, file_bytes_max: 1 },
    openBucket: () => Promise.reject(new ApiError('bucket_not_allowed')),
  }
  await assert.rejects(fetchInput(deps, task, t.signal), { code: 'bucket_not_allowed' })
  assert.equal((await world.file())?.status, 'pending')
  await fetchInput(deps, { ...task, attempts: 10 }, t.signal)
  assert.match((await world.file())?.errors ?? '', /bucket_not_allowed/)
})
