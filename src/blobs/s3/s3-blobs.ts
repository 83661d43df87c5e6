// Blobs in a bucket of AWS S3 or of a compatible server (MinIO, Garage, Ceph, R2). A blob is one object, PREFIX/KEY. No
// call relies on conditional writes or on the order of a listing, and none uses checksums, which some servers lack:
// encryption authenticates the content.
import {
  DeleteObjectCommand,
  HeadObjectCommand,
  ListObjectsV2Command,
  type S3Client,
} from '@aws-sdk/client-s3'
import { Slots } from '../../domain/project-queue.ts'
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
import { hasCode, PARTS_AT_ONCE_ALL, type Place } from './multipart-upload.ts'
import { abortUploads, identityOf, putObject, readObject, type S3Server, s3Client } from './s3-objects.ts'

export interface S3Options extends S3Server {
  bucket: string
  /** The prefix of all keys, without slashes at its ends, for this service alone; '' for the whole bucket. */
  prefix: string
}

export class S3Blobs implements Blobs {
  readonly #client: S3Client
  readonly #slots = new Slots(PARTS_AT_ONCE_ALL)
  readonly #bucket: string
  /** The prefix of all keys: '' or ending in "/". */
  readonly #prefix: string

  constructor(options: S3Options) {
    this.#bucket = options.bucket
    this.#prefix = options.prefix === '' ? '' : `${options.prefix}/`
    this.#client = s3Client(options)
  }

  /** The identity that signs calls, in words. Throws BlobStoreFailed where none is found. */
  async identity(): Promise<string> {
    return await attempt(`signing for the bucket ${this.#bucket}`, identityOf(this.#client))
  }

  /** Throws BlobStoreFailed when the bucket cannot be reached, does not exist, or denies access. */
  async check(): Promise<void> {
    const request = new ListObjectsV2Command({ Bucket: this.#bucket, Prefix: this.#prefix, MaxKeys: 1 })
    await attempt(`opening the bucket ${this.#bucket}`, this.#client.send(request))
  }

  async put(key: string, source: Source): Promise<number> {
    const failed = (cause: unknown): Error => new BlobStoreFailed(`writing blob ${key}`, cause)
    return await putObject(this.#client, this.#place(key), source, {
      ...{ failed, withMd5: false, slots: this.#slots },
    })
  }

  async *read(key: string, range?: ByteRange): AsyncGenerator<Buffer, void, undefined> {
    const place = this.#place(key)
    const { start, end } = cutRange(range, Number.MAX_SAFE_INTEGER)
    if (range && start === end) {
      await this.size(key)
      return
    }
    try {
      yield* readObject(this.#client, place, start, range ? end : null)
    } catch (cause) {
      throw isMissing(cause) ? new BlobMissing(key) : new BlobStoreFailed(`reading blob ${key}`, cause)
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
   * Aborts uploads begun before `before` (Unix ms) and never completed. Choose it longer ago than any upload takes.
   * Resolves to the number of aborted uploads.
   */
  async sweepUploads(before: number): Promise<number> {
    const wanted = { Bucket: this.#bucket, Prefix: this.#prefix }
    const swept = abortUploads(this.#client, wanted, (began) => began < before)
    return await attempt('sweeping unfinished uploads', swept)
  }

  close(): void {
    this.#client.destroy()
  }

  #place(key: string): Place {
    assertBlobKey(key)
    return { Bucket: this.#bucket, Key: this.#prefix + key }
  }
}

function isMissing(error: unknown): boolean {
  return hasCode(error, 'NoSuchKey', 'NotFound')
}
