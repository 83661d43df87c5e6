import assert from 'node:assert/strict'
import { test } from 'node:test'
import {
  between,
  bytes,
  compact,
  count,
  duration,
  percent,
  relative,
  shortId,
  usd,
  usdColumn,
  usdExact,
  utc,
} from './format.ts'

/** Replaces the spaces that keep a number and its unit on one line. */
const spaced = (text: string): string => text.replaceAll('\u00a0', ' ')

test('money shows cents from a dollar on, and three digits below', () => {
  assert.deepEqual([0, 0.00126, 0.1, 0.25, 1, 1234.5].map(usd), [
    '$0.00',
    '$0.00126',
    '$0.10',
    '$0.25',
    '$1.00',
    '$1,234.50',
  ])
  assert.equal(usdExact(0.000000042), '0.000000042 USD')
})

test('a share is 100% only when all is done, and 0% only when nothing is', () => {
  const shares: [number, number][] = [
    [0, 10],
    [1, 100_000],
    [1, 2],
    [99_999, 100_000],
    [10, 10],
    [3, 100_000],
    [1, 1_000_000],
    [29, 100],
    [489_600, 100_000],
    [0, 0],
  ]
  assert.deepEqual(
    shares.map(([part, whole]) => percent(part, whole)),
    ['0%', '0.001%', '50%', '99.999%', '100%', '0.003%', '<0.001%', '29%', '490%', '0%'],
  )
})

test('durations have two units at most, and decimals where they matter', () => {
  assert.deepEqual([0, 350, 4_200, 42_000, 59_900, 60_000, 7_500_000, 90_000_000].map(duration).map(spaced), [
    '0 ms',
    '350 ms',
    '4.2 s',
    '42 s',
    '1 min',
    '1 min',
    '2 h 5 min',
    '1 d 1 h',
  ])
  assert.deepEqual([between(5, 5), between(5, 65)].map(spaced), ['<1 s', '1 min'])
})

test('numbers, sizes, times and IDs are short', () => {
  assert.deepEqual([count(12_400), bytes(1_500_000)], ['12,400', '1.5 MB'])
  assert.deepEqual([999, 12_400, 999_960, 100e6].map(compact).map(spaced), ['999', '12.4 k', '1 M', '100 M'])
  assert.equal(relative(1_000, 1_180_000), '3 min. ago')
  assert.equal(relative(87 * 60, 0), 'in 87 min.')
  assert.equal(relative(2.6 * 3_600, 0), 'in 3 hr.')
  assert.equal(utc(1_767_225_600), '2026-01-01 00:00:00 UTC')
  assert.equal(shortId('batch_01k0a6w3f2n8s5v7y1c4e6g9hj'), 'batch_…c4e6g9hj')
})

test('costs of a column have their decimal marks below each other', () => {
  const values = [1.25, 0, 0.00126, 120]
  assert.deepEqual(values.map(usdColumn(values)), [
    '$1.25\u2007\u2007\u2007',
    '$0.00\u2007\u2007\u2007',
    '$0.00126',
    '$120.00\u2007\u2007\u2007',
  ])
})
