// Decrypts stored blobs. A byte is yielded only after its frame was authenticated. Whether the blob is complete is known
// only at the end of the stream, so a reader must wait for that before it relies on the whole content.

import { freeBuffer } from '../domain/free-buffer.ts'
import { mapAhead } from '../domain/project-queue.ts'
import { BlobDamaged, type Blobs, type ByteRange } from './blobs.ts'
import {
  type FrameCipher,
  type FrameHead,
  type FrameOffsets,
  frameCount,
  HEAD_BYTES,
  HEADER_BYTES,
  type Header,
  parseHead,
  parseHeader,
  parseTable,
  soleFrameOffsets,
  TAG_BYTES,
  tablePayloadBytes,
} from './frame-cipher.ts'
import { expand } from './seal-frames.ts'

/** The number of a blob's frames that are decrypted and decompressed ahead of the reader. */
const FRAMES_AHEAD = 2

/** An encrypted blob to read. */
export interface Sealed {
  key: string
  /** The length of the plaintext in bytes, as recorded by the writer. */
  bytes: number
  cipher(header: Header): FrameCipher
}

interface Frame {
  number: number
  head: FrameHead
  sealed: Buffer
}

/** Decrypts the whole blob in one sequential pass, and checks it to its last byte. */
export async function* openWhole(blobs: Blobs, blob: Sealed): AsyncGenerator<Buffer, void, undefined> {
  const reader = new ByteReader(blobs.read(blob.key))
  try {
    const cipher = blob.cipher(parseHeader(blob.key, await reader.take(HEADER_BYTES)))
    yield* mapAhead(wholeFrames(reader, blob, cipher), FRAMES_AHEAD, (frame) => plain(blob, cipher, frame))
  } finally {
    await reader.close()
  }
}

/** The header and the frame offsets of a blob, from which any number of ranges can be read. */
export interface Opened {
  header: Header
  offsets: FrameOffsets
}

/** Reads the header and the frame offsets of a blob. */
export async function openTable(blobs: Blobs, blob: Sealed): Promise<Opened> {
  const [stored_bytes, pieces] = await Promise.all([
    blobs.size(blob.key),
    Array.fromAsync(blobs.read(blob.key, { start: 0, end: HEADER_BYTES })),
  ])
  const header = parseHeader(blob.key, Buffer.concat(pieces))
  const frames = frameCount(blob.bytes, header.frame_bytes)
  if (frames === 1) return { header, offsets: soleFrameOffsets(stored_bytes) }
  const at = stored_bytes - (HEAD_BYTES + tablePayloadBytes(frames) + TAG_BYTES)
  if (at < HEADER_BYTES) throw new BlobDamaged(blob.key, 'cut short: there is no room for its frame table')
  const reader = new ByteReader(blobs.read(blob.key, { start: at, end: stored_bytes }))
  try {
    const offsets = await takeTable(reader, blob, blob.cipher(header), frames)
    const end = offsets[frames] ?? 0
    if (end !== at) throw new BlobDamaged(blob.key, `${at - end} bytes were added among its frames`)
    return { header, offsets }
  } finally {
    await reader.close()
  }
}

/** Decrypts `range`, a non-empty part of the blob; reads only the frames that contain it. */
export async function* openRange(
  blobs: Blobs,
  blob: Sealed,
  { header, offsets }: Opened,
  range: ByteRange,
): AsyncGenerator<Buffer, void, undefined> {
  const first = Math.floor(range.start / header.frame_bytes)
  const behind = Math.ceil(range.end / header.frame_bytes)
  const cipher = blob.cipher(header)
  const reader = new ByteReader(blobs.read(blob.key, { start: offsets[first]!, end: offsets[behind]! }))
  try {
    let at = first * header.frame_bytes
    const frames = mapAhead(someFrames(reader, blob, cipher, first, behind), FRAMES_AHEAD, (frame) =>
      plain(blob, cipher, frame),
    )
    for await (const bytes of frames) {
      yield bytes.subarray(Math.max(0, range.start - at), Math.min(bytes.length, range.end - at))
      at += bytes.length
    }
    await assertEnd(reader, blob)
  } finally {
    await reader.close()
  }
}

async function* wholeFrames(
  reader: ByteReader,
  blob: Sealed,
  cipher: FrameCipher,
): AsyncGenerator<Frame, void, undefined> {
  const frames = frameCount(blob.bytes, cipher.header.frame_bytes)
  yield* someFrames(reader, blob, cipher, 0, frames)
  if (frames > 1) await takeTable(reader, blob, cipher, frames)
  await assertEnd(reader, blob)
}

async function assertEnd(reader: ByteReader, blob: Sealed): Promise<void> {
  const more = await reader.take(1)
  if (more.length > 0) throw new BlobDamaged(blob.key, 'bytes were added behind its last frame')
}

