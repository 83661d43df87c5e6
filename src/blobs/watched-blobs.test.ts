import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { testClock } from '../../test/fakes/clock.ts'
import { BlobMissing, BlobStoreFailed, type Blobs } from './blobs.ts'
import { WatchedBlobs } from './watched-blobs.ts'

const PIECE = Buffer.from('piece')

/** A store whose calls end when the test ends them. */
function watched() {
  const clock = testClock()
  const ends: { ok: () => void; fail: (error: Error) => void }[] = []
  const call = <T>(value: T): Promise<T> =>
    new Promise((resolve, fail) => ends.push({ ok: () => resolve(value), fail }))
  const inner: Blobs = {
    async put(_key, source) {
      for await (const _ of source) await call(0)
      return await call(1)
    },
    async *read() {
      yield await call(PIECE)
      yield await call(PIECE)
    },
    size: () => call(1),
    delete: () => call(undefined),
    async *list() {},
  }
  let backMs = 0
  const system = { ...clock, now: () => clock.now() - backMs }
  const setBack = (ms: number): void => {
    backMs = ms
  }
  return { clock, ends, setBack, blobs: new WatchedBlobs(inner, system) }
}

const FAILED = new BlobStoreFailed('writing', new Error('503'))
const settled = (): Promise<void> => setImmediate()

test('a store fails from a failed write until the next one ends well, whatever is read meanwhile', async () => {
  const { blobs, ends } = watched()
  const write = assert.rejects(blobs.put('a', []))
  await settled()
  ends[0]!.fail(FAILED)
  await write
  assert.equal(blobs.isFailing, true)
  const read = blobs.size('a')
  await settled()
  ends[1]!.ok()
  await read
  assert.equal(blobs.isFailing, true)
  const again = blobs.put('a', [])
  await settled()
  ends[2]!.ok()
  await again
  assert.equal(blobs.isFailing, false)
})

test('a failure that nothing follows is forgotten, and a blob that is missing is none', async () => {
  const { blobs, ends, clock } = watched()
  const missing = assert.rejects(blobs.size('a'))
  await settled()
  ends[0]!.fail(new BlobMissing('a'))
  await missing
  assert.equal(blobs.isFailing, false)
  const failed = assert.rejects(blobs.delete('a'))
  await settled()
  ends[1]!.fail(FAILED)
  await failed
  assert.equal(blobs.isFailing, true)
  await clock.advance(60_000)
  assert.equal(blobs.isFailing, false)
})

test('a call that gets no further counts although the system clock is set back', async () => {
  const { blobs, clock, setBack } = watched()
  void blobs.size('a')
  setBack(3_600_000)
  await clock.advance(1_500)
  assert.equal(blobs.isFailing, true)
})

test('a call that gets no further counts as a failure, unless another one ends', async () => {
  const { blobs, ends, clock } = watched()
  const read = Array.fromAsync(blobs.read('a'))
  await settled()
  await clock.advance(1_400)
  await settled()
  ends[0]!.ok()
  await settled()
  await clock.advance(1_400)
  assert.equal(blobs.isFailing, false, 'it has got a piece')
  const other = blobs.size('b')
  await settled()
  ends[2]!.ok()
  await other
  await clock.advance(1_400)
  assert.equal(blobs.isFailing, false, 'another one has ended')
  await clock.advance(200)
  assert.equal(blobs.isFailing, true)
  await settled()
  ends[1]!.ok()
  assert.equal((await read).length, 2)
  assert.equal(blobs.isFailing, false)
})

test('a write that waits for its source says nothing of the store', async () => {
  const { blobs, ends, clock } = watched()
  const pieces = [Promise.withResolvers<Buffer>(), Promise.withResolvers<Buffer>()]
  const source = async function* () {
    for (const { promise } of pieces) yield await promise
  }
  const write = blobs.put('a', source())
  await clock.advance(10_000)
  assert.equal(blobs.isFailing, false)
  pieces[0]?.resolve(PIECE)
  await settled()
  await clock.advance(2_000)
  assert.equal(blobs.isFailing, true, 'the store takes no piece')
  await settled()
  ends[0]!.ok()
  await settled()
  await clock.advance(10_000)
  assert.equal(blobs.isFailing, false)
  pieces[1]?.resolve(PIECE)
  await settled()
  await settled()
  ends[1]!.ok()
  await settled()
  await settled()
  ends[2]!.ok()
  assert.equal(await write, 1)
})
