// The sealed format, version 1: a header, then frames in the STREAM layout (Hoang, Reyhanitabar, Rogaway, Vizár,
// "Online Authenticated-Encryption and its Nonce-Reuse Misuse-Resistance", 2015).
//
//   header    magic "OPKSEAL" (7) | version (1) | flags, none yet (1) | nonce prefix (7) | frame size (4)
//   frame     head (4: last flag, zstd flag, 30 bits of payload length) | payload | tag (16)
//
// Integers are big-endian. Every frame but the last holds `frame size` bytes of plaintext, compressed or not.
// A frame is sealed by AES-256-GCM under the blob's own key; its nonce is prefix | frame number (4) | last (1),
// its associated data are header, project, blob key and head. So a frame opens only in its own place of its own
// blob, and the end of a blob cannot be moved.
//
// A blob of at most one frame ends with that frame. A longer one ends with its frame table, itself sealed as
// the last frame (below). Lengths stand both before each frame and in the table: a reader of the whole
// needs no second pass, a reader of a range no more than the table and the frames it asks for.
import { createCipheriv, createDecipheriv, createSecretKey, type KeyObject, randomBytes } from 'node:crypto'
import { BlobDamaged } from './blobs.ts'
import { owner } from './wrap-key.ts'

export const FRAME_BYTES = 256 * 1024
/** The largest frame in bytes that a header may declare: a reader holds it in memory. */
export const FRAME_BYTES_MAX = 1024 * 1024
export const HEADER_BYTES = 20
export const HEAD_BYTES = 4
export const TAG_BYTES = 16

const MAGIC_AND_VERSION = Buffer.from('OPKSEAL\x01', 'latin1')
const FLAGS_AT = 8
const PREFIX_AT = 9
const PREFIX_BYTES = 7
const FRAME_BYTES_AT = 16
const LAST = 0x8000_0000
const ZSTD = 0x4000_0000
const PAYLOAD_BYTES_MAX = ZSTD - 1
const NONCE_BYTES = 12
const FRAME_NUMBER_MAX = 2 ** 32 - 1

export interface Header {
  raw: Buffer
  frame_bytes: number
}

export interface FrameHead {
  last: boolean
  zstd: boolean
  payload_bytes: number
}

export function newHeader(frame_bytes: number): Header {
  const raw = Buffer.alloc(HEADER_BYTES)
  MAGIC_AND_VERSION.copy(raw)
  randomBytes(PREFIX_BYTES).copy(raw, PREFIX_AT)
  raw.writeUInt32BE(frame_bytes, FRAME_BYTES_AT)
  return { raw, frame_bytes }
}

/** Parses the header of blob `key`; only an opened frame authenticates it. Throws BlobDamaged. */
export function parseHeader(key: string, raw: Buffer): Header {
  if (raw.length < HEADER_BYTES) throw new BlobDamaged(key, 'cut short within its header')
  if (!raw.subarray(0, MAGIC_AND_VERSION.length).equals(MAGIC_AND_VERSION) || raw[FLAGS_AT] !== 0)
    throw new BlobDamaged(key, 'its header is not that of a sealed blob')
  const frame_bytes = raw.readUInt32BE(FRAME_BYTES_AT)
  if (frame_bytes < 1 || frame_bytes > FRAME_BYTES_MAX)
    throw new BlobDamaged(key, `its header asks for frames of ${frame_bytes} bytes`)
  return { raw, frame_bytes }
}

/** The number of frames for `bytes` of plaintext; an empty blob has one empty frame. */
export function frameCount(bytes: number, frame_bytes: number): number {
  return Math.max(1, Math.ceil(bytes / frame_bytes))
}

export function parseHead(bytes: Buffer): FrameHead {
  const word = bytes.readUInt32BE(0)
  return {
    last: (word & LAST) !== 0,
    zstd: (word & ZSTD) !== 0,
    payload_bytes: word & PAYLOAD_BYTES_MAX,
  }
}

