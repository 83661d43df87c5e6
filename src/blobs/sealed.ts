// Encryption at rest over any blob store: content reaches the store only encrypted, and altered content is detected when
// it is read. frame-cipher.ts describes the format, wrap-key.ts the keys. Sizes and keys of blobs are not secret.

import { randomBytes } from 'node:crypto'
import { BoundedMap } from '../domain/bounded-map.ts'
import { freeBuffer, largeBuffer } from '../domain/free-buffer.ts'
import { type Blobs, type ByteRange, cutRange, type Source } from './blobs.ts'
import { FRAME_BYTES, FRAME_BYTES_MAX, FrameCipher, newHeader } from './frame-cipher.ts'
import type { MasterKey } from './master-key.ts'
import { type Opened, openRange, openTable, openWhole, type Sealed } from './open-frames.ts'
import { sealFrames } from './seal-frames.ts'
import { DATA_KEY_BYTES, unwrapKey, wrapKey } from './wrap-key.ts'

/** The facts about an encrypted blob that SQL keeps, from which it is found and decrypted. */
export interface SealedBlob {
  key: string
  /** The blob's data key, wrapped by the master key with (project, key) as associated data; base64url. */
  wrapped_key: string
  /** The length of the blob's plaintext in bytes. */
  bytes: number
}

export type SealedBlobs = Pick<Sealing, 'put' | 'read' | 'readAll' | 'delete'>

/** Deletes blobs to which no row refers. A blob that cannot be deleted becomes an orphan, and the sweep deletes it. */
export async function discardBlobs(
  sealed: Pick<SealedBlobs, 'delete'>,
  blobs: readonly SealedBlob[],
): Promise<void> {
  await Promise.allSettled(blobs.map(({ key }) => sealed.delete(key)))
}

/** The number of cached frame tables: chunks of one large input are read range by range. */
const TABLES_KEPT = 32

/** Encrypts a blob store. New blobs have frames of `frame_bytes`; each blob's header has its own frame size. */
export function sealBlobs(
  blobs: Blobs,
  master: MasterKey,
  { frame_bytes = FRAME_BYTES }: { frame_bytes?: number } = {},
): SealedBlobs {
  if (!Number.isInteger(frame_bytes) || frame_bytes < 1 || frame_bytes > FRAME_BYTES_MAX)
    throw new RangeError(`frames have 1 to ${FRAME_BYTES_MAX} bytes`)
  return new Sealing(blobs, master, frame_bytes)
}

class Sealing {
  readonly #blobs: Blobs
  readonly #master: MasterKey
  readonly #frame_bytes: number
  /** The cached frame tables by wrapped key, which no two blobs share; the last used at the end. */
  readonly #tables = new BoundedMap<string, Opened>(TABLES_KEPT)

  constructor(blobs: Blobs, master: MasterKey, frame_bytes: number) {
    this.#blobs = blobs
    this.#master = master
    this.#frame_bytes = frame_bytes
  }

  /**
   * Encrypts and stores a blob, like Blobs.put. Pieces of an asynchronous `source` are copied before the next one is
   * requested; pieces of other sources must not change any more. `isGiven`: the caller no longer reads the pieces, so
   * that their memory is reused once they are sealed, if each is a frame.
   */
  async put(project_id: string, key: string, source: Source, isGiven = false): Promise<SealedBlob> {
    const dataKey = randomBytes(DATA_KEY_BYTES)
    const cipher = new FrameCipher(newHeader(this.#frame_bytes), dataKey, project_id, key)
    let bytes = 0
    const stored = sealFrames(cipher, source, isGiven, (total) => {
      bytes = total
    })
    await this.#blobs.put(key, stored)
    return { key, wrapped_key: wrapKey(dataKey, project_id, key, this.#master), bytes }
  }

  /**
   * Decrypts `range`, or all, frame by frame. Every byte is authenticated before it is yielded; the end of the stream
   * shows that the blob is complete. Throws BlobMissing, BlobDamaged, BlobStoreFailed.
   */
  async *read(
    project_id: string,
    blob: SealedBlob,
    range?: ByteRange,
  ): AsyncGenerator<Buffer, void, undefined> {
    const dataKey = unwrapKey(blob.wrapped_key, project_id, blob.key, this.#master)
    const sealed: Sealed = {
      key: blob.key,
      bytes: blob.bytes,
      cipher: (header) => new FrameCipher(header, dataKey, project_id, blob.key),
    }
    const wanted = cutRange(range, blob.bytes)
    const whole = wanted.start === 0 && wanted.end === blob.bytes
    if (!whole && wanted.start === wanted.end) return
    if (whole || blob.bytes <= this.#frame_bytes) {
      let at = 0
      for await (const bytes of openWhole(this.#blobs, sealed)) {
        const part = bytes.subarray(Math.max(0, wanted.start - at), Math.max(0, wanted.end - at))
        if (part.length > 0) yield part
        at += bytes.length
      }
    } else {
      yield* openRange(this.#blobs, sealed, await this.#opened(blob, sealed), wanted)
    }
  }

  /** Reads a blob, or a range of it, into one buffer. */
  async readAll(project_id: string, blob: SealedBlob, range?: ByteRange): Promise<Buffer> {
    const parts = await Array.fromAsync(this.read(project_id, blob, range))
    const [only] = parts
    // A small part of a frame must not keep the whole frame in memory.
    if (parts.length === 1 && only && only.length * 2 >= only.buffer.byteLength) return only
    const all = largeBuffer(parts.reduce((sum, { length }) => sum + length, 0))
    let at = 0
    for (const part of parts) {
      at += part.copy(all, at)
      freeBuffer(part)
    }
    return all
  }

  async delete(key: string): Promise<void> {
    await this.#blobs.delete(key)
  }

  async #opened(blob: SealedBlob, sealed: Sealed): Promise<Opened> {
    const id = blob.wrapped_key
    const opened = this.#tables.get(id) ?? (await openTable(this.#blobs, sealed))
    this.#tables.set(id, opened)
    return opened
  }
}
