import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import fc from 'fast-check'
import {
  base32,
  ID_PREFIXES,
  type IdKind,
  isId,
  LINE_NUMBER_MAX,
  lineRequestId,
  newId,
  parseLineRequestId,
  timeOfId,
} from './ids.ts'

const NOW = 1_800_000_000_000
const KINDS = Object.keys(ID_PREFIXES).filter((name): name is IdKind => name in ID_PREFIXES)
const anyLine = fc.integer({ min: 1, max: LINE_NUMBER_MAX })

describe('IDs', () => {
  test('an ID is its prefix and 26 characters of lower-case base32', () => {
    for (const kind of KINDS)
      assert.match(newId(kind, NOW), new RegExp(`^${ID_PREFIXES[kind]}[0-9a-hjkmnp-tv-z]{26}$`))
  })

  test('an ID begins with the millisecond it was made in, so IDs sort by time', () => {
    let now = NOW
    let last = ''
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 1e9 }), (later) => {
        now += later
        const id = newId('file', now)
        assert.equal(timeOfId('file', id), now)
        assert.ok(id > last)
        last = id
      }),
    )
  })

  test('a thousand IDs of one millisecond are different and in the order they were made', () => {
    const ids = Array.from({ length: 1000 }, () => newId('batch', NOW))
    assert.deepEqual([...new Set(ids)].sort(), ids)
  })

  test('an ID made after the clock went back is still greater than the last', () => {
    const before = newId('batch', NOW + 5000)
    const after = newId('batch', NOW)
    assert.ok(after > before)
  })

  test('an ID has the form of its own kind and of no other', () => {
    for (const kind of KINDS) {
      const id = newId(kind, NOW)
      assert.deepEqual(
        KINDS.filter((other) => isId(other, id)),
        [kind],
      )
    }
  })

  test('what is nearly an ID is none', () => {
    const id = newId('batch', NOW)
    const wrong = ['', 'batch_', id.slice(0, -1), `${id}0`, id.toUpperCase(), id.replace('batch_', 'batch-')]
    for (const text of [...wrong, `${id.slice(0, -1)}u`, `${id.slice(0, -1)}é`]) {
      assert.equal(isId('batch', text), false, text)
    }
  })
})

describe('request IDs of lines', () => {
  test('the ID of a line leads back to its batch and number', () => {
    fc.assert(
      fc.property(anyLine, (line) => {
        const batchId = newId('batch', NOW)
        assert.deepEqual(parseLineRequestId(lineRequestId(batchId, line)), { batchId, line })
      }),
    )
  })

  test('the IDs of a batch sort in the order of its lines', () => {
    const batchId = newId('batch', NOW)
    fc.assert(
      fc.property(anyLine, anyLine, (a, b) => {
        const [ida, idb] = [lineRequestId(batchId, a), lineRequestId(batchId, b)]
        assert.equal(Math.sign(a - b), ida < idb ? -1 : ida > idb ? 1 : 0)
      }),
    )
  })

  test('the first and the last line number have IDs, their neighbours outside do not', () => {
    assert.equal(base32(1), '0000001')
    assert.equal(base32(LINE_NUMBER_MAX), 'zzzzzzz')
    for (const line of [0, -1, 1.5, LINE_NUMBER_MAX + 1, Number.NaN])
      assert.throws(() => base32(line), RangeError)
  })

  test('the ID of an HTTP request is not taken for that of a line', () => {
    assert.equal(parseLineRequestId(newId('request', NOW)), null)
  })

  test('text that is no ID of a line is none', () => {
    const id = lineRequestId(newId('batch', NOW), 7)
    const zero = `${id.slice(0, -7)}0000000`
    for (const text of ['', id.slice(1), `${id}0`, id.toUpperCase(), `${id.slice(0, -1)}i`, zero]) {
      assert.equal(parseLineRequestId(text), null, text)
    }
  })

  test('whatever the text, parsing it never throws', () => {
    fc.assert(
      fc.property(fc.string({ maxLength: 60 }), (text) => {
        parseLineRequestId(`req_${text}`)
        parseLineRequestId(text)
      }),
    )
  })
})
