import assert from 'node:assert/strict'
import { test } from 'node:test'
import { freeBuffer, largeBuffer, reuseBuffer } from './free-buffer.ts'

test('the memory of a buffer is freed at once, and its views are empty', () => {
  const buffer = Buffer.allocUnsafeSlow(64 * 1024 * 1024)
  const view = buffer.subarray(5, 10)
  const before = process.memoryUsage().arrayBuffers
  freeBuffer(buffer)
  assert.ok(process.memoryUsage().arrayBuffers <= before - 64 * 1024 * 1024)
  assert.equal(buffer.length, 0)
  assert.equal(view.length, 0)
})

test('a part of a large buffer frees all of it', () => {
  const buffer = Buffer.allocUnsafeSlow(1024 * 1024)
  freeBuffer(buffer.subarray(0, 10))
  assert.equal(buffer.length, 0)
})

test("a buffer out of Node's pool stays, as others have a part of the pool", () => {
  const [one, other] = [Buffer.from('one'), Buffer.from('other')]
  freeBuffer(one)
  assert.equal(one.toString(), 'one')
  assert.equal(other.toString(), 'other')
})

test('an empty buffer, which many may use as the one for nothing, stays usable', () => {
  const nothing = Buffer.alloc(0)
  freeBuffer(nothing)
  assert.equal(nothing.copy(Buffer.alloc(1)), 0)
  assert.equal(nothing.subarray(0, 0).length, 0)
})

test('memory that is used again is the same, and earlier views of it are empty', () => {
  const first = largeBuffer(300 * 1024)
  const view = first.subarray(10, 20)
  first.fill(7)
  reuseBuffer(first)
  assert.deepEqual([first.length, view.length], [0, 0])
  const second = largeBuffer(400 * 1024)
  assert.equal(second.length, 400 * 1024)
  assert.equal(second[0], 7)
})

test('memory that is much too long for a buffer is left for another', () => {
  reuseBuffer(largeBuffer(2 * 1024 * 1024).fill(9))
  assert.notEqual(largeBuffer(300 * 1024).buffer.byteLength, 2 * 1024 * 1024)
  assert.equal(largeBuffer(2 * 1024 * 1024)[0], 9)
})

test('no more than 4 MiB are kept', () => {
  const buffers = Array.from({ length: 8 }, () => largeBuffer(1024 * 1024))
  const before = process.memoryUsage().arrayBuffers
  for (const buffer of buffers) reuseBuffer(buffer)
  const freed = before - process.memoryUsage().arrayBuffers
  assert.ok(freed >= 4 * 1024 * 1024 && freed <= 5 * 1024 * 1024, `${freed} bytes`)
})
