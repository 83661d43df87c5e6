import assert from 'node:assert/strict'
import test from 'node:test'
import { BoundedMap } from './bounded-map.ts'

test('a map drops the entry that was set first, and an entry that is set again counts as new', () => {
  const map = new BoundedMap<string, number>(2)
  map.set('a', 1).set('b', 2).set('a', 3).set('c', 4)
  assert.deepEqual(
    [...map],
    [
      ['a', 3],
      ['c', 4],
    ],
  )
})
