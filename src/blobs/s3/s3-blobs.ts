// Blobs in a bucket: AWS S3, or any server that speaks its protocol (MinIO, Garage, Ceph, R2). A blob is one
// object, PREFIX/KEY. Nothing here rests on conditional writes or on the order of a listing, and checksums that
// not every server knows are left out: what is stored is authenticated by its seal.

import { PassThrough, pipeline, Readable } from 'node:stream'
import {
  AbortMultipartUploadCommand,
  DeleteObjectCommand,
  GetObjectCommand,
  HeadObjectCommand,
  ListMultipartUploadsCommand,
  ListObjectsV2Command,
  PutObjectCommand,
  S3Client,
} from '@aws-sdk/client-s3'
import {
  assertBlobKey,
  assertBlobPrefix,
  attempt,
  BlobMissing,
  BlobStoreFailed,
  type Blobs,
  type ByteRange,
  cutRange,
  type Source,
  type StoredBlob,
} from '../blobs.ts'
import { hasCode, inParts, PART_BYTES, type Place, uploadInParts } from './multipart-upload.ts'

/** Attempts per request, the first included; the client waits longer and longer between them. */
const ATTEMPTS_MAX = 5
const CONNECT_TIMEOUT_MS = 5_000
/** Without a byte in either direction. */
const SILENCE_TIMEOUT_MS = 20_000
/** Slow readers keep theirs open: more than the downloads of an API process have (http/routes.ts). */
const SOCKETS_MAX = 1024
/** Fetched before the reader asks for it. */
const READ_AHEAD_BYTES = 1024 * 1024
/** A read that breaks off goes on where it was; so often without getting further. */
const READ_ATTEMPTS_MAX = 4

export interface S3Options {
  bucket: string
  /** Without slashes at its ends; '' for the whole bucket. Whatever lies under it is ours alone. */
  prefix: string
  /** Base URL of the server; null: AWS itself. */
  endpoint: string | null
  region: string
  path_style: boolean
  access_key_id: string
  secret_access_key: string
  session_token: string | null
}

export class S3Blobs implements Blobs {
  readonly #client: S3Client
  readonly #bucket: string
  /** '' or ends in "/". */
  readonly #prefix: string

