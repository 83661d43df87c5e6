// Encrypts blobs: the plaintext is cut into frames, which are compressed on the thread pool, a few at a time, and sealed
// in order. Memory is bounded by the frames in flight; only the table grows, by 16 bytes per MiB.

import { promisify } from 'node:util'
import {
  constants,
  createZstdCompress,
  type ZstdCompress,
  type ZstdOptions,
  zstdCompressSync,
  zstdDecompress,
  zstdDecompressSync,
} from 'node:zlib'
import { largeBuffer, reuseBuffer } from '../domain/free-buffer.ts'
import { mapAhead, Slots } from '../domain/project-queue.ts'
import type { Source } from './blobs.ts'
import { encodeTable, FRAME_BYTES, type FrameCipher } from './frame-cipher.ts'

// Reuses zstd contexts. Creating one per frame, which allocates a megabyte, costs as much as compressing a frame that
// compresses well. A context serves one frame at a time, and a frame waits for one: the thread pool compresses no more at once.

/** The limit of zstd contexts, equal to the threads of the pool; each takes about a megabyte. */
const PACKERS_MAX = 4

export class ZstdPackers {
  readonly #slots = new Slots(PACKERS_MAX)
  readonly #idle: Packer[] = []
  readonly #options: ZstdOptions

  /** Makes a sealer. `level`: zstd's. `frame_bytes`: the expected size of frames; longer ones work as well. */
  constructor(level: number, frame_bytes: number) {
    this.#options = {
      params: { [constants.ZSTD_c_compressionLevel]: level },
      // Each write becomes one complete frame.
      flush: constants.ZSTD_e_end,
      // Room for incompressible data: one pass through the pool, where the default takes one per 16 KiB.
      chunkSize: frame_bytes + Math.ceil(frame_bytes / 128),
    }
  }

  /** Compresses `plain`, non-empty and unchanged meanwhile, into one zstd frame on the thread pool. */
  async pack(plain: Buffer): Promise<Buffer> {
    return await this.#slots.run(async () => {
      const packer = this.#idle.pop() ?? new Packer(this.#options)
      try {
        const packed = await packer.pack(plain)
        this.#idle.push(packer)
        return packed
      } catch (error) {
        packer.close()
        throw error
      }
    })
  }
}

class Packer {
  readonly #stream: ZstdCompress
  #pieces: Buffer[] = []

  constructor(options: ZstdOptions) {
    this.#stream = createZstdCompress(options)
    this.#stream.on('data', (piece: Buffer) => this.#pieces.push(piece))
    // The failed write throws the error.
    this.#stream.on('error', () => {})
  }

  pack(plain: Buffer): Promise<Buffer> {
    return new Promise((resolve, reject) => {
      this.#stream.write(plain, (error) => {
        if (error) return reject(error)
        const pieces = this.#pieces
        this.#pieces = []
        resolve(pieces.length === 1 ? pieces[0]! : Buffer.concat(pieces))
      })
    })
  }

  close(): void {
    this.#stream.destroy()
  }
}

// Compresses one frame at a time with zstd, large frames on the thread pool; for small ones the switch of threads costs
// more than the work.

const expandAside = promisify(zstdDecompress)

/** The smallest input in bytes that is compressed: below, a zstd frame's own header exceeds the savings. */
const COMPRESS_BYTES_MIN = 64
/** The largest input in bytes that the event loop compresses itself, in about 0.1 ms. */
const INLINE_BYTES_MAX = 32 * 1024
/** The compression level: for JSONL, level 1 is as small as level 3, in less time. */
export const ZSTD_LEVEL = 1
/** The smallest buffer that zlib accepts. */
const CHUNK_BYTES_MIN = 64

const packers = new ZstdPackers(ZSTD_LEVEL, FRAME_BYTES)

/** Compresses `plain` into one zstd frame; null when that is no smaller. */
async function compress(plain: Buffer): Promise<Buffer | null> {
  if (plain.length < COMPRESS_BYTES_MIN) return null
  const small = plain.length <= INLINE_BYTES_MAX ? compressInline(plain) : await packers.pack(plain)
  return small.length < plain.length ? small : null
}

function compressInline(plain: Buffer): Buffer {
  return zstdCompressSync(plain, {
    params: { [constants.ZSTD_c_compressionLevel]: ZSTD_LEVEL },
    pledgedSrcSize: plain.length,
    chunkSize: plain.length,
  })
}

