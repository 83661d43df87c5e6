import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { testClock } from '../../../test/fakes/clock.ts'
import { addQueuedBatch } from '../../../test/support/queued-batch.ts'
import { temporaryDisk } from '../../../test/support/temporary-disk.ts'
import { addLimit } from '../../../test/support/test-books.ts'
import { BlobMissing, BlobStoreFailed, type Blobs } from '../../blobs/blobs.ts'
import { masterKeyFromText } from '../../blobs/master-key.ts'
import { sealBlobs } from '../../blobs/sealed.ts'
import type { Run } from '../../dispatch/run.ts'
import { Leases } from '../../leases/leases.ts'
import { releaseChunk, wakeParked } from '../../store/chunks.ts'
import type { ChunkRow } from '../../store/schema.ts'
import { sqliteStore } from '../../store/sqlite/store.ts'
import type { Store } from '../../store/store.ts'
import { openSession } from '../../store/workers.ts'
import { ChunkReader } from './chunk-reader.ts'
import { Claimer, type ClaimerOptions } from './claimer.ts'

const LEASE_MS = 3_600_000
const CHUNKS = 3
const GIVEN_UP = 'claiming chunks failed'

describe('a chunk that cannot be opened', () => {
  test('is parked for a second when a store fails, and is opened after that', async () => {
    await using world = await makeWorld()
    world.refuses = () => new BlobStoreFailed('reading', new Error('it is unavailable'))
    await world.look()
    assert.deepEqual(await world.chunks(), [
      ['parked', 'stores_failing', 1_000],
      ['parked', 'stores_failing', 1_000],
      ['parked', 'stores_failing', 1_000],
    ])
    assert.equal(world.opened.length, 0)
    assert.equal(world.said.filter((text) => /could not be opened; it is tried again/.test(text)).length, 3)

    world.refuses = () => null
    await world.clock.advance(1_000)
    await world.look()
    assert.deepEqual(world.openedChunks(), [0, 1, 2])
  })

  test('ends no process where its batch cannot be read, before it waits for that', async () => {
    await using world = await makeWorld()
    await world.look()
    const { claim } = world.opened[0]!
    const [input] = world.reader.inputs([{ ...claim, batch_id: 'batch_gone' }]).values()
    for (let turns = 0; turns < 5; turns++) await setImmediate()
    await assert.rejects(input!, /batch_gone is gone/)
  })

  test('is parked when its limits cannot be read, and no other chunk is', async () => {
    await using world = await makeWorld()
    world.prepare = async ({ claim }) => {
      if (claim.idx === 1) throw new Error('the database is unavailable')
      return null
    }
    await world.look()
    assert.deepEqual(await world.chunks(), [
      ['leased', null, 0],
      ['parked', 'stores_failing', 1_000],
      ['leased', null, 0],
    ])
    assert.deepEqual(world.openedChunks(), [0, 2])
  })

  test('is parked until the time that the limit check returns', async () => {
    await using world = await makeWorld()
    world.prepare = async ({ claim }) => (claim.idx === 2 ? { retryAt: world.clock.now() + 5_000 } : null)
    await world.look()
    assert.deepEqual((await world.chunks())[2], ['parked', 'usage_limit', 5_000])
    assert.deepEqual(world.openedChunks(), [0, 1])
  })

  test('is not parked under limits that have changed since they were checked', async () => {
    await using world = await makeWorld()
    world.prepare = async ({ claim }) => {
      if (claim.idx !== 2) return null
      await world.commit((tx) => addLimit(tx, claim.project_id, { amount: 1 }))
      return { retryAt: world.clock.now() + 5_000 }
    }
    await world.look()
    assert.deepEqual((await world.chunks())[2], ['parked', 'usage_limit', 0])
  })

  test('is parked for longer when its input is missing, because it has to be restored', async () => {
    await using world = await makeWorld()
    world.refuses = (key) => new BlobMissing(key)
    await world.look()
    assert.deepEqual((await world.chunks())[0], ['parked', 'input_unreadable', 30_000])
    assert.equal(world.opened.length, 0)
  })

  test('is released at the next look when it could not be parked', async () => {
    await using world = await makeWorld()
    world.prepare = async ({ claim }) => {
      if (claim.idx !== 1) return null
      // The next write parks it.
      world.writes = () => Promise.reject(new Error('the database is unavailable'))
      throw new Error('the database is unavailable')
    }
    await world.look()
    assert.deepEqual((await world.chunks())[1], ['leased', null, 0])
    assert.deepEqual(world.openedChunks(), [0, 2])
    assert.ok(world.said.includes(GIVEN_UP))

    world.writes = null
    world.prepare = async () => null
    await world.look()
    assert.deepEqual(world.openedChunks(), [0, 1, 2])
    assert.deepEqual(
      world.opened.map(({ claim }) => claim.epoch),
      [1, 1, 2],
    )
  })
})

