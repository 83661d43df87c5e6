// Uploads in parts, with only a few parts in memory. Nothing is visible before the last step. A failed upload is
// aborted, so that its parts cost nothing; the sweep aborts uploads of crashed writers.
import { createHash } from 'node:crypto'
import {
  AbortMultipartUploadCommand,
  type CompletedPart,
  CompleteMultipartUploadCommand,
  CreateMultipartUploadCommand,
  HeadObjectCommand,
  type S3Client,
  S3ServiceException,
  UploadPartCommand,
} from '@aws-sdk/client-s3'
import type { Slots } from '../../domain/project-queue.ts'
import type { Source } from '../blobs.ts'

/** Parts on their way while the source makes the next one: of one upload, and of all uploads to one bucket. */
const PARTS_AT_ONCE = 3
export const PARTS_AT_ONCE_ALL = 8
/** S3 counts parts to here. */
const PARTS_MAX = 10_000

export interface Place {
  Bucket: string
  Key: string
}

/** How an object is written. */
export interface Writing {
  /** The error of a call to the server that failed; those of the source are thrown as they are. */
  failed: (cause: unknown) => Error
  /** Whether the server checks by MD5 what arrives. */
  withMd5: boolean
  /** The uploads of the bucket: one that does not answer delays no other. An upload that waits keeps one part in memory. */
  slots: Slots
  options?: CallOptions
}

export interface CallOptions {
  abortSignal?: AbortSignal
}

/** Uploads all of `parts` (the first among them) and resolves to their bytes. */
export async function uploadInParts(
  client: S3Client,
  place: Place,
  parts: AsyncIterable<Buffer>,
  writing: Writing,
): Promise<number> {
  const created = await attempt(
    writing,
    client.send(new CreateMultipartUploadCommand(place), writing.options),
  )
  const upload = { ...place, UploadId: created.UploadId }
  const sending = new Set<Promise<void>>()
  const done: CompletedPart[] = []
  let bytes = 0
  let number = 0
  try {
    for await (const part of parts) {
      number++
      if (number > PARTS_MAX) throw new RangeError(`a blob of more than ${PARTS_MAX} parts is too large`)
      await writing.slots.take()
      bytes += part.length
      const sent = sendPart(client, upload, number, part, writing)
        .finally(() => writing.slots.release())
        .then((completed) => {
          done.push(completed)
          sending.delete(sent)
        })
      // The next wait for the set, below, sees a failure.
      sent.catch(() => {})
      sending.add(sent)
      if (sending.size >= PARTS_AT_ONCE) await Promise.race(sending)
    }
    await Promise.all(sending)
    await attempt(writing, complete(client, upload, done, bytes, writing.options))
    return bytes
  } catch (error) {
    await Promise.allSettled(sending)
    // An upload that cannot be aborted now is swept later.
    await client.send(new AbortMultipartUploadCommand(upload), writing.options).catch(() => {})
    throw error
  }
}

type Upload = Place & { UploadId: string | undefined }

async function sendPart(
  client: S3Client,
  upload: Upload,
  PartNumber: number,
  Body: Buffer,
  writing: Writing,
): Promise<CompletedPart> {
  const part = new UploadPartCommand({ ...upload, PartNumber, ...bodyOf(Body, writing) })
  const { ETag } = await attempt(writing, client.send(part, writing.options))
  return { PartNumber, ETag }
}

/** The parameters of a request that brings `Body`. */
export function bodyOf(Body: Buffer, { withMd5 }: Writing): { Body: Buffer; ContentMD5?: string } {
  return withMd5 ? { Body, ContentMD5: createHash('md5').update(Body).digest('base64') } : { Body }
}

export async function attempt<T>({ failed }: Pick<Writing, 'failed'>, call: Promise<T>): Promise<T> {
  try {
    return await call
  } catch (cause) {
    throw failed(cause)
  }
}

async function complete(
  client: S3Client,
  upload: Upload,
  done: readonly CompletedPart[],
  bytes: number,
  options?: CallOptions,
): Promise<void> {
  const Parts = done.toSorted((a, b) => (a.PartNumber ?? 0) - (b.PartNumber ?? 0))
  try {
    await client.send(new CompleteMultipartUploadCommand({ ...upload, MultipartUpload: { Parts } }), options)
  } catch (error) {
    // An attempt whose answer was lost had completed it: then the retry finds no upload, but the blob.
    if (!hasCode(error, 'NoSuchUpload')) throw error
    const { Bucket, Key } = upload
    const found = await client.send(new HeadObjectCommand({ Bucket, Key }), options)
    if (found.ContentLength !== bytes) throw error
  }
}

/** The least that S3 takes for a part that is not the last is 5 MiB, and R2 wants all of one size. */
export const PART_BYTES = 8 * 1024 * 1024

/**
 * The bytes of `source` in runs of exactly `part_bytes`, the last one shorter; never an empty run, and none for
 * an empty source.
 */
export async function* inParts(
  source: Source,
  part_bytes = PART_BYTES,
): AsyncGenerator<Buffer, void, undefined> {
  let held: Uint8Array[] = []
  let bytes = 0
  for await (const piece of source) {
    let rest = piece
    while (bytes + rest.length >= part_bytes) {
      const cut = part_bytes - bytes
      held.push(rest.subarray(0, cut))
      yield Buffer.concat(held, part_bytes)
      held = []
      bytes = 0
      rest = rest.subarray(cut)
    }
    if (rest.length === 0) continue
    held.push(rest)
    bytes += rest.length
  }
  if (bytes > 0) yield Buffer.concat(held, bytes)
}

/** The request was answered with one of these codes. A HEAD has no body: its 404 is called NotFound. */
export function hasCode(error: unknown, ...codes: readonly string[]): boolean {
  return error instanceof S3ServiceException && codes.includes(error.name)
}
