import assert from 'node:assert/strict'
import { hash } from 'node:crypto'
import { test } from 'node:test'
import fc from 'fast-check'
import { encodeFirstLines, FirstLines, unpackNumbers } from './first-lines.ts'

test('the first line of each request is found, however many there are', () => {
  fc.assert(
    fc.property(fc.array(fc.integer({ min: 0, max: 5000 }), { maxLength: 8000, size: 'max' }), (requests) => {
      const table = new FirstLines()
      const expected = new Map<number, number>()
      for (const [i, request] of requests.entries()) {
        const first = table.findOrAdd(hash('sha256', String(request), 'base64'), i + 1)
        assert.equal(first, expected.get(request) ?? 0)
        if (first === 0) expected.set(request, i + 1)
      }
    }),
    { numRuns: 30 },
  )
})

test('what is stored of a chunk is small where lines are alike, and nothing where none has an earlier one', () => {
  fc.assert(
    fc.property(fc.array(fc.integer({ min: 0, max: 0xffffffff }), { maxLength: 1000 }), (firsts) => {
      const text = encodeFirstLines(firsts)
      if (firsts.every((first) => first === 0)) assert.equal(text, null)
      else assert.deepEqual([...unpackNumbers(text ?? '')], firsts)
    }),
  )
  assert.ok((encodeFirstLines(new Array(1000).fill(7)) ?? '').length < 50)
})
