import assert from 'node:assert/strict'
import { join } from 'node:path'
import { test } from 'node:test'
import { testClock } from '../../test/fakes/clock.ts'
import { temporaryDisk } from '../../test/support/temporary-disk.ts'
import { sqliteStore } from '../store/sqlite/store.ts'
import { Session } from './session.ts'

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
    clock: { now: () => clock.now() + wallMs, after: clock.after, soon: clock.soon },
    steadyClock: { now: () => steadyMs },
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
