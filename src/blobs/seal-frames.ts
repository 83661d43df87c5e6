// Encrypts blobs: the plaintext is cut into frames, which are compressed on the thread pool, a few at a time, and sealed
// in order. Memory is bounded by the frames in flight; only the table grows, by 16 bytes per MiB.
import { compress } from './compress.ts'
import type { FrameCipher } from './frame-cipher.ts'
import { encodeTable } from './frame-table.ts'
import { mapAhead } from './map-ahead.ts'

/** Enough to keep the pool's threads busy while one frame is sealed and another written. */
const FRAMES_AHEAD = 3

interface PlainFrame {
  bytes: Buffer
  /** Whether no other frame follows, nor comes before. */
  sole: boolean
  /** To be filled again once the frame is sealed; null where the bytes are the source's own. */
  buffer: Buffer | null
}

/**
 * The stored form of `source`, as SealedBlobs.put takes it. `ended` is called with the number of bytes of plaintext
 * when all of it has been sealed.
 */
export async function* sealFrames(
  cipher: FrameCipher,
  source: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
  ended: (bytes: number) => void,
): AsyncGenerator<Buffer, void, undefined> {
  yield cipher.header.raw
  const { frame_bytes } = cipher.header
  const payloadBytes: number[] = []
  const free: Buffer[] = []
  let bytes = 0
  let sole = false
  const plainFrames =
    Symbol.asyncIterator in source
      ? copyFrames(source, frame_bytes, () => free.pop() ?? Buffer.allocUnsafeSlow(frame_bytes))
      : cutFrames(source, frame_bytes)
  const frames = mapAhead(plainFrames, FRAMES_AHEAD, async (plain) => ({
    plain,
    small: await compress(plain.bytes),
  }))
  for await (const { plain, small } of frames) {
    const payload = small ?? plain.bytes
    const sealed = cipher.seal(payloadBytes.length, payload, { last: plain.sole, zstd: small !== null })
    if (plain.buffer) free.push(plain.buffer)
    yield* sealed
    payloadBytes.push(payload.length)
    bytes += plain.bytes.length
    sole = plain.sole
  }
  if (!sole)
    yield* cipher.seal(payloadBytes.length, encodeTable(bytes, payloadBytes), { last: true, zstd: false })
  ended(bytes)
}

/**
 * Runs of exactly `frame_bytes`, the last one shorter; each is held back until it is known to have a successor.
 * What a stream brings is copied at once into buffers that go round, so nothing of it waits for the garbage
 * collector: a fast upload would otherwise set it going all the time.
 */
async function* copyFrames(
  source: AsyncIterable<Uint8Array>,
  frame_bytes: number,
  take: () => Buffer,
): AsyncGenerator<PlainFrame, void, undefined> {
  let buffer: Buffer | null = null
  let filled = 0
  let sole = true
  for await (const piece of source) {
    for (let at = 0; at < piece.length; ) {
      if (buffer !== null && filled === frame_bytes) {
        sole = false
        yield { bytes: buffer, sole, buffer }
        buffer = null
        filled = 0
      }
      buffer ??= take()
      const part = piece.subarray(at, at + frame_bytes - filled)
      buffer.set(part, filled)
      filled += part.length
      at += part.length
    }
  }
  yield { bytes: buffer?.subarray(0, filled) ?? Buffer.alloc(0), sole, buffer }
}

/** The same of pieces that are at hand: what lies within one of them is not copied. */
function* cutFrames(
  source: Iterable<Uint8Array>,
  frame_bytes: number,
): Generator<PlainFrame, void, undefined> {
  let held: Buffer[] = []
  let heldBytes = 0
  let sole = true
  for (const piece of source) {
    let rest = Buffer.from(piece.buffer, piece.byteOffset, piece.byteLength)
    while (heldBytes + rest.length > frame_bytes) {
      const cut = frame_bytes - heldBytes
      held.push(rest.subarray(0, cut))
      sole = false
      yield { bytes: joined(held), sole, buffer: null }
      held = []
      heldBytes = 0
      rest = rest.subarray(cut)
    }
    if (rest.length === 0) continue
    held.push(rest)
    heldBytes += rest.length
  }
  yield { bytes: joined(held), sole, buffer: null }
}

function joined(pieces: Buffer[]): Buffer {
  return pieces.length === 1 ? pieces[0]! : Buffer.concat(pieces)
}
