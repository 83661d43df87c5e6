import assert from 'node:assert/strict'
import { test } from 'node:test'
import { testClock } from '../../test/fakes/clock.ts'
import { queuedBatch } from '../../test/support/queued-batch.ts'
import { StatementRejected } from '../store/store.ts'
import type { ChunkCommit } from './commit.ts'
import { CommitQueue, StoreRetries } from './commit-queue.ts'

test('a commit that comes in any moment in which the one before ends is made as well', async () => {
  await using queued = await queuedBatch({ chunks: 1, lines: 1 })
  const { store, clock } = queued
  const commit = await lostCommit(queued)
  const queue = new CommitQueue({
    ...{ ...makeRetries(), store, clock, blobFreshMs: 1_000 },
    rules: { file_retention_ms: () => 0 },
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

test('blobs that become too old while those of another commit are written again are written again, too', async () => {
  await using queued = await queuedBatch({ chunks: 1, lines: 1 })
  const { store, clock } = queued
  const commit = await lostCommit(queued)
  let at = 0
  const steadily = {
    ...{ now: () => at, steady: () => at, soon: clock.soon.bind(clock) },
    after(ms: number, act: () => void) {
      at += ms
      setImmediate(act)
      return () => {}
    },
  }
  let outages = 2
  const write: typeof store.write = async (act) => {
    if (outages-- > 0) throw new Error('disk full')
    return await store.write(act)
  }
  const log = { info() {}, warn() {}, error() {} }
  const queue = new CommitQueue({
    ...{ store: { ...store, read: store.read, write }, clock: steadily, log, blobFreshMs: 1_000 },
    rules: { file_retention_ms: () => 0 },
    retries: new StoreRetries({ clock: steadily, log }),
    onCommitted: () => {},
  })
  const written: string[] = []
  const ends: string[] = []
  const add = (name: string): unknown =>
    queue.commit(
      commit,
      async () => {
        written.push(name)
        at += 900
        return commit.record
      },
      ({ how }) => ends.push(`${name} ${how}`),
    )
  void add('first')
  at = 500
  void add('second')
  await queue.running
  // At 1,100 ms the blobs of the first are too old; once they are written again, those of the second are 1,500 ms old.
  assert.deepEqual(written, ['first', 'second'])
  assert.deepEqual(ends.toSorted(), ['first lost', 'second lost'])
})

test('a commit whose end cannot be handled rejects, and keeps no other from its end', async () => {
  await using queued = await queuedBatch({ chunks: 1, lines: 1 })
  const { store, clock } = queued
  const commit = await lostCommit(queued)
  const { retries, log } = makeRetries()
  const queue = new CommitQueue({
    ...{ store, clock, log, retries, blobFreshMs: 1_000 },
    rules: { file_retention_ms: () => 0 },
    onCommitted: () => {
      throw new Error('after the commit')
    },
  })
  const add = (settled: () => void): Promise<string> =>
    queue
      .commit(commit, async () => null, settled)
      .then(
        ({ how }) => how,
        (error: unknown) => String(error),
      )
  const fails = (): void => {
    throw new Error('at its end')
  }
  assert.deepEqual(await Promise.all([add(fails), add(() => {})]), ['Error: at its end', 'lost'])
  assert.equal(await add(() => {}), 'lost')
})

/** A commit for which another worker has the lease, so that nothing is written. */
async function lostCommit(queued: Awaited<ReturnType<typeof queuedBatch>>): Promise<ChunkCommit> {
  const [run] = await queued.open()
  assert.ok(run)
  const { lease, begunAt, hasReservations } = run.results
  return {
    ...{ begunAt, hasReservations, fresh: run.results.takeFresh() },
    claim: { ...lease, epoch: lease.epoch + 1 },
    record: { journal: { key: 'journals/one', wrapped_key: '', bytes: 0 }, byte_start: 0, byte_end: 0 },
  }
}

function makeRetries() {
  const clock = testClock()
  const logged: string[] = []
  const log = { info() {}, warn() {}, error: (_: object, message: string): void => void logged.push(message) }
  return { clock, logged, log, retries: new StoreRetries({ clock, log }) }
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

test('a store fails until work for it succeeds, whatever the other one does', async () => {
  const { clock, retries } = makeRetries()
  const begun = clock.now()
  let attempts = 0
  const committed = retries.untilStored('commit', async () => {
    if (++attempts < 2) throw new Error('disk full')
  })
  await clock.advance(100)
  await retries.untilStored('journal', async () => {})
  assert.equal(retries.failingSince, begun)
  await clock.advance(100)
  await committed
  assert.equal(retries.failingSince, null)
})

test('a database that rejects a statement works', async () => {
  const { clock, retries } = makeRetries()
  let attempts = 0
  const committed = retries.untilStored('commit', async () => {
    if (++attempts < 2) throw new StatementRejected('value out of range')
  })
  await clock.advance(0)
  assert.equal(retries.failingSince, null)
  await clock.advance(200)
  await committed
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
