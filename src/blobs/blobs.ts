// The port of object storage: immutable blobs under keys. A folder (disk/) and an S3-compatible bucket (s3/) implement
// it; sealed.ts encrypts either. No caller relies on conditional writes or on the order of a listing.

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

/** The stored bytes differ from what was written: altered, truncated, swapped or decayed. */
export class BlobDamaged extends Error {
  readonly key: string
  constructor(key: string, how: string) {
    super(`blob ${key} is damaged: ${how}`)
    this.name = 'BlobDamaged'
    this.key = key
  }
}

/** The store failed: full, read-only, unreachable. The cause is attached. */
export class BlobStoreFailed extends Error {
  constructor(doing: string, cause: unknown) {
    super(`blob store failed while ${doing}: ${cause instanceof Error ? cause.message : String(cause)}`, {
      cause,
    })
    this.name = 'BlobStoreFailed'
  }
}

/** Whether the content itself is wrong, as opposed to a failure of the store. */
export function isDamaged(error: unknown): boolean {
  return error instanceof BlobDamaged || error instanceof BlobMissing
}
