// A blob store in memory that never fails by itself: machine.ts sees to that. Like a bucket it may date what it is
// given by when that began to arrive.
import { BlobMissing, type Blobs } from '../../src/blobs/blobs.ts'
import type { Clock } from '../../src/domain/clock.ts'

/** `arriving_ms`: how long the next one was on its way. */
export function memoryBlobs(clock: Clock, arriving_ms: () => number): Blobs {
  const stored = new Map<string, { bytes: Buffer; modified: number }>()
  const find = (key: string): Buffer => {
    const blob = stored.get(key)
    if (!blob) throw new BlobMissing(key)
    return blob.bytes
  }
  return {
    async put(key, source) {
      const pieces: Uint8Array[] = []
      for await (const piece of source) pieces.push(piece)
      const bytes = Buffer.concat(pieces)
      stored.set(key, { bytes, modified: clock.now() - arriving_ms() })
      return bytes.length
    },
    async *read(key, range) {
      const bytes = find(key)
      yield range ? bytes.subarray(range.start, range.end) : bytes
    },
    size: async (key) => find(key).length,
    async delete(key) {
      stored.delete(key)
    },
    async *list(prefix) {
      for (const [key, { bytes, modified }] of [...stored])
        if (key.startsWith(prefix)) yield { key, bytes: bytes.length, modified }
    },
  }
}
