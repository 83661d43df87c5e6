// Reads and writes objects in a bucket of any S3-compatible server, by their exact keys. S3Blobs stores blobs in such
// objects; S3Objects implements the port of callers' buckets.
import { addAbortSignal, Readable } from 'node:stream'
import {
  AbortMultipartUploadCommand,
  GetObjectCommand,
  HeadObjectCommand,
  ListMultipartUploadsCommand,
  PutObjectCommand,
  S3Client,
  S3ServiceException,
} from '@aws-sdk/client-s3'
import { gathered, readWhole } from '../../domain/gathered-bytes.ts'
import { Slots } from '../../domain/project-queue.ts'
import type { ByteRange, Source } from '../blobs.ts'
import { ObjectFailed, type Objects } from '../objects.ts'
import {
  attempt,
  bodyOf,
  type CallOptions,
  hasCode,
  inParts,
  PART_BYTES,
  PARTS_AT_ONCE_ALL,
  type Place,
  uploadInParts,
  type Writing,
} from './multipart-upload.ts'

/** Attempts per request, the first included; the client waits longer before each. */
const ATTEMPTS_MAX = 5
const CONNECT_TIMEOUT_MS = 5_000
/** The timeout of a connection without a byte in either direction, in ms. */
const SILENCE_TIMEOUT_MS = 20_000
/** The limit of connections: above the downloads of an API process (http/routes.ts), since slow readers keep theirs. */
const SOCKETS_MAX = 1024
/** The bytes of an object that are read ahead of their reader. */
const READ_AHEAD_BYTES = 1024 * 1024
const OK = 200
/** The largest answer in bytes other than an object's content: a page of a list has a thousand keys of a kilobyte. */
const ANSWER_BYTES_MAX = 8 * 1024 * 1024
/** The attempts at a read that breaks off without progress; with progress, it continues without limit. */
const READ_ATTEMPTS_MAX = 4

export interface S3Server {
  /** The base URL of the server; null: AWS itself. */
  endpoint: string | null
  region: string
  path_style: boolean
  /** The access key; null: the SDK finds credentials by its default chain, and renews those that expire. */
  access_key_id: string | null
  secret_access_key: string | null
  session_token: string | null
}

