// The port of object storage: immutable blobs under keys. A folder (disk/) and an S3-compatible bucket (s3/) implement
// it; sealed.ts encrypts either. No caller relies on conditional writes or on the order of a listing.
import { ApiError } from '../domain/errors.ts'

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

export type Source = AsyncIterable<Uint8Array> | Iterable<Uint8Array>

export interface Blobs {
  /**
   * Stores all of `source` under `key` (segments of [A-Za-z0-9._-] joined by "/"). When it resolves, the blob
   * is durable and readable as a whole; if `source` or the store fails, nothing is visible under `key`.
   * Resolves to the number of bytes stored.
   */
  put(key: string, source: Source): Promise<number>
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

/** To catch the error of a blob that is missing; throws any other. */
export function nullIfMissing(error: unknown): null {
  if (error instanceof BlobMissing) return null
  throw error
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

  /** Whether there is no space left. */
  get isFull(): boolean {
    const { cause } = this
    return cause instanceof Error && 'code' in cause && ['ENOSPC', 'EDQUOT'].includes(String(cause.code))
  }
}

/** `call`'s result; its failure as BlobStoreFailed, `doing` saying what was tried ("writing blob a/b"). */
export async function attempt<T>(doing: string, call: Promise<T>): Promise<T> {
  try {
    return await call
  } catch (cause) {
    throw new BlobStoreFailed(doing, cause)
  }
}

/** Whether the content itself is wrong, as opposed to a failure of the store. */
export function isDamaged(error: unknown): error is BlobDamaged | BlobMissing {
  return error instanceof BlobDamaged || error instanceof BlobMissing
}

/** The error for a caller whose call reads the blob. */
export function contentDamaged({ key }: BlobDamaged | BlobMissing): ApiError {
  return new ApiError('content_damaged', `The stored content \`${key}\` is damaged or missing.`)
}

// The rule for keys of blobs. Keys become file paths and bucket keys, so nothing that either reads in a special way
// may pass: no empty, "." or ".." segment, no other alphabet, nothing longer than a file name can be.

const KEY_LENGTH_MAX = 512
/** File systems allow 255 bytes a name. */
const SEGMENT_LENGTH_MAX = 255
const SEGMENT = /^[A-Za-z0-9._-]+$/
const PREFIX = /^[A-Za-z0-9._/-]*$/

/** Throws a RangeError when `key` is no key; keys are made by our own code, so a bad one is a mistake of ours. */
export function assertBlobKey(key: string): void {
  if (key.length > KEY_LENGTH_MAX) refuse(key, `it has more than ${KEY_LENGTH_MAX} characters`)
  for (const segment of key.split('/')) {
    if (!SEGMENT.test(segment)) refuse(key, 'segments are one or more of [A-Za-z0-9._-], joined by "/"')
    if (segment === '.' || segment === '..') refuse(key, `"${segment}" is no segment`)
    if (segment.length > SEGMENT_LENGTH_MAX)
      refuse(key, `a segment has more than ${SEGMENT_LENGTH_MAX} characters`)
  }
}

/** Throws a RangeError when no key could begin with `prefix`; the last segment may be incomplete. */
export function assertBlobPrefix(prefix: string): void {
  const whole = prefix.split('/').slice(0, -1)
  if (!PREFIX.test(prefix) || whole.some((segment) => ['', '.', '..'].includes(segment)))
    refuse(prefix, 'no key begins so')
}

function refuse(key: string, why: string): never {
  throw new RangeError(`${JSON.stringify(key.slice(0, KEY_LENGTH_MAX))} cannot name a blob: ${why}`)
}

/**
 * The part of `range` that lies within `bytes` bytes, or all of them without a range; empty (`start === end`) when
 * it begins past the end. Throws a RangeError for an invalid range.
 */
export function cutRange(range: ByteRange | undefined, bytes: number): ByteRange {
  if (range === undefined) return { start: 0, end: bytes }
  const { start, end } = range
  if (!Number.isSafeInteger(start) || !Number.isSafeInteger(end) || start < 0)
    throw new RangeError(`${start}..${end} is no range of bytes`)
  const cut = Math.min(start, bytes)
  return { start: cut, end: Math.max(cut, Math.min(end, bytes)) }
}
