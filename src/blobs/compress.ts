// zstd for one frame at a time. Big frames go to the thread pool; for small ones the way there and back
// costs more than the work.
import { promisify } from 'node:util'
import { constants, zstdCompressSync, zstdDecompress, zstdDecompressSync } from 'node:zlib'
import { FRAME_BYTES } from './frame-cipher.ts'
import { ZstdPackers } from './zstd-packer.ts'

const expandAside = promisify(zstdDecompress)

/** Below this a zstd frame's own header eats what is saved. */
const COMPRESS_BYTES_MIN = 64
/** Up to here the event loop does it itself, in about a tenth of a millisecond. */
const INLINE_BYTES_MAX = 32 * 1024
/** On lines of JSON level 1 shrinks as well as level 3 does, in less time. */
const LEVEL = 1
/** The smallest that zlib accepts. */
const CHUNK_BYTES_MIN = 64

const packers = new ZstdPackers(LEVEL, FRAME_BYTES)

/** `plain` as one zstd frame, or null when that is no smaller. */
export async function compress(plain: Buffer): Promise<Buffer | null> {
  if (plain.length < COMPRESS_BYTES_MIN) return null
  const small = plain.length <= INLINE_BYTES_MAX ? compressInline(plain) : await packers.pack(plain)
  return small.length < plain.length ? small : null
}

function compressInline(plain: Buffer): Buffer {
  return zstdCompressSync(plain, {
    params: { [constants.ZSTD_c_compressionLevel]: LEVEL },
    pledgedSrcSize: plain.length,
    chunkSize: plain.length,
  })
}

/** What `compress` was given; throws when it is not `plain_bytes` long or no zstd frame. */
export async function expand(compressed: Buffer, plain_bytes: number): Promise<Buffer> {
  const options = {
    chunkSize: Math.max(CHUNK_BYTES_MIN, plain_bytes),
    maxOutputLength: Math.max(1, plain_bytes),
  }
  const plain =
    plain_bytes <= INLINE_BYTES_MAX
      ? zstdDecompressSync(compressed, options)
      : await expandAside(compressed, options)
  if (plain.length !== plain_bytes)
    throw new Error(`${plain.length} bytes came out where ${plain_bytes} were expected`)
  return plain
}
