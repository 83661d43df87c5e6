import assert from 'node:assert/strict'
import test from 'node:test'
import { RETRY_AFTER_HEADERS } from '../../domain/retry-after.ts'
import { ResponseError, ResponseReader } from './response-reader.ts'

const BYTES_MAX = 1000
const plain = 'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 6\r\n\r\nżółw'.replace(
  '6',
  '7',
)
const chunked =
  'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4;ext="a"\r\nżó\r\n3 \r\nłw\r\n0\r\nTrailer: x\r\n\r\n'

interface Answer {
  status: number
  text: string
  keepsAlive: boolean
}

function answerOf({ status, body, keepsAlive }: ResponseReader): Answer {
  return { status, text: body.toString(), keepsAlive }
}

/** Reads an answer in one piece; null where it is incomplete. */
function readWhole(said: string, reader = new ResponseReader(BYTES_MAX)): Answer | null {
  const bytes = Buffer.from(said)
  const used = reader.read(bytes, bytes.length)
  if (used === null) return null
  assert.equal(used, bytes.length)
  return answerOf(reader)
}

/** Reads an answer in two pieces; the buffer is overwritten in between, like a connection's. */
function readSplit(bytes: Buffer, at: number): Answer | null {
  const reader = new ResponseReader(BYTES_MAX)
  const buffer = Buffer.alloc(bytes.length)
  const feed = (piece: Buffer): number | null => {
    buffer.fill('X')
    piece.copy(buffer)
    return reader.read(buffer, piece.length)
  }
  if (feed(bytes.subarray(0, at)) !== null) return null
  return feed(bytes.subarray(at)) === bytes.length - at ? answerOf(reader) : null
}

test('an answer reads the same wherever it is cut in two', () => {
  const interim = `HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n${plain}`
  for (const said of [plain, chunked, interim]) {
    const bytes = Buffer.from(said)
    const whole = { status: 200, text: 'żółw', keepsAlive: true }
    assert.deepEqual(readWhole(said), whole)
    for (let at = 1; at < bytes.length; at++) assert.deepEqual(readSplit(bytes, at), whole, `cut at ${at}`)
  }
})

test('an answer reads the same byte by byte', () => {
  for (const said of [plain, chunked]) {
    const reader = new ResponseReader(BYTES_MAX)
    const bytes = Buffer.from(said)
    for (const [at, byte] of bytes.entries()) {
      assert.equal(reader.read(Buffer.from([byte]), 1), at === bytes.length - 1 ? 1 : null)
    }
    assert.equal(reader.body.toString(), 'żółw')
  }
})

test('answers one after the other are told apart', () => {
  const reader = new ResponseReader(BYTES_MAX)
  const both = Buffer.from(`${plain}${chunked}`)
  const first = Buffer.byteLength(plain)
  assert.equal(reader.read(both, both.length), first)
  reader.reset()
  assert.equal(reader.hasBegun, false)
  assert.equal(reader.read(both.subarray(first), both.length - first), both.length - first)
  assert.equal(reader.body.toString(), 'żółw')
})

test('bytes behind an answer are left alone', () => {
  const reader = new ResponseReader(BYTES_MAX)
  const bytes = Buffer.from(`${plain}HTTP`)
  assert.equal(reader.read(bytes, bytes.length), bytes.length - 4)
})

test('an answer without a length ends with its connection, which is not used again', () => {
  const reader = new ResponseReader(BYTES_MAX)
  const bytes = Buffer.from('HTTP/1.1 200 OK\r\n\r\nall of it')
  assert.equal(reader.read(bytes, bytes.length), null)
  assert.equal(reader.end(), true)
  assert.deepEqual(answerOf(reader), { status: 200, text: 'all of it', keepsAlive: false })
})

test('an answer with a length, or chunked, is not whole when its connection ends early', () => {
  for (const said of [plain.slice(0, -1), chunked.slice(0, -2), plain.slice(0, 20)]) {
    const reader = new ResponseReader(BYTES_MAX)
    assert.equal(readWhole(said, reader), null)
    assert.equal(reader.end(), false)
    assert.equal(reader.hasBegun, true)
  }
})

test('a status that has no body needs no length', () => {
  assert.deepEqual(readWhole('HTTP/1.1 204 No Content\r\n\r\n'), { status: 204, text: '', keepsAlive: true })
})

test('whether the connection lives on is as the server says', () => {
  const cases: [said: string, keepsAlive: boolean][] = [
    ['HTTP/1.1 200 OK\r\ncontent-length: 0\r\nConnection: Close\r\n\r\n', false],
    ['HTTP/1.1 200 OK\r\ncontent-length: 0\r\nConnection: keep-alive, x\r\n\r\n', true],
    ['HTTP/1.1 200 OK\r\ncontent-length: 0\r\nConnection: close\r\nConnection: keep-alive\r\n\r\n', false],
    ['HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n', false],
    ['HTTP/1.0 200 OK\r\ncontent-length: 0\r\nconnection: keep-alive\r\n\r\n', true],
  ]
  for (const [said, keepsAlive] of cases) assert.equal(readWhole(said)?.keepsAlive, keepsAlive, said)
})