/** Decompresses the output of `compress`; throws unless it is a zstd frame of `plain_bytes` of plaintext. */
export async function expand(compressed: Buffer, plain_bytes: number): Promise<Buffer> {
  const options = {
    // One byte to spare: for a full buffer, Node would allocate a second one and run another pass.
    chunkSize: Math.max(CHUNK_BYTES_MIN, plain_bytes + 1),
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

/** The number of frames compressed ahead: enough to keep the thread pool busy during sealing and writing. */
const FRAMES_AHEAD = 3

interface PlainFrame {
  bytes: Buffer
  /** Whether the frame is the blob's only one. */
  sole: boolean
  /** Whether the buffers may be reused once the frame is sealed, because they are a copy or were handed over. */
  isOwn: boolean
}

/**
 * Encrypts `source` into the stored form of a blob. `ended` gets the number of bytes of plaintext when all of it has
 * been sealed.
 */
export async function* sealFrames(
  cipher: FrameCipher,
  source: Source,
  isGiven: boolean,
  ended: (bytes: number) => void,
): AsyncGenerator<Buffer, void, undefined> {
  yield cipher.header.raw
  const { frame_bytes } = cipher.header
  const payloadBytes: number[] = []
  let bytes = 0
  let sole = false
  const plainFrames =
    Symbol.asyncIterator in source ? copyFrames(source, frame_bytes) : cutFrames(source, frame_bytes, isGiven)
  const frames = mapAhead(plainFrames, FRAMES_AHEAD, async (plain) => ({
    plain,
    small: await compress(plain.bytes),
  }))
  for await (const { plain, small } of frames) {
    const payload = small ?? plain.bytes
    const sealed = cipher.seal(payloadBytes.length, payload, { last: plain.sole, zstd: small !== null })
    payloadBytes.push(payload.length)
    bytes += plain.bytes.length
    if (plain.isOwn) reuseBuffer(plain.bytes)
    yield* sealed
    sole = plain.sole
  }
  if (!sole)
    yield* cipher.seal(payloadBytes.length, encodeTable(bytes, payloadBytes), { last: true, zstd: false })
  ended(bytes)
}

/**
 * Copies a stream into frames of exactly `frame_bytes`, the last one shorter; each frame is delayed until the next one
 * is known to exist. The buffers are reused, since those of a fast upload would keep the garbage collector busy.
 */
async function* copyFrames(
  source: AsyncIterable<Uint8Array>,
  frame_bytes: number,
): AsyncGenerator<PlainFrame, void, undefined> {
  let buffer: Buffer | null = null
  let filled = 0
  let sole = true
  for await (const piece of source) {
    for (let at = 0; at < piece.length; ) {
      if (buffer !== null && filled === frame_bytes) {
        sole = false
        yield { bytes: buffer, sole, isOwn: true }
        buffer = null
        filled = 0
      }
      buffer ??= largeBuffer(frame_bytes)
      const part = piece.subarray(at, at + frame_bytes - filled)
      buffer.set(part, filled)
      filled += part.length
      at += part.length
    }
  }
  yield { bytes: buffer?.subarray(0, filled) ?? Buffer.alloc(0), sole, isOwn: buffer !== null }
}

/** Cuts pieces in memory into frames of exactly `frame_bytes`; a frame within one piece is not copied. */
function* cutFrames(
  source: Iterable<Uint8Array>,
  frame_bytes: number,
  isGiven: boolean,
): Generator<PlainFrame, void, undefined> {
  /** Whether no piece was cut, so that no two frames share memory. */
  let isWhole = true
  let held: Buffer[] = []
  let heldBytes = 0
  let sole = true
  for (const piece of source) {
    let rest = Buffer.from(piece.buffer, piece.byteOffset, piece.byteLength)
    while (heldBytes + rest.length > frame_bytes) {
      const cut = frame_bytes - heldBytes
      if (cut > 0) {
        held.push(rest.subarray(0, cut))
        isWhole = false
      }
      sole = false
      yield joined(held, frame_bytes, sole, isGiven && isWhole)
      held = []
      heldBytes = 0
      rest = rest.subarray(cut)
    }
    if (rest.length === 0) continue
    held.push(rest)
    heldBytes += rest.length
  }
  yield joined(held, heldBytes, sole, isGiven && isWhole)
}

function joined(pieces: readonly Buffer[], length: number, sole: boolean, isOwn: boolean): PlainFrame {
  if (pieces.length === 1) return { bytes: pieces[0]!, sole, isOwn }
  const bytes = largeBuffer(length)
  let at = 0
  for (const piece of pieces) at += piece.copy(bytes, at)
  return { bytes, sole, isOwn: true }
}
