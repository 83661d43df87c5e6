// The part of S3's protocol that the adapter speaks, over real HTTP and in memory: a stand-in for tests and
// benchmarks on machines without an S3 server. Signatures are not checked, and nothing is kept. It is strict
// where real servers are: parts have a least size, an upload is visible only once it is completed.
import { createHash, randomUUID } from 'node:crypto'
import { createServer, type IncomingHttpHeaders, type IncomingMessage, type ServerResponse } from 'node:http'
import { buffer } from 'node:stream/consumers'
import { type Listening, listen } from '../support/listen.ts'

const PART_BYTES_MIN = 5 * 1024 * 1024
const PAGE_KEYS = 1000

interface StoredObject {
  bytes: Buffer
  modified: number
}

interface Upload {
  key: string
  initiated: number
  parts: Map<number, { bytes: Buffer; etag: string }>
}

/** What goes wrong with a request: an error's status and code, or the connection breaks off. */
export type Fault = { status: number; code: string } | 'reset' | 'cut'

export interface S3Request {
  method: string
  headers: IncomingHttpHeaders
  /** Without the bucket. */
  key: string
  query: URLSearchParams
  /** How many came before it. */
  index: number
}

export interface S3Server extends Listening {
  endpoint: string
  objects: Map<string, StoredObject>
  uploads: Map<string, Upload>
  requests: S3Request[]
  /** Asked for each request, which waits for it; null: it is answered as it should be. `cut` breaks off in the middle of a body. */
  fault: (request: S3Request) => Fault | null | Promise<Fault | null>
  /** Keys of a listing's page; small, so that tests see several. */
  page_keys: number
}

export const TEST_BUCKET = 'test-bucket'

export async function s3Server(port = 0, host = '127.0.0.1'): Promise<S3Server> {
  const server = createServer({ keepAliveTimeout: 60_000 }, (request, response) => {
    answer(fake, request, response).catch((error: unknown) => {
      response.destroy(error instanceof Error ? error : new Error(String(error)))
    })
  })
  const at = await listen(server, port, host)
  const fake: S3Server = {
    ...at,
    endpoint: at.url,
    objects: new Map(),
    uploads: new Map(),
    requests: [],
    fault: () => null,
    page_keys: PAGE_KEYS,
  }
  return fake
}

async function answer(fake: S3Server, request: IncomingMessage, response: ServerResponse): Promise<void> {
  const url = new URL(request.url ?? '/', 'http://s3')
  const [, bucket = '', ...rest] = url.pathname.split('/')
  const key = decodeURIComponent(rest.join('/'))
  const method = request.method ?? ''
  const { headers } = request
  const call = { method, headers, key, query: url.searchParams, index: fake.requests.length }
  fake.requests.push(call)
  const body = await buffer(request)
  const fault = await fake.fault(call)
  if (fault === 'reset') {
    request.socket.destroy()
    return
  }
  const upload_id = url.searchParams.get('uploadId')
  if (fault !== null && fault !== 'cut') fail(response, fault.status, fault.code)
  else if (bucket !== TEST_BUCKET) fail(response, 404, 'NoSuchBucket')
  else if (key === '' && method === 'GET')
    (url.searchParams.has('uploads') ? listUploads : listObjects)(fake, call, response)
  else if (url.searchParams.has('uploads') && method === 'POST') begin(fake, key, response)
  else if (isSpoiled(request, body)) fail(response, 400, 'BadDigest')
  else if (upload_id !== null) multipart(fake, call, upload_id, body, response)
  else if (method === 'PUT') {
    fake.objects.set(key, { bytes: body, modified: Date.now() })
    response.setHeader('etag', etagOf(body))
    response.end()
  } else if (method === 'DELETE') {
    fake.objects.delete(key)
    response.statusCode = 204
    response.end()
  } else if (method === 'GET' || method === 'HEAD') {
    sendObject(fake, key, request, response, fault === 'cut')
  } else fail(response, 405, 'MethodNotAllowed')
}

function sendObject(
  fake: S3Server,
  key: string,
  request: IncomingMessage,
  response: ServerResponse,
  cut: boolean,
): void {
  const found = fake.objects.get(key)
  if (!found) {
    fail(response, 404, 'NoSuchKey', request.method === 'HEAD')
    return
  }
  const condition = request.headers['if-match']
  if (condition !== undefined && condition !== etagOf(found.bytes)) {
    fail(response, 412, 'PreconditionFailed')
    return
  }
  const range = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? '')
  const start = Number(range?.[1] ?? 0)
  const end = Math.min(found.bytes.length, range?.[2] ? Number(range[2]) + 1 : found.bytes.length)
  if (range && start >= found.bytes.length) {
    fail(response, 416, 'InvalidRange')
    return
  }
  const bytes = found.bytes.subarray(start, end)
  response.statusCode = range ? 206 : 200
  response.setHeader('content-length', bytes.length)
  response.setHeader('etag', etagOf(found.bytes))
  response.setHeader('last-modified', new Date(found.modified).toUTCString())
  if (range) response.setHeader('content-range', `bytes ${start}-${end - 1}/${found.bytes.length}`)
  if (request.method === 'HEAD') response.end()
  else if (!cut) response.end(bytes)
  else response.write(bytes.subarray(0, bytes.length / 2), () => response.destroy())
}