export function s3Client(server: S3Server): S3Client {
  const agent = { keepAlive: true, maxSockets: SOCKETS_MAX }
  const client = new S3Client({
    region: server.region,
    ...(server.endpoint === null ? {} : { endpoint: server.endpoint }),
    forcePathStyle: server.path_style,
    ...credentialsOf(server),
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
  // Without this limit, the client reads errors and lists of any size.
  client.middlewareStack.add(
    (next, { commandName }) =>
      async (args) => {
        const result = await next(args)
        const response = Object(result.response)
        const { statusCode, body } = response
        const isObject = commandName === 'GetObjectCommand' && statusCode < 300
        if (isObject || !(body instanceof Readable)) return result
        const { bytes, isWhole } = await readWhole(body, ANSWER_BYTES_MAX)
        if (!isWhole && statusCode < 300)
          throw new Error(`the bucket answered with more than ${ANSWER_BYTES_MAX} bytes`)
        response.body = isWhole ? bytes : Buffer.alloc(0)
        return result
      },
    { step: 'deserialize', priority: 'low' },
  )
  return client
}

function credentialsOf({
  access_key_id: accessKeyId,
  secret_access_key: secretAccessKey,
  session_token,
}: S3Server) {
  if (accessKeyId === null || secretAccessKey === null) return {}
  const token = session_token === null ? {} : { sessionToken: session_token }
  return { credentials: { accessKeyId, secretAccessKey, ...token } }
}

/** The sources of credentials by the SDK's names, without the role of an instance. */
const SOURCES: Readonly<Record<string, string>> = {
  CREDENTIALS_CODE: 'the variables that the configuration names',
  CREDENTIALS_ENV_VARS: 'the environment',
  CREDENTIALS_STS_ASSUME_ROLE_WEB_ID: "a service account's token, for the role AWS_ROLE_ARN",
  CREDENTIALS_HTTP: "the endpoint of the container's or pod's role",
  CREDENTIALS_STS_ASSUME_ROLE: 'a role that a profile assumes',
  CREDENTIALS_PROCESS: 'the command of a profile',
  CREDENTIALS_SSO: 'a sign-in by SSO',
  CREDENTIALS_PROFILE: 'a profile of the shared configuration',
}

/** The identity that signs calls, in words: its key's ID, source and expiry. Throws where there is none. */
export async function identityOf(client: S3Client): Promise<string> {
  const { accessKeyId, expiration, ...found } = await client.config.credentials()
  const sources = Object.keys(Object(Reflect.get(found, '$source')))
  const source = Object.keys(SOURCES).find((name) => sources.includes(name)) ?? ''
  const until = expiration ? `, renewed before ${expiration.toISOString()}` : ''
  return `${accessKeyId} of ${SOURCES[source] ?? "the instance's role"}${until}`
}

/** Reads the bytes from `start` to `end`, or to the object's end if null; with `IfMatch`, only of that content. */
export async function* readObject(
  client: S3Client,
  place: Place & { IfMatch?: string },
  start: number,
  end: number | null,
  options: CallOptions = {},
): AsyncGenerator<Buffer, void, undefined> {
  for (let at = start, tries = 1; ; tries++) {
    try {
      const body = await getObject(client, place, at, end, options)
      if (body === null) return
      for await (const piece of body) {
        at += piece.length
        tries = 0
        yield piece
      }
      return
    } catch (error) {
      if (!(error instanceof Broken)) throw error
      if (tries === READ_ATTEMPTS_MAX) throw error.cause
    }
  }
}

/** Opens a range of an object; null when the object has no such bytes. */
async function getObject(
  client: S3Client,
  place: Place & { IfMatch?: string },
  start: number,
  end: number | null,
  options: CallOptions,
): Promise<AsyncGenerator<Buffer> | null> {
  const ranged = start > 0 || end !== null
  const Range = ranged ? `bytes=${start}-${end === null ? '' : end - 1}` : undefined
  try {
    const found = await client.send(new GetObjectCommand({ ...place, Range }), options)
    const { Body, ContentRange, ContentLength = Number.POSITIVE_INFINITY } = found
    if (!(Body instanceof Readable)) throw new TypeError('the client gave no stream')
    const isAsked =
      ContentRange?.startsWith(`bytes ${start}-`) ?? (start === 0 && ContentLength <= (end ?? 0))
    if (ranged && !isAsked) {
      Body.destroy()
      throw new RangeIgnored('the server ignores `Range`')
    }
    return ahead(options.abortSignal ? addAbortSignal(options.abortSignal, Body) : Body)
  } catch (cause) {
    // The range begins at the object's end, or the object is empty.
    if (hasCode(cause, 'InvalidRange')) return null
    throw cause
  }
}

/** The error for a server that sends other bytes than the range, mostly the whole object. */
class RangeIgnored extends Error {}

/** The error for an answer that broke off; its received bytes are valid. */
class Broken extends Error {}

/** Reads ahead of the reader, and closes the connection when the reader stops. */
async function* ahead(body: Readable): AsyncGenerator<Buffer, void, undefined> {
  const pieces = gathered(body, READ_AHEAD_BYTES)
  try {
    for (;;) {
      const next = await pieces.next().catch((cause: unknown) => {
        throw new Broken('the answer broke off', { cause })
      })
      if (next.done) return
      yield next.value
    }
  } finally {
    await pieces.return()
  }
}

export async function putObject(
  client: S3Client,
  place: Place,
  source: Source,
  writing: Writing,
): Promise<number> {
  // The source is read before the bucket is called, to see its errors and to close it when the bucket fails.
  const parts = inParts(source)
  try {
    const first = await parts.next()
    if (!first.done && first.value.length === PART_BYTES)
      return await uploadInParts(client, place, following(first.value, parts), writing)
    const body = first.done ? Buffer.alloc(0) : first.value
    await attempt(
      writing,
      client.send(new PutObjectCommand({ ...place, ...bodyOf(body, writing) }), writing.options),
    )
    return body.length
  } finally {
    await parts.return()
  }
}

async function* following(first: Buffer, rest: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  yield first
  yield* rest
}

/**
 * Aborts multipart uploads under `Prefix` for which `isLeft`, given their start (Unix ms), is true. Resolves to their
 * number.
 */
export async function abortUploads(
  client: S3Client,
  wanted: { Bucket: string; Prefix: string },
  isLeft: (began: number) => boolean,
  options: CallOptions = {},
): Promise<number> {
  const { Bucket, Prefix } = wanted
  let removed = 0
  for (let marker: { KeyMarker?: string; UploadIdMarker?: string } = {}; ; ) {
    const page = await client
      .send(new ListMultipartUploadsCommand({ ...wanted, ...marker }), options)
      .catch((cause: unknown) => {
        // Some servers remove unfinished uploads themselves and list none.
        if (hasCode(cause, 'NotImplemented', 'NoSuchUpload')) return null
        throw cause
      })
    for (const { Key, UploadId, Initiated } of page?.Uploads ?? []) {
      if (!Key?.startsWith(Prefix) || UploadId === undefined) continue
      if (Initiated === undefined || !isLeft(Initiated.getTime())) continue
      await client
        .send(new AbortMultipartUploadCommand({ Bucket, Key, UploadId }), options)
        .catch((cause) => {
          // The writer of the upload, or another sweeper, was faster.
          if (!hasCode(cause, 'NoSuchUpload')) throw cause
        })
      removed++
    }
    if (!page?.IsTruncated || page.NextKeyMarker === undefined) return removed
    marker = {
      KeyMarker: page.NextKeyMarker,
      ...(page.NextUploadIdMarker === undefined ? {} : { UploadIdMarker: page.NextUploadIdMarker }),
    }
  }
}

export class S3Objects implements Objects {
  readonly #client: S3Client
  readonly #bucket: string
  readonly #slots = new Slots(PARTS_AT_ONCE_ALL)

  constructor({ bucket, ...server }: S3Server & { bucket: string }) {
    this.#bucket = bucket
    this.#client = s3Client(server)
  }

  async stat(key: string, abortSignal: AbortSignal): Promise<{ bytes: number; etag: string }> {
    const request = new HeadObjectCommand({ Bucket: this.#bucket, Key: key })
    const { ContentLength = 0, ETag = '' } = await attempt(
      { failed },
      this.#client.send(request, { abortSignal }),
    )
    return { bytes: ContentLength, etag: ETag }
  }

  async *read(
    key: string,
    etag: string,
    { start, end }: ByteRange,
    abortSignal: AbortSignal,
  ): AsyncGenerator<Buffer, void, undefined> {
    const place = { Bucket: this.#bucket, Key: key, IfMatch: etag }
    try {
      yield* readObject(this.#client, place, start, end, { abortSignal })
    } catch (cause) {
      throw failed(cause)
    }
  }

  async put(key: string, source: Source, abortSignal: AbortSignal): Promise<number> {
    return await putObject(this.#client, { Bucket: this.#bucket, Key: key }, source, {
      failed,
      withMd5: true,
      slots: this.#slots,
      options: { abortSignal },
    })
  }

  async abortUploads(key: string, abortSignal: AbortSignal): Promise<void> {
    await attempt(
      { failed },
      abortUploads(this.#client, { Bucket: this.#bucket, Prefix: key }, () => true, { abortSignal }),
    )
  }
}

function failed(cause: unknown): ObjectFailed {
  if (cause instanceof RangeIgnored) return new ObjectFailed(OK, 'in place of a range', cause)
  if (!(cause instanceof S3ServiceException)) return new ObjectFailed(null, null, cause)
  const status = cause.$metadata.httpStatusCode ?? null
  // A server's message in place of a code is for operators only.
  const code = /^[A-Za-z]{1,40}$/.test(cause.name) && cause.name !== 'Unknown' ? cause.name : null
  return new ObjectFailed(status, code, cause)
}
