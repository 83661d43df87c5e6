import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { type TestContext, test } from 'node:test'
import { zstdCompressSync, zstdDecompressSync } from 'node:zlib'
import { expand, ZstdPackers } from './seal-frames.ts'

const FRAME_BYTES = 64 * 1024

test('each frame expands by itself, however many are packed at once and whatever came before', async () => {
  const packers = new ZstdPackers(1, FRAME_BYTES)
  for (let round = 0; round < 3; round++) {
    const plain = Array.from({ length: 12 }, (_, i) => {
      const bytes = Math.max(1, FRAME_BYTES - i * 5000)
      if (i % 3 === 0) return randomBytes(bytes)
      return Buffer.from(`${i} the same words again and again `.repeat(FRAME_BYTES)).subarray(0, bytes)
    })
    const packed = await Promise.all(plain.map((bytes) => packers.pack(bytes)))
    for (const [i, bytes] of plain.entries()) assert.deepEqual(zstdDecompressSync(packed[i]!), bytes)
  }
})

test('a frame much longer than expected is packed whole', async () => {
  const packers = new ZstdPackers(1, 1024)
  const plain = randomBytes(300_000)
  assert.deepEqual(zstdDecompressSync(await packers.pack(plain)), plain)
})

/** Counts the buffers of at least `bytes` that zlib has allocated since. */
function largeBuffers(t: TestContext, bytes: number): () => number {
  const { mock } = t.mock.method(Buffer, 'allocUnsafe')
  return () => mock.calls.filter(({ arguments: [size] }) => size >= bytes).length
}

test('frames wait for one of four contexts, of which each has an output buffer', async (t) => {
  const packers = new ZstdPackers(1, FRAME_BYTES)
  const allocated = largeBuffers(t, FRAME_BYTES)
  const plain = Buffer.from('the same words again and again '.repeat(FRAME_BYTES)).subarray(0, FRAME_BYTES)
  for (let round = 0; round < 3; round++)
    await Promise.all(Array.from({ length: 12 }, () => packers.pack(plain)))
  assert.equal(allocated(), 4)
})

test('a frame is expanded into one buffer', async (t) => {
  for (const bytes of [FRAME_BYTES, 1000]) {
    const plain = Buffer.from('the same words again and again '.repeat(bytes)).subarray(0, bytes)
    const packed = zstdCompressSync(plain)
    const allocated = largeBuffers(t, bytes)
    assert.deepEqual(await expand(packed, bytes), plain)
    assert.equal(allocated(), 1)
    t.mock.restoreAll()
  }
})
