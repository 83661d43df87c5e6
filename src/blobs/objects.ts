// The port of callers' buckets, whose objects other programs write and read. s3/s3-objects.ts implements it.
import type { BucketUse } from '../domain/bucket-url.ts'
import type { ByteRange, Source } from './blobs.ts'

/** Every method throws ObjectFailed, also soon after `signal` aborts. */
export interface Objects {
  /** `etag` names this content of the object. */
  stat(key: string, signal: AbortSignal): Promise<{ bytes: number; etag: string }>
  /** Throws ObjectFailed with 412 where the object is another one than `etag` names. */
  read(key: string, etag: string, range: ByteRange, signal: AbortSignal): AsyncIterable<Buffer>
  /** Puts all of `source` under `key`, in place of what is there, and resolves to its bytes. A failure leaves nothing. */
  put(key: string, source: Source, signal: AbortSignal): Promise<number>
  /** Removes what crashed calls of `put` have left under `key`. */
  abortUploads(key: string, signal: AbortSignal): Promise<void>
}

/** Passes the pieces on until `signal` aborts. */
export async function* untilAborted(
  source: AsyncIterable<Buffer>,
  signal: AbortSignal,
): AsyncGenerator<Buffer> {
  for await (const piece of source) {
    signal.throwIfAborted()
    yield piece
  }
}

/** Finds the bucket of a URL, and the key in it. Throws invalid_request and bucket_not_allowed. */
export type OpenBucket = (
  project: { id: string; name: string },
  use: BucketUse,
  url: string,
) => Promise<{ objects: Objects; key: string }>

const REQUEST_TIMEOUT = 408
const TOO_MANY_REQUESTS = 429

/** The message is for the owner of the batch: it names no address. The cause is attached, for the log. */
export class ObjectFailed extends Error {
  /** The HTTP status of the answer; null where there was none. */
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

  /** Whether the same call will not succeed later. */
  get isFinal(): boolean {
    const { status } = this
    return status !== null && status < 500 && status !== REQUEST_TIMEOUT && status !== TOO_MANY_REQUESTS
  }
}
