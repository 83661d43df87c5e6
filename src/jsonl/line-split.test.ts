import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import fc from 'fast-check'
import { LineSplitter } from './byte-lines.ts'

fc.configureGlobal({ seed: 7 })

type Seen = {
  number: number
  what: string | 'too long' | 'not UTF-8'
  byte_start?: number
  byte_end?: number
}

/** Splits `bytes`, cut into blocks of the given sizes; each block is overwritten once it has been taken. */
function split(bytes: Buffer, sizes: number[] = [], line_bytes_max = 1000): Seen[] {
  const seen: Seen[] = []
  const splitter = new LineSplitter(line_bytes_max, {
    line: (block, start, end, number, byte_start, byte_end) =>
      seen.push({ number, what: block.toString('utf8', start, end), byte_start, byte_end }),
    tooLong: (number) => seen.push({ number, what: 'too long' }),
    notUtf8: (number) => seen.push({ number, what: 'not UTF-8' }),
  })
  let at = 0
  for (const size of [...sizes, bytes.length]) {
    const block = Buffer.from(bytes.subarray(at, at + size))
    splitter.push(block)
    block.fill('#')
    at += block.length
  }
  splitter.end()
  return seen
}

function texts(text: string | Buffer, line_bytes_max?: number): [number, string][] {
  return split(Buffer.from(text), [], line_bytes_max).map(({ number, what }) => [number, what])
}

describe('lines', () => {
  test('are numbered from 1, blank ones included', () => {
    assert.deepEqual(texts('a\n\n \t\r\nb\n'), [
      [1, 'a'],
      [4, 'b'],
    ])
  })

  test('need no final line break', () => {
    assert.deepEqual(texts('a\nb'), [
      [1, 'a'],
      [2, 'b'],
    ])
  })

  test('lose the CR of a CRLF and a byte order mark at the start', () => {
    assert.deepEqual(texts('\ufeffa\r\nb\r\n\ufeffc'), [
      [1, 'a'],
      [2, 'b'],
      [3, '\ufeffc'],
    ])
    assert.deepEqual(texts('\ufeff'), [])
    assert.deepEqual(texts(''), [])
  })

  test('know their place in the stream', () => {
    assert.deepEqual(split(Buffer.from('\ufeffab\r\n\ncd'), [1, 1, 1, 1]), [
      { number: 1, what: 'ab', byte_start: 3, byte_end: 7 },
      { number: 3, what: 'cd', byte_start: 8, byte_end: 10 },
    ])
  })

  test('may be as long as the limit, whatever surrounds them', () => {
    assert.deepEqual(texts('\ufeffabcd\r\nabcd\nabcde\nab', 4), [
      [1, 'abcd'],
      [2, 'abcd'],
      [3, 'too long'],
      [4, 'ab'],
    ])
  })

  test('that are not UTF-8 are told apart from their neighbours', () => {
    const bytes = Buffer.concat([Buffer.from('ü\n'), Buffer.from([0xc3, 0x0a, 0x62, 0x0a, 0x80])])
    assert.deepEqual(texts(bytes), [
      [1, 'ü'],
      [2, 'not UTF-8'],
      [3, 'b'],
      [4, 'not UTF-8'],
    ])
  })
})

test('any re-blocking of the same bytes gives the same lines', () => {
  const piece = fc.oneof(
    fc
      .constantFrom('\n', '\r\n', '\n\n', ' ', '\ufeff', 'é', '漢', '😀', 'abcdefgh', '\r')
      .map((text) => Buffer.from(text)),
    fc.uint8Array({ maxLength: 3 }).map((bytes) => Buffer.from(bytes)),
  )
  const sizes = fc.array(fc.nat({ max: 5 }), { maxLength: 60 })
  fc.assert(
    fc.property(
      fc.array(piece, { maxLength: 30 }),
      sizes,
      fc.integer({ min: 1, max: 12 }),
      (pieces, cuts, max) => {
        const bytes = Buffer.concat(pieces)
        assert.deepEqual(split(bytes, cuts, max), split(bytes, [], max))
      },
    ),
    { numRuns: 2000 },
  )
})

test('a line without end is not kept in memory', () => {
  let too_long = 0
  const splitter = new LineSplitter(1000, {
    line: () => assert.fail('no line'),
    tooLong: () => too_long++,
    notUtf8: () => assert.fail('no line'),
  })
  const block = Buffer.alloc(1 << 20, 'x')
  const before = process.memoryUsage().arrayBuffers
  for (let i = 0; i < 200; i++) splitter.push(block)
  assert.ok(process.memoryUsage().arrayBuffers - before < 10e6)
  splitter.end()
  assert.equal(too_long, 1)
})