async function* someFrames(
  reader: ByteReader,
  blob: Sealed,
  cipher: FrameCipher,
  first: number,
  behind: number,
): AsyncGenerator<Frame, void, undefined> {
  const sole = frameCount(blob.bytes, cipher.header.frame_bytes) === 1
  for (let number = first; number < behind; number++) {
    const frame = await takeFrame(reader, blob, number, cipher.header.frame_bytes)
    if (frame.head.last !== sole) {
      const says = frame.head.last ? 'ends the blob too early' : 'does not end the blob'
      throw new BlobDamaged(
        blob.key,
        `frame ${number} ${says}: frames are missing, or ${blob.bytes} is not its size`,
      )
    }
    yield frame
  }
}

async function takeTable(
  reader: ByteReader,
  blob: Sealed,
  cipher: FrameCipher,
  number: number,
): Promise<FrameOffsets> {
  const payload_bytes = tablePayloadBytes(number)
  const { head, sealed } = await takeFrame(reader, blob, number, payload_bytes)
  if (!head.last || head.zstd || head.payload_bytes !== payload_bytes)
    throw new BlobDamaged(blob.key, `its frame table is not behind frame ${number - 1}`)
  return parseTable(blob.key, cipher.open(number, head, sealed), blob.bytes)
}

async function takeFrame(
  reader: ByteReader,
  blob: Sealed,
  number: number,
  payload_bytes_max: number,
): Promise<Frame> {
  const raw = await reader.take(HEAD_BYTES)
  if (raw.length < HEAD_BYTES) throw new BlobDamaged(blob.key, `cut short before frame ${number}`)
  const head = parseHead(raw)
  // The length is checked before it is used: it is not authenticated until the frame has opened.
  if (head.payload_bytes > payload_bytes_max)
    throw new BlobDamaged(blob.key, `frame ${number} claims ${head.payload_bytes} bytes`)
  const sealed = await reader.take(head.payload_bytes + TAG_BYTES)
  if (sealed.length < head.payload_bytes + TAG_BYTES)
    throw new BlobDamaged(blob.key, `cut short within frame ${number}`)
  return { number, head, sealed }
}

async function plain(blob: Sealed, cipher: FrameCipher, { number, head, sealed }: Frame): Promise<Buffer> {
  const { frame_bytes } = cipher.header
  const payload = cipher.open(number, head, sealed)
  const expected = Math.min(frame_bytes, blob.bytes - number * frame_bytes)
  if (head.zstd) {
    const expanded = await expand(payload, expected).catch((cause) => {
      throw new BlobDamaged(blob.key, `frame ${number} does not expand: ${cause.message}`)
    })
    freeBuffer(payload)
    return expanded
  }
  if (payload.length !== expected)
    throw new BlobDamaged(blob.key, `frame ${number} holds ${payload.length} bytes, not ${expected}`)
  return payload
}

/**
 * Reads a stream of pieces of any size in blocks of a requested size. The next piece is requested while one is being
 * used, so that the store and the cipher work concurrently.
 */
export class ByteReader {
  readonly #source: AsyncIterator<Buffer>
  #next: Promise<IteratorResult<Buffer>> | null
  #held: Buffer[] = []
  #held_bytes = 0

  constructor(source: AsyncIterable<Buffer>) {
    this.#source = source[Symbol.asyncIterator]()
    this.#next = this.#ask()
  }

  /** Reads the next `bytes` bytes; fewer only at the end of the stream. Throws the stream's errors. */
  async take(bytes: number): Promise<Buffer> {
    while (this.#held_bytes < bytes && this.#next !== null) {
      const piece = await this.#next
      this.#next = piece.done ? null : this.#ask()
      if (piece.done) break
      this.#held.push(piece.value)
      this.#held_bytes += piece.value.length
    }
    return this.#cut(Math.min(bytes, this.#held_bytes))
  }

  /** Closes the stream of a blob, also before its end. */
  async close(): Promise<void> {
    this.#next = null
    await this.#source.return?.()
  }

  #ask(): Promise<IteratorResult<Buffer>> {
    const next = this.#source.next()
    // The next call throws the failure; after close() there is no next call.
    next.catch(() => {})
    return next
  }

  #cut(bytes: number): Buffer {
    const first = this.#held[0]
    if (first === undefined) return Buffer.alloc(0)
    this.#held_bytes -= bytes
    if (first.length >= bytes) {
      this.#held[0] = first.subarray(bytes)
      if (first.length === bytes) this.#held.shift()
      return first.subarray(0, bytes)
    }
    const all = Buffer.concat(this.#held)
    this.#held = all.length > bytes ? [all.subarray(bytes)] : []
    return all.subarray(0, bytes)
  }
}
