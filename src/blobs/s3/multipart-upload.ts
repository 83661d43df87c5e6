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

/** The most parts in flight: of one upload, and of all uploads to one bucket. */
const PARTS_AT_ONCE = 3
export const PARTS_AT_ONCE_ALL = 8
/** The most parts that S3 accepts in one upload. */
const PARTS_MAX = 10_000

export interface Place {
  Bucket: string
  Key: string
}

/** The settings for writing an object to a bucket. */
export interface Writing {
  /** Converts the error of a failed call to the server; errors of the source are thrown unchanged. */
  failed: (cause: unknown) => Error
  /** Whether the server checks the MD5 of received data. */
  withMd5: boolean
  /** The slots for parts of the bucket: a hanging upload delays no other. A waiting upload keeps one part in memory. */
  slots: Slots
  options?: CallOptions
}

export interface CallOptions {
  abortSignal?: AbortSignal
}

/** Uploads `first` and the other `parts`, and resolves to their total bytes. */
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
      // A failure is thrown by the next wait for the set, below.
      sent.catch(() => {})
      sending.add(sent)
      if (sending.size >= PARTS_AT_ONCE) await Promise.race(sending)
    }
    await Promise.all(sending)
    await attempt(writing, complete(client, upload, done, bytes, writing.options))
    return bytes
  } catch (error) {
    await Promise.allSettled(sending)
    // The sweep removes an upload that cannot be aborted now.
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

/** The parameters of a request with content: `Body` and, if wanted, its MD5. */
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
    // A call whose answer was lost may have completed the upload: a retry then finds no upload, but the blob.
    if (!hasCode(error, 'NoSuchUpload')) throw error
    const { Bucket, Key } = upload
    const found = await client.send(new HeadObjectCommand({ Bucket, Key }), options)
    if (found.ContentLength !== bytes) throw error
  }
}

/** The size of a part in bytes: S3 wants 5 MiB at least except for the last part, and R2 parts of equal size. */
export const PART_BYTES = 8 * 1024 * 1024
/** Parts of equal size: 40 GiB. */
const PARTS_EQUAL = 5_000

/**
 * The size of the part with this number, from 1. How large a blob gets is not known when its first part is sent, so parts behind
 * the first 40 GiB grow, by 48 MiB for each thousand: 10,000 of them hold 0.8 TB, where a terabyte of text takes a third of one.
 */
export function partBytes(number: number): number {
  const thousands = Math.max(0, Math.floor((number - PARTS_EQUAL - 1) / 1_000) + 1)
  return PART_BYTES * (1 + 6 * thousands)
}

/** Regroups `source` into parts, the last one shorter; never an empty buffer, and none for an empty source. */
export async function* inParts(source: Source): AsyncGenerator<Buffer, void, undefined> {
  let held: Uint8Array[] = []
  let bytes = 0
  let number = 1
  for await (const piece of source) {
    let rest = piece
    for (
      let part_bytes = partBytes(number);
      bytes + rest.length >= part_bytes;
      part_bytes = partBytes(number)
    ) {
      const cut = part_bytes - bytes
      held.push(rest.subarray(0, cut))
      yield Buffer.concat(held, part_bytes)
      held = []
      bytes = 0
      number++
      rest = rest.subarray(cut)
    }
    if (rest.length === 0) continue
    held.push(rest)
    bytes += rest.length
  }
  if (bytes > 0) yield Buffer.concat(held, bytes)
}

/** Whether the server answered with one of these error codes. A HEAD has no body: its 404 is called NotFound. */
export function hasCode(error: unknown, ...codes: readonly string[]): boolean {
  return error instanceof S3ServiceException && codes.includes(error.name)
}