  constructor(options: S3Options) {
    this.#bucket = options.bucket
    this.#prefix = options.prefix === '' ? '' : `${options.prefix}/`
    const agent = { keepAlive: true, maxSockets: SOCKETS_MAX }
    this.#client = new S3Client({
      region: options.region,
      ...(options.endpoint === null ? {} : { endpoint: options.endpoint }),
      forcePathStyle: options.path_style,
      credentials: {
        accessKeyId: options.access_key_id,
        secretAccessKey: options.secret_access_key,
        ...(options.session_token === null ? {} : { sessionToken: options.session_token }),
      },
      maxAttempts: ATTEMPTS_MAX,
      requestChecksumCalculation: 'WHEN_REQUIRED',
      responseChecksumValidation: 'WHEN_REQUIRED',
      requestHandler: {
        connectionTimeout: CONNECT_TIMEOUT_MS,
        socketTimeout: SILENCE_TIMEOUT_MS,
        httpAgent: agent,
        httpsAgent: agent,
      },
    })
  }

  /** Throws BlobStoreFailed when the bucket cannot be reached, does not exist or is closed to us. */
  async check(): Promise<void> {
    const request = new ListObjectsV2Command({ Bucket: this.#bucket, Prefix: this.#prefix, MaxKeys: 1 })
    await attempt(`opening the bucket ${this.#bucket}`, this.#client.send(request))
  }

  async put(key: string, source: Source): Promise<number> {
    const place = this.#place(key)
    const doing = `writing blob ${key}`
    // The source is asked before the bucket: a stream is watched from the start, and closed when the bucket fails.
    const parts = inParts(source)
    try {
      const first = await parts.next()
      if (!first.done && first.value.length === PART_BYTES)
        return await uploadInParts(this.#client, place, following(first.value, parts), doing)
      const body = first.done ? Buffer.alloc(0) : first.value
      await attempt(doing, this.#client.send(new PutObjectCommand({ ...place, Body: body })))
      return body.length
    } finally {
      await parts.return()
    }
  }

  async *read(key: string, range?: ByteRange): AsyncGenerator<Buffer, void, undefined> {
    const place = this.#place(key)
    const { start, end } = cutRange(range, Number.MAX_SAFE_INTEGER)
    if (range && start === end) {
      await this.size(key)
      return
    }
    for (let at = start, tries = 1; ; tries++) {
      try {
        const body = await this.#get(key, place, at, range ? end : null)
        if (body === null) return
        for await (const piece of body) {
          at += piece.length
          tries = 0
          yield piece
        }
        return
      } catch (cause) {
        if (cause instanceof BlobMissing) throw cause
        if (!(cause instanceof Broken) || tries === READ_ATTEMPTS_MAX)
          throw new BlobStoreFailed(`reading blob ${key}`, cause instanceof Broken ? cause.cause : cause)
      }
    }
  }

  async size(key: string): Promise<number> {
    try {
      const found = await this.#client.send(new HeadObjectCommand(this.#place(key)))
      return found.ContentLength ?? 0
    } catch (cause) {
      if (isMissing(cause)) throw new BlobMissing(key)
      if (cause instanceof RangeError) throw cause
      throw new BlobStoreFailed(`looking for blob ${key}`, cause)
    }
  }

  async delete(key: string): Promise<void> {
    const request = new DeleteObjectCommand(this.#place(key))
    await attempt(
      `deleting blob ${key}`,
      this.#client.send(request).catch((cause) => {
        if (!isMissing(cause)) throw cause
      }),
    )
  }

  async *list(prefix: string): AsyncGenerator<StoredBlob, void, undefined> {
    assertBlobPrefix(prefix)
    const wanted = { Bucket: this.#bucket, Prefix: this.#prefix + prefix }
    for (let ContinuationToken: string | undefined; ; ) {
      const request = new ListObjectsV2Command({ ...wanted, ContinuationToken })
      const page = await attempt(`listing blobs under ${prefix}`, this.#client.send(request))
      for (const { Key, Size, LastModified } of page.Contents ?? []) {
        if (Key === undefined || !Key.startsWith(this.#prefix)) continue
        const key = Key.slice(this.#prefix.length)
        yield { key, bytes: Size ?? 0, modified: LastModified?.getTime() ?? 0 }
      }
      if (!page.IsTruncated || !page.NextContinuationToken) return
      ContinuationToken = page.NextContinuationToken
    }
  }

  /**
   * Aborts uploads begun before `before` (Unix ms) and never completed. Choose it longer ago than any upload
   * takes. Resolves to how many there were.
   */
  async sweepUploads(before: number): Promise<number> {
    const doing = 'sweeping unfinished uploads'
    const wanted = { Bucket: this.#bucket, Prefix: this.#prefix }
    let removed = 0
    for (let marker: { KeyMarker?: string; UploadIdMarker?: string } = {}; ; ) {
      const page = await this.#client
        .send(new ListMultipartUploadsCommand({ ...wanted, ...marker }))
        .catch((cause: unknown) => {
          // Some servers drop them by themselves and list none.
          if (hasCode(cause, 'NotImplemented', 'NoSuchUpload')) return null
          throw new BlobStoreFailed(doing, cause)
        })
      for (const { Key, UploadId, Initiated } of page?.Uploads ?? []) {
        if (!Key?.startsWith(this.#prefix) || UploadId === undefined) continue
        if (Initiated === undefined || Initiated.getTime() >= before) continue
        const request = new AbortMultipartUploadCommand({ Bucket: this.#bucket, Key, UploadId })
        await attempt(
          doing,
          this.#client.send(request).catch((cause) => {
            // Its writer, or another sweeper, was faster.
            if (!hasCode(cause, 'NoSuchUpload')) throw cause
          }),
        )
        removed++
      }
      if (!page?.IsTruncated || page.NextKeyMarker === undefined) return removed
      marker = {
        KeyMarker: page.NextKeyMarker,
        ...(page.NextUploadIdMarker === undefined ? {} : { UploadIdMarker: page.NextUploadIdMarker }),
      }
    }
  }

  close(): void {
    this.#client.destroy()
  }

  /** The bytes from `start`, to `end` unless that is null; null when there are none. */
  async #get(
    key: string,
    place: Place,
    start: number,
    end: number | null,
  ): Promise<AsyncGenerator<Buffer> | null> {
    const ranged = start > 0 || end !== null
    const Range = ranged ? `bytes=${start}-${end === null ? '' : end - 1}` : undefined
    try {
      const { Body } = await this.#client.send(new GetObjectCommand({ ...place, Range }))
      if (!(Body instanceof Readable)) throw new TypeError('the client gave no stream')
      return ahead(Body)
    } catch (cause) {
      if (isMissing(cause)) throw new BlobMissing(key)
      // It begins where the blob ends, or the blob is empty.
      if (hasCode(cause, 'InvalidRange')) return null
      throw cause
    }
  }

  #place(key: string): Place {
    assertBlobKey(key)
    return { Bucket: this.#bucket, Key: this.#prefix + key }
  }
}

function isMissing(error: unknown): boolean {
  return hasCode(error, 'NoSuchKey', 'NotFound')
}

/** The answer broke off; what came before it is good. */
class Broken extends Error {
  constructor(cause: unknown) {
    super('the answer broke off', { cause })
    this.name = 'Broken'
  }
}

/** Reads on while the reader is busy, and closes the connection when the reader leaves. */
async function* ahead(body: Readable): AsyncGenerator<Buffer, void, undefined> {
  const buffer = new PassThrough({ highWaterMark: READ_AHEAD_BYTES })
  pipeline(body, buffer, () => {})
  const pieces = buffer[Symbol.asyncIterator]()
  try {
    for (;;) {
      const next = await pieces.next().catch((cause: unknown) => {
        throw new Broken(cause)
      })
      if (next.done) return
      yield next.value
    }
  } finally {
    body.destroy()
    buffer.destroy()
  }
}

async function* following(first: Buffer, rest: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  yield first
  yield* rest
}
