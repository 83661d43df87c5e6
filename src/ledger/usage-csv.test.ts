import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { csvCell } from './usage-csv.ts'

/** The cells as a spreadsheet reads them that takes `separator` for the end of one: quotes count where a cell begins. */
function cellsOf(text: string, separator: string): string[] {
  const cells: string[] = []
  for (let at = 0; at < text.length; ) {
    let cell = ''
    if (text[at] === '"') {
      for (at++; at < text.length; at++) {
        if (text[at] !== '"') cell += text[at]
        else if (text[at + 1] === '"') cell += text[at++]
        else break
      }
      at++
    }
    while (at < text.length && text[at] !== separator && text[at] !== '\n' && text[at] !== '\r')
      cell += text[at++]
    cells.push(cell)
    at++
  }
  return cells
}

const isFormula = (cell: string): boolean => /^[\p{Z}\p{C}]*[=+\-@＝＋－＠]/u.test(cell)
const name = fc
  .array(fc.constantFrom(...'=+-@＝＋－＠;,"\t\r\n \u00a0\u200b\ufeffax1\''), { maxLength: 12 })
  .map((characters) => characters.join(''))

test('no name is a formula, whichever character a spreadsheet takes for the end of a cell', () => {
  fc.assert(
    fc.property(name, name, (first, second) => {
      const text = `${csvCell(first)},${csvCell(second)},1\r\n`
      for (const separator of [',', ';', '\t'])
        for (const cell of cellsOf(text, separator)) assert.ok(!isFormula(cell), `${separator}: ${cell}`)
    }),
    { numRuns: 20_000 },
  )
})

test('every name stays one cell, and only beginnings of formulas are changed', () => {
  fc.assert(
    fc.property(name, (text) => {
      const [cell = ''] = cellsOf(`${csvCell(text)},1`, ',')
      assert.equal(cell.replaceAll("'", ''), text.replaceAll("'", ''))
    }),
  )
  for (const text of ['user:42', 'a-b', "O'Neill", 'team/x', 'ä = b', 'c++'])
    assert.equal(csvCell(text), text)
})
