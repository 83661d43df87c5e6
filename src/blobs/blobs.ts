// The port of object storage: immutable blobs under keys. A folder (disk/) and an S3-compatible bucket (s3/) implement
// it; sealed.ts encrypts either. No caller relies on conditional writes or on the order of a listing.
import { ApiError, messageOf } from '../domain/errors.ts'

export interface ByteRange {
  /** The offset of the range's first byte. */
  start: number
  /** The offset behind the range's last byte. */
  end: number
}

export interface StoredBlob {
  key: string
  bytes: number
  /** The time when the blob became visible (Unix ms). */
  modified: number
}

export type Source = AsyncIterable<Uint8Array> | Iterable<Uint8Array>

export interface Blobs {
  /**
   * Stores all of `source` under `key` (segments of [A-Za-z0-9._-] joined by "/"). When it resolves, the blob
   * is durable and readable as a whole; if `source` or the store fails, nothing is visible under `key`.
   * Resolves to the number of bytes stored.
   */
  put(key: string, source: Source): Promise<number>
  /** Reads the bytes of `range`, or all. Throws BlobMissing; a range past the end is cut to the blob's bytes. */
  read(key: string, range?: ByteRange): AsyncIterable<Buffer>
  /** Reads the number of bytes stored under `key`. Throws BlobMissing. */
  size(key: string): Promise<number>
  /** Removes a blob; a missing blob is no error. */
  delete(key: string): Promise<void>
  /** Lists all complete blobs whose key begins with `prefix`, in no particular order. */
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

/** Returns null for the error of a missing blob; throws any other error again. */
export function nullIfMissing(error: unknown): null {
  if (error instanceof BlobMissing) return null
  throw error
}

/** The error for stored bytes that differ from the written ones: altered, truncated, swapped or decayed. */
export class BlobDamaged extends Error {
  readonly key: string
  constructor(key: string, how: string) {
    super(`blob ${key} is damaged: ${how}`)
    this.name = 'BlobDamaged'
    this.key = key
  }
}

/** The error of a store that is full, read-only or unreachable. The cause is attached. */
export class BlobStoreFailed extends Error {
  constructor(doing: string, cause: unknown) {
    super(`blob store failed while ${doing}: ${messageOf(cause)}`, {
      cause,
    })
    this.name = 'BlobStoreFailed'
  }

  /** Whether the blob store failed because it has no space left. */
  get isFull(): boolean {
    const { cause } = this
    return cause instanceof Error && 'code' in cause && ['ENOSPC', 'EDQUOT'].includes(String(cause.code))
  }
}

/** Awaits a call; throws its failure as BlobStoreFailed. `doing` names the call: "writing blob a/b". */
export async function attempt<T>(doing: string, call: Promise<T>): Promise<T> {
  try {
    return await call
  } catch (cause) {
    throw new BlobStoreFailed(doing, cause)
  }
}

/** Whether an error is about a blob's content rather than the store. */
export function isDamaged(error: unknown): error is BlobDamaged | BlobMissing {
  return error instanceof BlobDamaged || error instanceof BlobMissing
}

/** Converts the error of a blob into the error for the caller of the API. */
export function contentDamaged({ key }: BlobDamaged | BlobMissing): ApiError {
  return new ApiError('content_damaged', `The stored content \`${key}\` is damaged or missing.`)
}

// The rule for keys of blobs. Keys become file paths and bucket keys, so nothing that either reads in a special way
// may pass: no empty, "." or ".." segment, no other alphabet, nothing longer than a file name can be.

const KEY_LENGTH_MAX = 512
/** The longest segment in bytes: file systems allow names of 255 bytes. */
const SEGMENT_LENGTH_MAX = 255
const SEGMENT = /^[A-Za-z0-9._-]+$/
const PREFIX = /^[A-Za-z0-9._/-]*$/

/** Throws a RangeError for an invalid key; only our own code makes keys, so that is a defect. */
export function assertBlobKey(key: string): void {
  if (key.length > KEY_LENGTH_MAX) refuse(key, `it has more than ${KEY_LENGTH_MAX} characters`)
  for (const segment of key.split('/')) {
    if (!SEGMENT.test(segment)) refuse(key, 'segments are one or more of [A-Za-z0-9._-], joined by "/"')
    if (segment === '.' || segment === '..') refuse(key, `"${segment}" is no segment`)
    if (segment.length > SEGMENT_LENGTH_MAX)
      refuse(key, `a segment has more than ${SEGMENT_LENGTH_MAX} characters`)
  }
}

/** Throws a RangeError for a prefix that no key could have; the last segment may be incomplete. */
export function assertBlobPrefix(prefix: string): void {
  const whole = prefix.split('/').slice(0, -1)
  if (!PREFIX.test(prefix) || whole.some((segment) => ['', '.', '..'].includes(segment)))
    refuse(prefix, 'no key begins so')
}

function refuse(key: string, why: string): never {
  throw new RangeError(`${JSON.stringify(key.slice(0, KEY_LENGTH_MAX))} cannot name a blob: ${why}`)
}

/**
 * The part of `range` within a blob of `bytes` bytes, or all of it without a range; empty (`start === end`) for a range
 * past the end. Throws a RangeError for an invalid range.
 */
export function cutRange(range: ByteRange | undefined, bytes: number): ByteRange {
  if (range === undefined) return { start: 0, end: bytes }
  const { start, end } = range
  if (!Number.isSafeInteger(start) || !Number.isSafeInteger(end) || start < 0)
    throw new RangeError(`${start}..${end} is no range of bytes`)
  const cut = Math.min(start, bytes)
  return { start: cut, end: Math.max(cut, Math.min(end, bytes)) }
}
