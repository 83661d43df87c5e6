import assert from 'node:assert/strict'
import { test } from 'node:test'
import { queuedBatch } from '../../test/support/queued-batch.ts'
import type { ChunkCommit } from './commit.ts'
import { CommitQueue } from './commit-queue.ts'

test('a commit that comes in any moment in which the one before ends is made as well', async () => {
  await using queued = await queuedBatch({ chunks: 1, lines: 1 })
  const { store, clock } = queued
  const [run] = await queued.open()
  assert.ok(run)
  // Another worker has the lease, so nothing is to be written.
  const { lease, begunAt, hasReservations } = run.results
  const commit: ChunkCommit = {
    ...{ begunAt, hasReservations, fresh: run.results.takeFresh() },
    claim: { ...lease, epoch: lease.epoch + 1 },
    record: { journal: { key: 'journals/one', wrapped_key: '', bytes: 0 }, byte_start: 0, byte_end: 0 },
  }
  const queue = new CommitQueue({
    ...{ store, clock, steadyClock: clock, blobFreshMs: 1_000 },
    rules: { file_retention_ms: () => 0 },
    retryUntilStored: (_, attempt) => attempt(),
    onCommitted: () => {},
  })
  for (let microtasks = 0; microtasks < 8; microtasks++) {
    const ends: string[] = []
    const add = (): unknown =>
      queue.commit(
        commit,
        async () => null,
        ({ how }) => ends.push(how),
      )
    await add()
    for (let i = 0; i < microtasks; i++) await null
    void add()
    await queue.running
    assert.deepEqual(ends, ['lost', 'lost'], `${microtasks} microtasks after the end`)
  }
})
