// Where each frame of a blob begins, so that a range is read without what lies before it. Written last and
// sealed like a frame:
//
//   plaintext bytes of the whole blob (8) | payload length of each frame (4 each)
//
// Its own length follows from the number of frames, so it is found by counting back from the end of the blob.
import { BlobDamaged } from './blobs.ts'
import { HEAD_BYTES, HEADER_BYTES, TAG_BYTES } from './frame-cipher.ts'

const TOTAL_BYTES = 8
const ENTRY_BYTES = 4

/** The payload length of the table of a blob with `frames` frames. */
export function tablePayloadBytes(frames: number): number {
  return TOTAL_BYTES + ENTRY_BYTES * frames
}

export function encodeTable(bytes: number, payload_bytes: readonly number[]): Buffer {
  const table = Buffer.allocUnsafe(tablePayloadBytes(payload_bytes.length))
  table.writeBigUInt64BE(BigInt(bytes))
  for (const [i, length] of payload_bytes.entries())
    table.writeUInt32BE(length, TOTAL_BYTES + ENTRY_BYTES * i)
  return table
}

export class FrameTable {
  /** Offset in the stored blob of each frame's head, then of what follows the last frame. */
  readonly #offsets: Float64Array

  private constructor(offsets: Float64Array) {
    this.#offsets = offsets
  }

  /** Of a blob that is one frame, `stored_bytes` long with its header. */
  static ofSole(stored_bytes: number): FrameTable {
    return new FrameTable(Float64Array.of(HEADER_BYTES, stored_bytes))
  }

  /**
   * `payload` has opened, so it is what was written; it must still be what is recorded of blob `key`: `bytes` of
   * plaintext. Throws BlobDamaged.
   */
  static parse(key: string, payload: Buffer, bytes: number): FrameTable {
    const total = Number(payload.readBigUInt64BE())
    if (total !== bytes) throw new BlobDamaged(key, `it holds ${total} bytes where ${bytes} are recorded`)
    const frames = (payload.length - TOTAL_BYTES) / ENTRY_BYTES
    const offsets = new Float64Array(frames + 1)
    let offset = HEADER_BYTES
    for (let i = 0; i < frames; i++) {
      offsets[i] = offset
      offset += HEAD_BYTES + payload.readUInt32BE(TOTAL_BYTES + ENTRY_BYTES * i) + TAG_BYTES
    }
    offsets[frames] = offset
    return new FrameTable(offsets)
  }

  /** Where the head of frame `number` begins; one past the last frame, where the frames end. */
  offset(number: number): number {
    const offset = this.#offsets[number]
    if (offset === undefined) throw new RangeError(`there is no frame ${number}`)
    return offset
  }
}
