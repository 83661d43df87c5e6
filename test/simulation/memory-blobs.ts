// A blob store in memory without faults; machine.ts injects them. As in some buckets, the modification time of an
// object may be the start of its upload.
import { BlobMissing, type Blobs } from '../../src/blobs/blobs.ts'
import type { Clock } from '../../src/domain/clock.ts'

/** `uploadMs`: how long the next upload took. */
export function memoryBlobs(clock: Clock, uploadMs: () => number): Blobs {
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
      stored.set(key, { bytes, modified: clock.now() - uploadMs() })
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