/** Seals and opens the frames of one blob. */
export class FrameCipher {
  readonly header: Header
  readonly #key: string
  readonly #data_key: KeyObject
  /** The associated data: header, project, key and, rewritten for each frame, its head. */
  readonly #associated: Buffer
  readonly #head: Buffer
  readonly #nonce = Buffer.alloc(NONCE_BYTES)

  constructor(header: Header, data_key: Buffer, project_id: string, key: string) {
    this.header = header
    this.#key = key
    this.#data_key = createSecretKey(data_key)
    this.#associated = Buffer.concat([header.raw, owner(project_id, key), Buffer.alloc(HEAD_BYTES)])
    this.#head = this.#associated.subarray(-HEAD_BYTES)
    header.raw.copy(this.#nonce, 0, PREFIX_AT, PREFIX_AT + PREFIX_BYTES)
  }

  /** Encrypts frame `number`. Returns head, ciphertext and tag, in the order in which they are stored. */
  seal(number: number, payload: Buffer, how: { last: boolean; zstd: boolean }): [Buffer, Buffer, Buffer] {
    this.#place(number, { ...how, payload_bytes: payload.length })
    const cipher = createCipheriv('aes-256-gcm', this.#data_key, this.#nonce)
    cipher.setAAD(this.#associated)
    const sealed = cipher.update(payload)
    cipher.final()
    return [Buffer.from(this.#head), sealed, cipher.getAuthTag()]
  }

  /** Decrypts frame `number`; `sealed` is its ciphertext and tag. Throws BlobDamaged. */
  open(number: number, head: FrameHead, sealed: Buffer): Buffer {
    this.#place(number, head)
    const decipher = createDecipheriv('aes-256-gcm', this.#data_key, this.#nonce, {
      authTagLength: TAG_BYTES,
    })
    decipher.setAAD(this.#associated)
    decipher.setAuthTag(sealed.subarray(head.payload_bytes))
    const payload = decipher.update(sealed.subarray(0, head.payload_bytes))
    try {
      decipher.final()
    } catch {
      throw new BlobDamaged(
        this.#key,
        `frame ${number} does not authenticate: altered, moved, or part of another blob`,
      )
    }
    return payload
  }

  #place(number: number, head: FrameHead): void {
    if (number > FRAME_NUMBER_MAX) throw new RangeError('a sealed blob has at most 2^32 frames')
    if (head.payload_bytes > PAYLOAD_BYTES_MAX) throw new RangeError('a frame is below 1 GiB')
    this.#head.writeUInt32BE((head.last ? LAST : 0) + (head.zstd ? ZSTD : 0) + head.payload_bytes)
    this.#nonce.writeUInt32BE(number, PREFIX_BYTES)
    this.#nonce[NONCE_BYTES - 1] = head.last ? 1 : 0
  }
}

// Where each frame of a blob begins, so that a range is read without what lies before it. Written last and
// sealed like a frame:
//
//   plaintext bytes of the whole blob (8) | payload length of each frame (4 each)
//
// Its own length follows from the number of frames, so it is found by counting back from the end of the blob.

const TOTAL_BYTES = 8
const ENTRY_BYTES = 4

/** The length in bytes of the frame table's payload for a blob with `frames` frames. */
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

/** The offset in the stored blob of each frame's head, then that of the end of the last frame. */
export type FrameOffsets = Float64Array

/** The offsets of a blob with a single frame, `stored_bytes` long with its header. */
export function soleFrameOffsets(stored_bytes: number): FrameOffsets {
  return Float64Array.of(HEADER_BYTES, stored_bytes)
}

/**
 * Parses the payload of an authenticated frame table; its total must be the recorded `bytes` of plaintext of blob
 * `key`. Throws BlobDamaged.
 */
export function parseTable(key: string, payload: Buffer, bytes: number): FrameOffsets {
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
  return offsets
}
