// The port of object storage: named runs of bytes, written once and whole. A folder (disk/) and any
// S3-compatible bucket (s3/) implement it; sealed.ts encrypts either. Correctness above never rests on
// conditional writes or on the order of a listing.

export interface ByteRange {
  /** First byte, inclusive. */
  start: number
  /** Last byte, exclusive. */
  end: number
}

export interface StoredBlob {
  key: string
  bytes: number
  /** Unix ms at which it became visible. */
  modified: number
}

export interface Blobs {
  /**
   * Stores all of `source` under `key` (segments of [A-Za-z0-9._-] joined by "/"). When it resolves, the blob
   * is durable and readable as a whole; if `source` or the store fails, nothing is visible under `key`.
   * Resolves to the number of bytes stored.
   */
  put(key: string, source: AsyncIterable<Uint8Array> | Iterable<Uint8Array>): Promise<number>
  /** The bytes of `range`, or all. Throws BlobMissing; a range past the end is cut to what is there. */
  read(key: string, range?: ByteRange): AsyncIterable<Buffer>
  /** The number of bytes stored under `key`. Throws BlobMissing. */
  size(key: string): Promise<number>
  /** Removes the blob; one that does not exist is no error. */
  delete(key: string): Promise<void>
  /** Every blob whose key begins with `prefix`, in no particular order; not what is still being written. */
  list(prefix: string): AsyncIterable<StoredBlob>
}

export class BlobMissing extends Error {
  readonly key: string
  constructor(key: string) {
    super(`there is no blob ${key}`)
    this.name = 'BlobMissing'
    this.key = key
  }
}

/** The stored bytes are not what was written: tampered with, cut short, swapped or rotten. */
export class BlobDamaged extends Error {
  readonly key: string
  constructor(key: string, how: string) {
    super(`blob ${key} is damaged: ${how}`)
    this.name = 'BlobDamaged'
    this.key = key
  }
}

/** The store refused: full, read-only, unreachable. The cause is attached. */
export class BlobStoreFailed extends Error {
  constructor(doing: string, cause: unknown) {
    super(`blob store failed while ${doing}: ${cause instanceof Error ? cause.message : String(cause)}`, {
      cause,
    })
    this.name = 'BlobStoreFailed'
  }
}

/** Whether it is the content that is wrong, rather than the way to it. */
export function isDamaged(error: unknown): boolean {
  return error instanceof BlobDamaged || error instanceof BlobMissing
}
