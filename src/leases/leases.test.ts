import assert from 'node:assert/strict'
import { join } from 'node:path'
import { test } from 'node:test'
import { testClock } from '../../test/fakes/clock.ts'
import { queuedBatch } from '../../test/support/queued-batch.ts'
import { temporaryDisk } from '../../test/support/temporary-disk.ts'
import { claimChunks } from '../store/chunk-claims.ts'
import type { ChunkRow } from '../store/schema.ts'
import { sqliteStore } from '../store/sqlite/store.ts'
import type { Store } from '../store/store.ts'
import { openSession } from '../store/workers.ts'
import { Leases, Session } from './leases.ts'

const LONG_LEASE_MS = 3_600_000

test('a lease whose claim has taken effect, and is not answered yet, is not taken for a stray', async () => {
  await using world = await queuedBatch({ chunks: 1, lines: 1 })
  const { store, clock } = world
  const id = await store.write((tx) => openSession(tx, LONG_LEASE_MS, clock.now()))
  const committed = Promise.withResolvers<void>()
  const answer = Promise.withResolvers<void>()
  let isSlow = true
  const slow: Store = {
    ...store,
    async write(change) {
      const value = await store.write(change)
      if (!isSlow) return value
      isSlow = false
      committed.resolve()
      await answer.promise
      return value
    },
  }
  const leases = new Leases({ store: slow, clock, session: { id } })
  const claim = (): Promise<readonly ChunkRow[]> =>
    leases.claim((tx, worker_id) => claimChunks(tx, { worker_id, urgentBefore: 0, count: 1 }))
  const first = claim()
  await committed.promise
  // Another part of the worker claims something, and strays are to be looked for before.
  leases.suspect()
  const second = claim()
  await new Promise(setImmediate)
  answer.resolve()
  assert.equal((await first).length, 1)
  assert.equal((await second).length, 0, 'the chunk is leased')
  const [row] = await world.chunks()
  assert.deepEqual([row?.state, row?.epoch], ['leased', 1])
})

test('strays are released by their epoch: a release that takes effect late ends no later lease', async () => {
  await using world = await queuedBatch({ chunks: 1, lines: 1 })
  const { store, clock } = world
  const id = await store.write((tx) => openSession(tx, LONG_LEASE_MS, clock.now()))
  const claimOne = () => store.write((tx) => claimChunks(tx, { worker_id: id, urgentBefore: 0, count: 1 }))
  await claimOne()
  let release: Parameters<Store['write']>[0] = () => assert.fail('nothing was released')
  const late: Store = {
    ...store,
    write(change) {
      release = change
      return Promise.reject(new Error('no answer came in time'))
    },
  }
  const leases = new Leases({ store: late, clock, session: { id } })
  leases.suspect()
  await assert.rejects(leases.releaseStrays())
  await store.write(release)
  assert.equal((await world.chunks())[0]?.state, 'ready')
  await claimOne()
  await store.write(release)
  const [row] = await world.chunks()
  assert.deepEqual([row?.state, row?.epoch], ['leased', 2])
})

const LEASE_MS = 10_000
const SILENT = { info() {}, warn() {}, error() {} }

/** A session whose machine may change its system time, or sleep. */
async function openedSession() {
  const disk = await temporaryDisk()
  const clock = testClock()
  const store = sqliteStore({ path: join(disk.root, 'db'), leaseNow: clock.now })
  await store.migrate()
  let wallMs = 0
  let steadyMs = 0
  const session = new Session({
    store,
    clock: { ...clock, now: () => clock.now() + wallMs, steady: () => steadyMs },
    log: SILENT,
    leaseMs: LEASE_MS,
    onRenewed() {},
    onLost() {},
  })
  await session.open()
  return {
    session,
    /** Time passes without a renewal. */
    pass: (wall: number, steady: number) => {
      wallMs += wall
      steadyMs += steady
    },
    async [Symbol.asyncDispose]() {
      await session.close()
      await store.close()
      await disk[Symbol.asyncDispose]()
    },
  }
}

test('a lease is uncertain as soon as it may have expired', async () => {
  await using world = await openedSession()
  world.pass(LEASE_MS - 1, LEASE_MS - 1)
  assert.equal(world.session.isCertain, true)
  world.pass(1, 1)
  assert.equal(world.session.isCertain, false)
})

test('a lease is uncertain although the system time was set back', async () => {
  await using world = await openedSession()
  world.pass(-5_000, LEASE_MS)
  assert.equal(world.session.isCertain, false)
})

test('a lease is uncertain although the steady clock paused while the machine slept', async () => {
  await using world = await openedSession()
  world.pass(LEASE_MS, 0)
  assert.equal(world.session.isCertain, false)
})
