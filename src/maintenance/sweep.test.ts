import assert from 'node:assert/strict'
import { mkdtempSync, utimesSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, it } from 'node:test'
import { testClock } from '../../test/fakes/clock.ts'
import type { Blobs } from '../blobs/blobs.ts'
import { DiskBlobs } from '../blobs/disk/disk-blobs.ts'
import { insertBlobs } from '../store/blobs.ts'
import { sqliteStore } from '../store/sqlite/store.ts'
import type { Store } from '../store/store.ts'
import { ORPHAN_AGE_MS, OrphanSweep } from './sweep.ts'

const HOUR_MS = 60 * 60_000
const MINUTE_MS = 60_000

describe('the sweep of orphans', () => {
  it('takes what nobody knew at two looks, and leaves what a commit has named between them', async () => {
    await using world = await makeWorld()
    const { clock, blobs, store } = world
    const sweep = world.sweeper()
    await world.write('orphan', ORPHAN_AGE_MS + 1)
    await world.write('late', ORPHAN_AGE_MS + 1)
    await world.write('young', ORPHAN_AGE_MS - HOUR_MS / 2)
    assert.deepEqual(await sweep.tick(), { began: true, removed: 0 })
    await store.write((tx) =>
      insertBlobs(tx, 'proj_a', [{ key: 'late', wrapped_key: 'w', bytes: 1 }], clock.now()),
    )
    await clock.advance(MINUTE_MS)
    assert.deepEqual(await sweep.tick(), { began: false, removed: 0 })
    await clock.advance(10 * MINUTE_MS)
    assert.deepEqual(await sweep.tick(), { began: false, removed: 1 })
    assert.deepEqual(await keysOf(blobs), ['late', 'young'])
  })

  it('looks for the second time no sooner because the system time was set forward', async () => {
    await using world = await makeWorld()
    const sweep = world.sweeper()
    await world.write('late', ORPHAN_AGE_MS + 1)
    assert.equal((await sweep.tick()).began, true)
    await world.setForward(HOUR_MS)
    assert.equal((await sweep.tick()).removed, 0)
    await world.clock.advance(10 * MINUTE_MS)
    assert.equal((await sweep.tick()).removed, 1)
  })

  it('is the work of one worker an hour, whichever asks first, and goes on when that one is gone', async () => {
    await using world = await makeWorld()
    const { clock } = world
    let looks = 0
    const counting: Blobs = {
      put: (key, source) => world.blobs.put(key, source),
      read: (key, range) => world.blobs.read(key, range),
      size: (key) => world.blobs.size(key),
      delete: (key) => world.blobs.delete(key),
      list(prefix) {
        looks++
        return world.blobs.list(prefix)
      },
    }
    const workers = Array.from({ length: 5 }, () => world.sweeper(counting))
    await Promise.all(workers.map((worker) => worker.tick()))
    assert.equal(looks, 1)
    for (let minute = 0; minute < 59; minute++) {
      await clock.advance(MINUTE_MS)
      for (const worker of workers) await worker.tick()
    }
    assert.equal(looks, 1)
    for (let minute = 0; minute < 10; minute++) {
      await clock.advance(MINUTE_MS)
      for (const worker of workers.slice(1)) await worker.tick()
    }
    assert.equal(looks, 2)
  })
})

async function makeWorld() {
  const folder = mkdtempSync(join(tmpdir(), 'offpeak-sweep-'))
  const clock = testClock()
  const store: Store = sqliteStore({ path: join(folder, 'db.sqlite'), leaseNow: () => clock.now() })
  await store.migrate()
  const root = join(folder, 'blobs')
  let aheadMs = 0
  const blobs = new DiskBlobs(root)
  return {
    clock,
    store,
    blobs,
    /** Sets the system time forward. */
    async setForward(ms: number): Promise<void> {
      aheadMs += ms
      await clock.advance(ms)
    },
    sweeper: (seen: Blobs = blobs) =>
      new OrphanSweep({ store, blobs: seen, clock: { ...clock, steady: () => clock.now() - aheadMs } }),
    async write(key: string, age_ms: number): Promise<void> {
      await blobs.put(key, [Buffer.from('x')])
      const at = new Date(clock.now() - age_ms)
      utimesSync(join(root, 'objects', key), at, at)
    },
    async [Symbol.asyncDispose]() {
      await store.close()
      await rm(folder, { recursive: true })
    },
  }
}

async function keysOf(blobs: Blobs): Promise<string[]> {
  const keys: string[] = []
  for await (const { key } of blobs.list('')) keys.push(key)
  return keys.sort()
}
