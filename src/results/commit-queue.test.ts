import assert from 'node:assert/strict'
import { test } from 'node:test'
import { testClock } from '../../test/fakes/clock.ts'
import { queuedBatch } from '../../test/support/queued-batch.ts'
import type { ChunkCommit } from './commit.ts'
import { CommitQueue, StoreRetries } from './commit-queue.ts'

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
    ...{ store, clock, blobFreshMs: 1_000 },
    rules: { file_retention_ms: () => 0 },
    retries: makeRetries().retries,
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

function makeRetries() {
  const clock = testClock()
  const logged: string[] = []
  const log = { info() {}, warn() {}, error: (_: object, message: string): void => void logged.push(message) }
  return { clock, logged, retries: new StoreRetries({ clock, log }) }
}

test('work on a failing store is retried until it succeeds, and failingSince is set meanwhile', async () => {
  const { clock, logged, retries } = makeRetries()
  const begun = clock.now()
  let attempts = 0
  const done = retries.untilStored('commit', async () => {
    if (++attempts < 3) throw new Error('disk full')
    return 'stored'
  })
  await clock.advance(0)
  assert.equal(retries.failingSince, begun)
  await clock.advance(200 + 400)
  assert.equal(await done, 'stored')
  assert.equal(retries.failingSince, null)
  assert.equal(attempts, 3)
  assert.match(logged[0] ?? '', /committing results failed; trying again in 200 ms/)
})

test('a final error is thrown at once', async () => {
  const { clock, retries } = makeRetries()
  const refused = new Error('refused')
  const attempt = retries.untilStored(
    'commit',
    () => Promise.reject(refused),
    (error) => error === refused,
  )
  await assert.rejects(attempt, refused)
  assert.equal(clock.waiting, 0)
})
