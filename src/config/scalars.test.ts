import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { sizeBytes, sizeText } from './scalars.ts'

test('units with an i are powers of 1024, the others of 1000', () => {
  const table = [
    ['0', 0],
    ['512', 512],
    ['512B', 512],
    ['8KiB', 8192],
    ['8MiB', 8_388_608],
    ['10GiB', 10_737_418_240],
    ['1TiB', 1_099_511_627_776],
    ['8KB', 8000],
    ['8MB', 8_000_000],
    ['10 GB', 10_000_000_000],
  ] as const
  for (const [text, bytes] of table) assert.equal(sizeBytes(text), bytes, text)
})

test('what is not a whole number and a unit is no size', () => {
  for (const text of [
    '',
    'MiB',
    '1.5MiB',
    '-1',
    '8mib',
    '8M',
    '8 MiB ',
    '8  MiB',
    '9999TiB9',
    '9999999TiB',
  ]) {
    assert.equal(sizeBytes(text), null, JSON.stringify(text))
  }
})

test('what is written is read as the same size', () => {
  fc.assert(fc.property(fc.maxSafeNat(), (bytes) => assert.equal(sizeBytes(sizeText(bytes)), bytes)))
})
