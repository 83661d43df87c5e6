import assert from 'node:assert/strict'
import { test } from 'node:test'
import { capturedTerminal } from '../../../test/fakes/terminal.ts'
import {
  counted,
  humanBytes,
  humanCount,
  humanDuration,
  humanRate,
  humanTime,
  humanUsd,
  printFields,
  printTable,
  tableLines,
  utcTime,
} from './terminal.ts'

test('a column is as wide as its widest cell, and no row ends with blanks', () => {
  assert.deepEqual(
    tableLines(
      ['ID', 'STATUS'],
      [
        ['batch_1', 'ok'],
        ['b', ''],
      ],
    ),
    ['ID       STATUS', 'batch_1  ok', 'b'],
  )
})

test('on a terminal a row is cut at its width, in a pipe it is not', () => {
  const rows = ['x'.repeat(50)]
  const columns = { A: (text: string) => text, B: () => 'y'.repeat(50) }
  const narrow = capturedTerminal(40)
  printTable(narrow.stdout, rows, columns)
  assert.equal(narrow.out().split('\n')[1], `${'x'.repeat(39)}…`)
  const pipe = capturedTerminal()
  printTable(pipe.stdout, rows, columns)
  assert.equal(pipe.out(), `A${' '.repeat(51)}B\n${'x'.repeat(50)}  ${'y'.repeat(50)}\n`)
})

test('an object is shown field by field', () => {
  const { stdout, out } = capturedTerminal()
  printFields(stdout, { id: 'f', counts: { total: 1 }, gone: null, created: 1_700_000_000 })
  assert.match(out(), /^id {7}f\ncounts {3}{"total":1}\ngone {5}-\ncreated {2}2023-11-1[45] \d\d:13.* UTC/)
})

test('a duration is shown in its two largest units', () => {
  const told = [
    [0, '0ms'],
    [-5, '0ms'],
    [820, '820ms'],
    [4234, '4.2s'],
    [9960, '10s'],
    [59_940, '60s'],
    [59_960, '1m 00s'],
    [125_000, '2m 05s'],
    [3_599_700, '1h 00m'],
    [3_725_000, '1h 02m'],
    [86_400_000, '1d 00h'],
    [90_000_000, '1d 01h'],
  ] as const
  for (const [ms, text] of told) assert.equal(humanDuration(ms), text)
})

test('an amount of money has enough digits to show at least three significant ones', () => {
  const told = [
    [0, '$0.00'],
    [0.000000001, '$0.000000001'],
    [0.0000123, '$0.0000123'],
    [0.0432, '$0.0432'],
    [0.5, '$0.500'],
    [0.9996, '$1.00'],
    [12.4, '$12.40'],
    [1234.5, '$1,234.50'],
    [1_234_567.891, '$1,234,567.89'],
  ] as const
  for (const [usd, text] of told) assert.equal(humanUsd(usd), text)
})

test('counts, rates and sizes are short', () => {
  assert.equal(humanCount(1319), '1,319')
  assert.equal(humanCount(1_000_000), '1,000,000')
  assert.equal(humanCount(12), '12')
  assert.equal(humanRate(0.42), '0.4/s')
  assert.equal(humanRate(12_400.4), '12,400/s')
  assert.equal(humanBytes(832), '832 B')
  assert.equal(humanBytes(1024 * 1024 * 1.2), '1.2 MiB')
  assert.equal(humanBytes(1024 * 1024 - 1), '1.0 MiB')
  assert.equal(counted(1, 'line'), '1 line')
  assert.equal(counted(1319, 'line'), '1,319 lines')
})

test('a time is shown by the clock of this place, and a missing one as a dash', () => {
  const shown = new Date(`${humanTime(1_700_000_000)}:20`)
  assert.equal(shown.getTime(), 1_700_000_000_000)
  assert.equal(utcTime(1_700_000_000), '2023-11-14 22:13')
  assert.equal(humanTime(null), '-')
  assert.equal(humanTime(undefined), '-')
})
