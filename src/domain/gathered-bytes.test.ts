import assert from 'node:assert/strict'
import { PassThrough } from 'node:stream'
import { test } from 'node:test'
import { GrowingBytes, gathered, PieceSizes, readWhole, TinyPieces } from './gathered-bytes.ts'

test('many pieces take little more memory than their bytes', () => {
  const bytes = new GrowingBytes()
  for (let i = 0; i < 100_000; i++) bytes.add(Buffer.from('ab'), 1)
  assert.ok(bytes.capacity <= 200_000, `${bytes.capacity}`)
  assert.equal(bytes.take().toString(), 'b'.repeat(100_000))
  assert.equal(bytes.capacity, 0)
})

test('small pieces that a busy reader has not asked for come as one, large ones as they are', async () => {
  const body = new PassThrough()
  const pieces = gathered(body)
  body.write('begin')
  const seen = [(await pieces.next()).value]
  for (const some of ['a', 'b', 'c'.repeat(5_000), 'd', 'e']) body.write(some)
  await new Promise((resolve) => setImmediate(resolve))
  body.end()
  for await (const piece of pieces) seen.push(piece)
  assert.deepEqual(
    seen.map((piece) => String(piece)),
    ['begin', 'ab', 'c'.repeat(5_000), 'de'],
  )
})

test('a body that breaks off is read to there, and then throws', async () => {
  const body = new PassThrough()
  const pieces = gathered(body)
  body.write('some')
  assert.equal(String((await pieces.next()).value), 'some')
  body.destroy(new Error('gone'))
  await assert.rejects(pieces.next(), /gone/)
  await assert.rejects(gathered(body).next(), /gone/)
})

test('a thousand tiny pieces in a row are too many, wherever they begin', () => {
  const sizes = new PieceSizes()
  for (let i = 0; i < 10_000; i++) assert.ok(sizes.allow(32))
  let tiny = 0
  while (sizes.allow(1)) tiny++
  assert.ok(tiny < 2_000)
})

test('a reader of a whole body stops at its bound, and at tiny pieces', async () => {
  const large = new PassThrough()
  large.write(Buffer.alloc(5_000, 'x'))
  assert.deepEqual(await readWhole(large, 4), { bytes: Buffer.from('xxxx'), isWhole: false })
  assert.ok(large.destroyed)
  const tiny = new PassThrough({ highWaterMark: 100_000 })
  const read = readWhole(tiny, 100_000)
  const failed = assert.rejects(read, TinyPieces)
  for (let i = 0; i < 5_000; i++) tiny.write('x')
  await failed
})
