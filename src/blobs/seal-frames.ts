// Plaintext in, stored bytes out: cut into frames, compressed on the thread pool a few at a time, sealed in
// order. Memory is the frames in flight, however long the blob; only the table grows, by 16 bytes a MiB.
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
}

/**
 * The stored form of `source`, whose pieces must not change once handed over. `ended` is called with the number
 * of bytes of plaintext when all of it has been sealed.
 */
export async function* sealFrames(
  cipher: FrameCipher,
  source: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
  ended: (bytes: number) => void,
): AsyncGenerator<Buffer, void, undefined> {
  yield cipher.header.raw
  const payload_bytes: number[] = []
  let bytes = 0
  let sole = false
  const frames = mapAhead(cutFrames(source, cipher.header.frame_bytes), FRAMES_AHEAD, async (plain) => ({
    plain,
    small: await compress(plain.bytes),
  }))
  for await (const { plain, small } of frames) {
    const payload = small ?? plain.bytes
    yield* cipher.seal(payload_bytes.length, payload, { last: plain.sole, zstd: small !== null })
    payload_bytes.push(payload.length)
    bytes += plain.bytes.length
    sole = plain.sole
  }
  if (!sole)
    yield* cipher.seal(payload_bytes.length, encodeTable(bytes, payload_bytes), { last: true, zstd: false })
  ended(bytes)
}

/** Runs of exactly `frame_bytes`, the last one shorter; each is held back until it is known to have a successor. */
async function* cutFrames(
  source: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
  frame_bytes: number,
): AsyncGenerator<PlainFrame, void, undefined> {
  let held: Buffer[] = []
  let held_bytes = 0
  let sole = true
  for await (const piece of source) {
    let rest = Buffer.from(piece.buffer, piece.byteOffset, piece.byteLength)
    while (held_bytes + rest.length > frame_bytes) {
      const cut = frame_bytes - held_bytes
      held.push(rest.subarray(0, cut))
      sole = false
      yield { bytes: joined(held), sole }
      held = []
      held_bytes = 0
      rest = rest.subarray(cut)
    }
    if (rest.length === 0) continue
    held.push(rest)
    held_bytes += rest.length
  }
  yield { bytes: joined(held), sole }
}

function joined(pieces: Buffer[]): Buffer {
  return pieces.length === 1 ? pieces[0]! : Buffer.concat(pieces)
}