test('the headers that say when to come back are kept, others of no use are not', () => {
  const reader = new ResponseReader(BYTES_MAX)
  const said =
    'HTTP/1.1 429 Too Many\r\nRetry-After:  3 \r\nServer: x\r\nKeep-Alive: timeout=5, max=9\r\ncontent-length: 0\r\n\r\n'
  readWhole(said, reader)
  assert.equal(reader.headers['retry-after'], '3')
  assert.equal(reader.headers.server, undefined)
  assert.equal(reader.keepAliveS, 5)
  for (const name of RETRY_AFTER_HEADERS) {
    const limited = new ResponseReader(BYTES_MAX)
    readWhole(`HTTP/1.1 429 Too Many\r\n${name.toUpperCase()}: 7\r\ncontent-length: 0\r\n\r\n`, limited)
    assert.deepEqual(limited.headers, { [name]: '7' })
  }
})

test('what could mix two answers up is refused', () => {
  const head = 'HTTP/1.1 200 OK\r\n'
  const cases = [
    'SSH-2.0-OpenSSH_9\r\n',
    'HTTP/2 200 OK\r\n\r\n',
    'HTTP/1.1 OK\r\n\r\n',
    'HTTP/1.1 200 OK\ncontent-length: 0\n\n',
    'HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\n\r\n',
    `${head}no header\r\n\r\n`,
    `${head}content-length : 5\r\n\r\n`,
    `${head}x: 1\r\n folded\r\n\r\n`,
    `${head}content-length: 5\r\ncontent-length: 6\r\n\r\n`,
    `${head}content-length: -5\r\n\r\n`,
    `${head}content-length: 5, 5\r\n\r\n`,
    `${head}content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n`,
    `${head}transfer-encoding: gzip, chunked\r\n\r\n`,
    `${head}transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n`,
    `${head}transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n`,
    `${head}transfer-encoding: identity\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n`,
    `${head}transfer-encoding: chunked\r\n\r\nxyz\r\n`,
    `${head}transfer-encoding: chunked\r\n\r\n2\r\nabc\r\n`,
    `${head}transfer-encoding: chunked\r\n\r\n2\nab`,
  ]
  for (const said of cases) assert.throws(() => readWhole(said), ResponseError, JSON.stringify(said))
})

test('an answer that grows too large is refused, by its length or as it comes', () => {
  const head = 'HTTP/1.1 200 OK\r\n'
  const body = 'x'.repeat(BYTES_MAX + 1)
  const cases = [
    `${head}content-length: ${BYTES_MAX + 1}\r\n\r\n`,
    `${head}\r\n${body}`,
    `${head}transfer-encoding: chunked\r\n\r\n${(BYTES_MAX + 1).toString(16)}\r\n${body}`,
  ]
  for (const said of cases) assert.throws(() => readWhole(said), /larger than 1000 bytes/)
  assert.throws(() => readWhole(`${head}x: ${'y'.repeat(70_000)}`), /the head is larger/)
  assert.throws(
    () => readWhole(`${head}transfer-encoding: chunked\r\n\r\n1;${'y'.repeat(5000)}`),
    /does not end/,
  )
})

test('trailers have an end', () => {
  const head = 'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n'
  assert.throws(() => readWhole(head + 'x: y\r\n'.repeat(20_000)), ResponseError)
})

test('a body in pieces of one byte takes the memory of one buffer', () => {
  const size = 256 * 1024
  const reader = new ResponseReader(size)
  const feed = (text: string): number | null => reader.read(Buffer.from(text), text.length)
  feed('HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n')
  const piece = Buffer.from('1\r\nx\r\n')
  const before = process.memoryUsage().arrayBuffers
  for (let i = 0; i < size; i++) reader.read(piece, piece.length)
  assert.ok(process.memoryUsage().arrayBuffers - before < 4 * size)
  feed('0\r\n\r\n')
  assert.equal(reader.body.length, size)
})

test('an answer that comes in pieces leaves no memory behind but its own', () => {
  const MIB = 1024 * 1024
  const reader = new ResponseReader(64 * MIB)
  const piece = Buffer.from(`10000\r\n${'x'.repeat(0x10000)}\r\n`)
  const before = process.memoryUsage().arrayBuffers
  const head = Buffer.from('HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n')
  assert.equal(reader.read(head, head.length), null)
  for (let i = 0; i < 257; i++) assert.equal(reader.read(piece, piece.length), null)
  const end = Buffer.from('0\r\n\r\n')
  assert.equal(reader.read(end, end.length), end.length)
  assert.equal(reader.body.length, 257 * 0x10000)
  const grown = process.memoryUsage().arrayBuffers - before
  assert.ok(grown < 18 * MIB, `${grown} bytes are kept`)
})
