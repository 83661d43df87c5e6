import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test } from 'node:test'
import { zstdDecompressSync } from 'node:zlib'
import { ZstdPackers } from './seal-frames.ts'

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