test('a claim that takes effect long after it failed is found, and its chunks are claimed again', async () => {
  await using world = await makeWorld()
  let takeEffect = async (): Promise<unknown> => assert.fail('nothing was claimed')
  world.writes = (change) => {
    takeEffect = () => world.commit(change)
    return Promise.reject(new Error('no answer came in time'))
  }
  await world.look()
  world.writes = null
  await world.look()
  assert.deepEqual(world.openedChunks(), [0, 1, 2])
  for (const { claim } of world.opened.splice(0)) await world.commit((tx) => releaseChunk(tx, claim))
  await takeEffect()
  assert.deepEqual((await world.chunks())[0], ['leased', null, 0])
  await world.clock.advance(5_000)
  await world.look()
  assert.deepEqual(
    world.opened.map(({ claim }) => claim.epoch),
    [3, 3, 3],
  )
})

test('the lanes of all models are read once for each claim, which may be thousands', async () => {
  await using world = await makeWorld()
  await world.look()
  // A claim of all chunks, and a look that finds no other.
  assert.ok(world.lanes.reads <= 2, `${world.lanes.reads} times`)
})

/** A claimer with a batch of small chunks, and everything that it depends on. */
async function makeWorld() {
  const disk = await temporaryDisk()
  const clock = testClock()
  const begun = clock.now()
  const real = sqliteStore({ path: join(disk.root, 'offpeak.db'), leaseNow: clock.now })
  await real.migrate()
  const opened: Run[] = []
  const said: string[] = []
  const world = {
    clock,
    opened,
    said,
    /** The error of reading a blob. */
    refuses: (_key: string): Error | null => null,
    prepare: async (_run: Run): ReturnType<ClaimerOptions['dispatch']['admit']> => null,
    /** Replaces the store's transactions. */
    writes: null as ((change: Parameters<Store['write']>[0]) => Promise<never>) | null,
    commit: (change: Parameters<Store['write']>[0]): Promise<unknown> => real.write(change),
    /** Resolves when every chunk is parked or open, or claiming has failed. */
    async look(): Promise<void> {
      await real.write((tx) => wakeParked(tx))
      said.length = 0
      claimer.claimNow()
      while (!said.includes(GIVEN_UP) && !(await isSettled())) await setImmediate()
    },
    /** State, reason for parking, and until when it is parked, in ms from the start of the test. */
    async chunks(): Promise<[ChunkRow['state'], string | null, number][]> {
      const rows = await real.read.selectFrom('chunks').selectAll().orderBy('idx').execute()
      return rows.map((row) => [row.state, row.parked_reason, row.run_at && row.run_at - begun])
    },
    openedChunks: (): number[] => opened.map(({ claim }) => claim.idx).sort(),
    async [Symbol.asyncDispose]() {
      await claimer.close()
      await real.close()
      await disk[Symbol.asyncDispose]()
    },
  }
  const isSettled = async (): Promise<boolean> => {
    const rows = await real.read.selectFrom('chunks').selectAll().execute()
    const isOpen = ({ idx, epoch }: ChunkRow): boolean =>
      opened.some(({ claim }) => claim.idx === idx && claim.epoch === epoch)
    return rows.every((row) => row.state === 'parked' || isOpen(row))
  }
  const store: Store = {
    ...real,
    write: (change) => (world.writes ? world.writes(change) : real.write(change)),
  }
  const blobs: Blobs = {
    put: (key, source) => disk.blobs.put(key, source),
    async *read(key, range) {
      const error = world.refuses(key)
      if (error) throw error
      yield* disk.blobs.read(key, range)
    },
    size: (key) => disk.blobs.size(key),
    delete: (key) => disk.blobs.delete(key),
    list: (prefix) => disk.blobs.list(prefix),
  }
  const sealed = sealBlobs(blobs, masterKeyFromText(randomBytes(32).toString('base64'), 'a test'))
  await addQueuedBatch(real, sealed, { chunks: CHUNKS, lines: 1 }, clock.now())
  const workerId = await real.write((tx) => openSession(tx, LEASE_MS, clock.now()))
  const tell = (_: object, message: string): void => void said.push(message)
  const log = { info: tell, warn: tell, error: tell }
  const reader = new ChunkReader({ store, sealed, clock, log, models: new Map() })
  const lanes = new CountedLanes()
  const claimer = new Claimer({
    store,
    reader,
    clock,
    log,
    memoryBytes: 1_000_000,
    session: { id: workerId },
    leases: new Leases({ store, clock, session: { id: workerId } }),
    lanes,
    runs: opened,
    atRisk: new Set(),
    elsewhere: { models: () => [], isBetterFor: async () => false },
    dispatch: {
      restore: async () => {},
      admit: (run) => world.prepare(run),
      open: (run) => void opened.push(run),
      makeRoom() {},
      lines: { requeue() {}, close() {} },
      limits: { pausedProjects: () => [] },
      batchApis: { rows: { of: () => [] } },
    },
  })
  return Object.assign(world, { reader, lanes })
}

/** The lanes of no model, with the number of times that all were read. */
class CountedLanes extends Map<never, never> {
  reads = 0

  override [Symbol.iterator](): MapIterator<[never, never]> {
    this.reads++
    return super[Symbol.iterator]()
  }
}