function begin(fake: S3Server, key: string, response: ServerResponse): void {
  const id = randomUUID()
  fake.uploads.set(id, { key, initiated: Date.now(), parts: new Map() })
  const inner = `<Bucket>${TEST_BUCKET}</Bucket><Key>${key}</Key><UploadId>${id}</UploadId>`
  xml(response, 'InitiateMultipartUploadResult', inner)
}

function multipart(
  fake: S3Server,
  call: S3Request,
  id: string,
  body: Buffer,
  response: ServerResponse,
): void {
  const upload = fake.uploads.get(id)
  if (!upload || upload.key !== call.key) fail(response, 404, 'NoSuchUpload')
  else if (call.method === 'PUT') {
    const etag = etagOf(body)
    upload.parts.set(Number(call.query.get('partNumber')), { bytes: body, etag })
    response.setHeader('etag', etag)
    response.end()
  } else if (call.method === 'DELETE') {
    fake.uploads.delete(id)
    response.statusCode = 204
    response.end()
  } else complete(fake, id, upload, body, response)
}

function complete(fake: S3Server, id: string, upload: Upload, body: Buffer, response: ServerResponse): void {
  const numbers = [...body.toString().matchAll(/<PartNumber>(\d+)<\/PartNumber>/g)].map((match) =>
    Number(match[1]),
  )
  const parts = numbers.map((number) => upload.parts.get(number)?.bytes).filter((part) => part !== undefined)
  const problem =
    parts.length < numbers.length || parts.length === 0
      ? 'InvalidPart'
      : numbers.some((number, i) => i > 0 && number <= numbers[i - 1]!)
        ? 'InvalidPartOrder'
        : parts.slice(0, -1).some((part) => part.length < PART_BYTES_MIN)
          ? 'EntityTooSmall'
          : null
  if (problem) {
    fail(response, 400, problem)
    return
  }
  const bytes = Buffer.concat(parts)
  fake.uploads.delete(id)
  fake.objects.set(upload.key, { bytes, modified: Date.now() })
  xml(response, 'CompleteMultipartUploadResult', `<Key>${upload.key}</Key><ETag>${etagOf(bytes)}</ETag>`)
}

function listObjects(fake: S3Server, { query }: S3Request, response: ServerResponse): void {
  const prefix = query.get('prefix') ?? ''
  const after = query.get('continuation-token') ?? ''
  const keys = [...fake.objects.keys()].filter((key) => key.startsWith(prefix) && key > after).sort()
  const limit = Math.min(Number(query.get('max-keys') ?? fake.page_keys), fake.page_keys)
  const page = keys.slice(0, limit)
  const more = keys.length > page.length
  const contents = page.map((key) => {
    const { bytes, modified } = fake.objects.get(key)!
    return `<Contents><Key>${key}</Key><Size>${bytes.length}</Size><LastModified>${new Date(modified).toISOString()}</LastModified></Contents>`
  })
  const next = more ? `<NextContinuationToken>${page.at(-1)}</NextContinuationToken>` : ''
  xml(response, 'ListBucketResult', `<IsTruncated>${more}</IsTruncated>${next}${contents.join('')}`)
}

function listUploads(fake: S3Server, { query }: S3Request, response: ServerResponse): void {
  const prefix = query.get('prefix') ?? ''
  const rows = [...fake.uploads].filter(([, upload]) => upload.key.startsWith(prefix))
  const inner = rows.map(
    ([id, upload]) =>
      `<Upload><Key>${upload.key}</Key><UploadId>${id}</UploadId><Initiated>${new Date(upload.initiated).toISOString()}</Initiated></Upload>`,
  )
  xml(response, 'ListMultipartUploadsResult', `<IsTruncated>false</IsTruncated>${inner.join('')}`)
}

function xml(response: ServerResponse, root: string, inner: string): void {
  response.setHeader('content-type', 'application/xml')
  response.end(`<?xml version="1.0" encoding="UTF-8"?><${root}>${inner}</${root}>`)
}

function fail(response: ServerResponse, status: number, code: string, bodiless = false): void {
  response.statusCode = status
  response.setHeader('content-type', 'application/xml')
  response.end(bodiless ? undefined : `<Error><Code>${code}</Code><Message>${code}</Message></Error>`)
}

function isSpoiled({ headers }: IncomingMessage, body: Buffer): boolean {
  const given = headers['content-md5']
  return given !== undefined && given !== createHash('md5').update(body).digest('base64')
}

function etagOf(bytes: Buffer): string {
  return `"${createHash('md5').update(bytes).digest('hex')}"`
}
