import assert from 'node:assert/strict'
import { test } from 'node:test'
import { capturedTerminal } from '../../../test/fakes/terminal.ts'
import { printFields, printTable, tableLines } from './terminal.ts'

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
  const rows = [['x'.repeat(50), 'y'.repeat(50)]]
  const narrow = capturedTerminal(40)
  printTable(narrow.stdout, ['A', 'B'], rows)
  assert.equal(narrow.out().split('\n')[1], `${'x'.repeat(39)}…`)
  const pipe = capturedTerminal()
  printTable(pipe.stdout, ['A', 'B'], rows)
  assert.equal(pipe.out(), `A${' '.repeat(51)}B\n${'x'.repeat(50)}  ${'y'.repeat(50)}\n`)
})

test('an object is shown field by field', () => {
  const { stdout, out } = capturedTerminal()
  printFields(stdout, { id: 'f', counts: { total: 1 }, gone: null })
  assert.equal(out(), 'id      f\ncounts  {"total":1}\ngone    -\n')
})
