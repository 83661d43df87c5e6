import assert from 'node:assert/strict'
import { test } from 'node:test'
import { freeBuffer } from './free-buffer.ts'

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
