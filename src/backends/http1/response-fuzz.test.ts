// Generates hundreds of answers and cuts them into pieces at random. A valid answer must read as Node's own client
// reads it; an invalid one must read the same however it is cut.
import assert from 'node:assert/strict'
import { request } from 'node:http'
import { Duplex } from 'node:stream'
import test from 'node:test'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { ResponseError, ResponseReader } from './response-reader.ts'

const COUNT = 400
const BYTES_MAX = 100_000

/** The answer as the reader has read it; null: the reader has failed. */
type Read = { status: number | undefined; body: string; keepsAlive: boolean } | null

class SeededRandom {
  #state: number

  constructor(seed: number) {
    this.#state = seed
  }

  /** Draws a number from 0 to `below` - 1 (splitmix32). */
  roll(below: number): number {
    this.#state = (this.#state + 0x9e3779b9) | 0
    let z = Math.imul(this.#state ^ (this.#state >>> 16), 0x21f0aaad)
    z = Math.imul(z ^ (z >>> 15), 0x735a2d97)
    return ((z ^ (z >>> 15)) >>> 0) % below
  }

  pick(...all: string[]): string {
    return all[this.roll(all.length)] ?? ''
  }
}

/** A random answer within RFC 9112, in latin1. */
function madeUp(random: SeededRandom): string {
  const status = random.pick('200', '201', '204', '304', '400', '429', '503')
  let body = ''
  for (let left = random.roll(40); left > 0; left--)
    body += random.pick('a', '{', '\r\n', '\n', '0', 'Ã¼', '\0', 'HTTP/1.1 200 OK\r\n\r\n')
  const headers: string[] = []
  for (let left = random.roll(5); left > 0; left--)
    headers.push(
      random.pick('x: a:b', 'Server: x', 'tE: trailers', 'x-empty:', 'Cookie:  a ', 'Retry-After: 5'),
    )
  if (random.roll(3) === 0)
    headers.push(random.pick('Connection: close', 'connection: Keep-Alive', 'connection: x,close'))
  if (random.roll(9) === 0) headers.push(random.pick('Connection: close', 'connection: y'))
  const framing = random.pick('length', 'chunks', 'end')
  const isBare = status === '204' || status === '304'
  if (framing === 'length')
    headers.push(`${random.pick('Content-Length: ', 'CONTENT-LENGTH:\t')}${isBare ? 0 : body.length}`)
  if (framing === 'chunks' && !isBare) {
    headers.push(random.pick('Transfer-Encoding: chunked', 'transfer-encoding:Chunked'))
    body = chunked(body, random)
  }
  headers.sort(() => random.roll(3) - 1)
  const interim = random.roll(9) === 0 ? 'HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n' : ''
  const start = `HTTP/${random.pick('1.1', '1.1', '1.0')} ${status}${random.pick(' OK', ' ', '', ' Not so \xe9')}`
  return `${interim}${[start, ...headers].join('\r\n')}\r\n\r\n${isBare ? '' : body}`
}

function chunked(body: string, random: SeededRandom): string {
  let all = ''
  for (let at = 0; at < body.length; ) {
    const part = body.slice(at, at + 1 + random.roll(20))
    const size = part.length.toString(16)
    all += `${random.pick('', '00')}${random.pick(size, size.toUpperCase())}${random.pick('', ';a="b"')}\r\n${part}\r\n`
    at += part.length
  }
  return `${all}0\r\n${random.pick('', 'X-Trailer: v\r\n')}\r\n`
}

/** An answer with a byte added, removed or changed, in its head or shortly behind it. */
function damaged(answer: string, random: SeededRandom): string {
  const at = random.roll(Math.min(answer.length, answer.indexOf('\r\n\r\n') + 40))
  const byte = random.pick('\0', '\r', '\n', ' ', ':', '0', '9', ';', 'A', '\xff')
  const [put, cut] = [random.roll(3) > 0 ? byte : '', random.roll(2)]
  return answer.slice(0, at) + put + answer.slice(at + cut)
}

function readInPieces(bytes: Buffer, size: () => number): Read {
  const reader = new ResponseReader(BYTES_MAX)
  const result = (inStep: boolean): Read => ({
    status: reader.status,
    body: reader.body.toString('latin1'),
    keepsAlive: inStep && reader.keepsAlive,
  })
  try {
    for (let at = 0; at < bytes.length; ) {
      const piece = Buffer.from(bytes.subarray(at, at + size()))
      const used = reader.read(piece, piece.length)
      piece.fill('X')
      at += piece.length
      if (used !== null) return result(used === piece.length && at === bytes.length)
    }
    return reader.end() ? result(true) : null
  } catch (error) {
    assert.ok(error instanceof ResponseError, String(error))
    return null
  }
}

async function readByNode(bytes: Buffer): Promise<Read> {
  const { promise, resolve } = Promise.withResolvers<Read>()
  const line = new Duplex({ read() {}, write: (_piece, _encoding, written) => written() })
  const call = request(
    { createConnection: () => line, headers: { connection: 'keep-alive' } },
    (response) => {
      let body = ''
      response.setEncoding('latin1').on('data', (piece: string) => {
        body += piece
      })
      response.on('error', () => resolve(null))
      response.on('end', () =>
        resolve({ status: response.statusCode, body, keepsAlive: call.shouldKeepAlive }),
      )
    },
  )
  call.on('error', () => resolve(null))
  call.end()
  line.push(bytes)
  await nextTurn()
  line.push(null)
  return await promise
}

test('whatever HTTP allows reads as Node reads it, in whichever pieces it comes', async () => {
  for (let seed = 1; seed <= COUNT; seed++) {
    const random = new SeededRandom(seed)
    const bytes = Buffer.from(madeUp(random), 'latin1')
    const expected = await readByNode(bytes)
    assert.ok(expected !== null, `seed ${seed}: ${bytes.toString('latin1')}`)
    assert.deepEqual(
      readInPieces(bytes, () => bytes.length),
      expected,
      `seed ${seed}`,
    )
    assert.deepEqual(
      readInPieces(bytes, () => 1 + random.roll(9)),
      expected,
      `seed ${seed}, in pieces`,
    )
  }
})

test('whatever HTTP does not allow reads the same in whichever pieces it comes', () => {
  for (let seed = 1; seed <= 10 * COUNT; seed++) {
    const random = new SeededRandom(seed)
    const bytes = Buffer.from(damaged(madeUp(random), random), 'latin1')
    const whole = readInPieces(bytes, () => bytes.length)
    assert.deepEqual(
      readInPieces(bytes, () => 1 + random.roll(9)),
      whole,
      `seed ${seed}`,
    )
  }
})
