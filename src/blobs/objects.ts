// The port of callers' buckets, whose objects other programs write and read. s3/s3-objects.ts implements it.
import type { BucketUse } from '../domain/bucket-url.ts'
import type { ByteRange, Source } from './blobs.ts'

/** Objects in a caller's bucket. Every method throws ObjectFailed, also soon after `signal` aborts. */
export interface Objects {
  /** Reads the size of an object, and the `etag` of its content. */
  stat(key: string, signal: AbortSignal): Promise<{ bytes: number; etag: string }>
  /** Reads a range of an object. Throws ObjectFailed with 412 where its content has another `etag`. */
  read(key: string, etag: string, range: ByteRange, signal: AbortSignal): AsyncIterable<Buffer>
  /** Puts all of `source` under `key`, replacing an object, and resolves to its bytes. A failure stores nothing. */
  put(key: string, source: Source, signal: AbortSignal): Promise<number>
  /** Removes the uploads that crashed calls of `put` have not finished under `key`. */
  abortUploads(key: string, signal: AbortSignal): Promise<void>
}

/** Yields the pieces of `source` until `signal` aborts. */
export async function* untilAborted(
  source: AsyncIterable<Buffer>,
  signal: AbortSignal,
): AsyncGenerator<Buffer> {
  for await (const piece of source) {
    signal.throwIfAborted()
    yield piece
  }
}

/** Finds the bucket and the key of a URL. Throws invalid_request and bucket_not_allowed. */
export type OpenBucket = (
  project: { id: string; name: string },
  use: BucketUse,
  url: string,
) => Promise<{ objects: Objects; key: string }>

const REQUEST_TIMEOUT = 408
const TOO_MANY_REQUESTS = 429

/**
 * The error of a call to a bucket. Its message, for the owner of the batch, has no address; its cause is for the log.
 */
export class ObjectFailed extends Error {
  /** The HTTP status of the bucket's answer; null where there was none. */
  readonly status: number | null

  constructor(status: number | null, code: string | null, cause: unknown) {
    super(
      status === null ? 'the bucket cannot be reached' : `the bucket answered ${status} ${code ?? ''}`.trim(),
      {
        cause,
      },
    )
    this.name = 'ObjectFailed'
    this.status = status
  }

  /** Whether a retry of the failed call to the bucket cannot succeed. */
  get isFinal(): boolean {
    const { status } = this
    return status !== null && status < 500 && status !== REQUEST_TIMEOUT && status !== TOO_MANY_REQUESTS
  }
}
