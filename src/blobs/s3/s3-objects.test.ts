import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import { text } from 'node:stream/consumers'
import { after, test } from 'node:test'
import { s3Server, TEST_BUCKET } from '../../../test/fakes/s3-server.ts'
import { ObjectFailed } from '../objects.ts'
import { partBytes } from './multipart-upload.ts'
import { S3Objects } from './s3-objects.ts'

const server = await s3Server()
after(() => server[Symbol.asyncDispose]())
const PLACE = {
  bucket: TEST_BUCKET,
  endpoint: server.endpoint,
  region: 'us-east-1',
  path_style: true,
  access_key_id: 'id',
  secret_access_key: 'secret',
  session_token: null,
}
const objects = new S3Objects(PLACE)
const { signal } = new AbortController()

async function read(key: string, etag: string, start: number, end: number): Promise<string> {
  return await text(objects.read(key, etag, { start, end }, signal))
}

test('an object is put under any key, and read as the content that was found', async () => {
  const key = 'day=1/ü +&.jsonl'
  assert.equal(await objects.put(key, [Buffer.from('one two')], signal), 7)
  const { bytes, etag } = await objects.stat(key, signal)
  assert.equal(bytes, 7)
  assert.equal(await read(key, etag, 2, 5), 'e t')
  await objects.put(key, [Buffer.from('another')], signal)
  await assert.rejects(read(key, etag, 0, 7), { status: 412, isFinal: true })
})

test('parts are of equal size up to 40 GiB, as R2 wants them, and those behind hold a file of 1 TB', () => {
  const sizes = Array.from({ length: 10_000 }, (_, i) => partBytes(i + 1))
  assert.ok(sizes.slice(0, 5_000).every((size) => size === 8 * 1024 * 1024))
  assert.ok(sizes.reduce((sum, size) => sum + size) > 0.8 * 10 ** 12)
  assert.ok(Math.max(...sizes) < 256 * 1024 * 1024, 'a few of them are in memory')
})

test('a large object goes up in parts, and the server checks each of them', async () => {
  const content = Buffer.alloc(9 * 1024 * 1024, 'x')
  assert.equal(await objects.put('large', [content], signal), content.length)
  assert.ok(server.objects.get('large')?.bytes.equals(content))
  const parts = server.requests.filter(({ query }) => query.has('partNumber'))
  assert.equal(parts.length, 2)
  assert.ok(parts.every(({ headers }) => headers['content-md5'] !== undefined))
})

test('a failure says what the bucket answered, and no address', async () => {
  await assert.rejects(objects.stat('missing', signal), { status: 404, isFinal: true })
  server.fault = () => ({ status: 403, code: 'AccessDenied' })
  await assert.rejects(objects.put('x', [], signal), {
    message: 'the bucket answered 403 AccessDenied',
    isFinal: true,
  })
  server.fault = () => ({ status: 403, code: 'see http://10.0.0.1' })
  await assert.rejects(objects.put('x', [], signal), { message: 'the bucket answered 403' })
  server.fault = () => ({ status: 503, code: 'SlowDown' })
  await assert.rejects(objects.put('x', [], signal), {
    message: 'the bucket answered 503 SlowDown',
    isFinal: false,
  })
  server.fault = () => 'reset'
  await assert.rejects(objects.stat('x', signal), (error: Error) => {
    assert.ok(error instanceof ObjectFailed)
    assert.deepEqual([error.message, error.isFinal], ['the bucket cannot be reached', false])
    return true
  })
  server.fault = () => null
})

test('a bucket that does not answer delays no other, and its calls end when they are aborted', async () => {
  const abort = new AbortController()
  const never = new Promise<null>(() => {})
  const content = Buffer.alloc(17 * 1024 * 1024)
  const { etag } = await objects.put('slow', [content], signal).then(() => objects.stat('slow', signal))
  const reached = Promise.withResolvers<void>()
  let parts = 0
  server.fault = ({ key, method }) => {
    if (!key.startsWith('slow') || method === 'POST') return null
    if (method === 'PUT' && ++parts === 8) reached.resolve()
    return never
  }
  const hanging = [1, 2, 3].map((n) => objects.put(`slow${n}`, [content], abort.signal))
  const settled = Promise.allSettled([
    ...hanging,
    objects.stat('slow', abort.signal),
    objects.read('slow', etag, { start: 0, end: 9 }, abort.signal)[Symbol.asyncIterator]().next(),
  ])
  await reached.promise
  assert.equal(await new S3Objects(PLACE).put('other', [content], signal), content.length)
  abort.abort()
  assert.ok((await settled).every(({ status }) => status === 'rejected'))
  server.fault = () => null
})

test('errors and lists of a bucket are read to a bound, and an object in tiny pieces is not read', async () => {
  const sent = { bytes: 0 }
  const hostile = createServer((request, response) => {
    const isObject = request.method === 'GET' && !request.url?.includes('uploads')
    response.writeHead(isObject ? 200 : request.method === 'PUT' ? 403 : 200)
    const piece = isObject ? Buffer.from('x') : Buffer.alloc(256 * 1024, ' ')
    const send = (): void => {
      for (let i = 0; i < 5_000 && !response.destroyed && sent.bytes < 200 * 2 ** 20; i++) {
        sent.bytes += piece.length
        if (!response.write(piece)) break
      }
    }
    response.on('drain', send)
    request.resume().on('end', send)
  })
  await new Promise<void>((resolve) => void hostile.listen(0, '127.0.0.1', resolve))
  const endpoint = `http://127.0.0.1:${Object(hostile.address()).port}`
  const bucket = new S3Objects({ ...PLACE, endpoint })
  try {
    await assert.rejects(bucket.put('x', [Buffer.from('a')], signal), { message: 'the bucket answered 403' })
    await assert.rejects(bucket.abortUploads('x', signal), ObjectFailed)
    assert.ok(sent.bytes < 120 * 2 ** 20, `${sent.bytes}`)
    sent.bytes = 0
    await assert.rejects(text(bucket.read('x', 'e', { start: 0, end: 1_000_000 }, signal)), ObjectFailed)
    assert.ok(sent.bytes < 100_000, `${sent.bytes}`)
  } finally {
    hostile.closeAllConnections()
    hostile.close()
  }
})
