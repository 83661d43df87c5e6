import assert from 'node:assert/strict'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { parse } from 'csv-parse/sync'
import fc from 'fast-check'
import { fileSource } from '../cli/tables/open-table.ts'
import { openCsv } from './csv-reader.ts'
import { writeCsv } from './csv-writer.ts'
import type { CsvStyle } from './table.ts'

let folder: string
before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'offpeak-csv-'))
})
after(() => rm(folder, { recursive: true }))

type Cells = readonly (string | null)[]

async function written(names: readonly string[], rows: readonly Cells[], style: CsvStyle): Promise<string> {
  const pieces: string[] = []
  const sink = {
    append: async (piece: string | Uint8Array) => void pieces.push(String(piece)),
    end: async () => {},
    abort: async () => {},
  }
  const columns = names.map((name) => ({ name, type: 'string' as const }))
  const writer = await writeCsv(sink, columns, style)
  for (const cells of rows) await writer.write({ cells })
  await writer.end()
  return pieces.join('')
}

/** A strict reader by the grammar of RFC 4180, section 2. It throws for any other text. */
function rfc4180(text: string, delimiter: string, newline: string): (string | null)[][] {
  const records: (string | null)[][] = []
  let at = 0
  const field = (): string | null => {
    let value = ''
    if (text[at] === '"') {
      for (at++; ; at++) {
        assert.ok(at < text.length, 'a quoted field ends before the file does')
        if (text[at] !== '"') value += text[at]
        else if (text[at + 1] === '"') value += text[at++]
        else break
      }
      at++
      return value
    }
    while (at < text.length && !['"', '\r', '\n', delimiter].includes(text[at] ?? '')) value += text[at++]
    assert.notEqual(text[at], '"', 'a quote stands in a field that is not quoted')
    return value === '' ? null : value
  }
  while (at < text.length) {
    const record = [field()]
    while (text.startsWith(delimiter, at)) {
      at++
      record.push(field())
    }
    assert.ok(text.startsWith(newline, at), `a record ends with ${JSON.stringify(text.slice(at, at + 5))}`)
    at += newline.length
    records.push(record)
  }
  return records
}

const text = fc
  .array(
    fc.oneof(
      fc.constantFrom(...'\n\r\t,;|"\'=+-@＝＋－＠ \u00a0\u200b\ufeff\u2028ab1.é', '\r\n', '""', '😀'),
      fc.string({ unit: 'binary' }),
    ),
    { maxLength: 8 },
  )
  .map((parts) => parts.join(''))
const cell = fc.option(text, { freq: 8 })
const table = fc.integer({ min: 1, max: 4 }).chain((columns) =>
  fc.record({
    names: fc.uniqueArray(text, { minLength: columns, maxLength: columns }),
    rows: fc.array(fc.array(cell, { minLength: columns, maxLength: columns }), { maxLength: 5 }),
  }),
)
const style = fc.record({
  delimiter: fc.constantFrom(',', ';', '\t', '|', "'", '^', ' '),
  newline: fc.constantFrom('\n', '\r\n'),
  bom: fc.boolean(),
})

/** A table with one column has no missing values: its record would be an empty line. */
function kept(cells: Cells): Cells {
  return cells.length === 1 && cells[0] === null ? [''] : cells
}

test('each row is one record for every reader, and each text comes back as it was', async () => {
  await fc.assert(
    fc.asyncProperty(table, style, async ({ names, rows }, style) => {
      const csv = await written(names, rows, style)
      const own = rfc4180(style.bom ? csv.slice(1) : csv, style.delimiter, style.newline)
      assert.deepEqual(own[0], kept(names.map((name) => (name === '' ? null : name))))
      assert.deepEqual(own.slice(1), rows.map(kept))
      const parsed = parse(csv, { delimiter: style.delimiter, bom: true })
      assert.deepEqual(
        parsed,
        [names, ...rows].map((cells) => cells.map((cell) => cell ?? '')),
      )
    }),
    { numRuns: 1_000 },
  )
})

test('the command line reads what it has written, guarded or not', async () => {
  const path = join(folder, 'table.csv')
  await fc.assert(
    fc.asyncProperty(table, style, fc.boolean(), async ({ names, rows }, style, spreadsheet) => {
      await writeFile(path, await written(names, rows, { ...style, spreadsheet }))
      const read = await openCsv(await fileSource(path), { delimiter: style.delimiter, spreadsheet })
      assert.deepEqual(
        read.columns.map(({ name }) => name),
        names,
      )
      const cells: unknown[][] = []
      for await (const row of read.rows()) cells.push([...row.cells])
      assert.deepEqual(cells, rows.map(kept))
    }),
    { numRuns: 100 },
  )
})

/** The cells as a program reads them that ends them at `separator`: a quote counts where a cell begins. */
function cellsAt(csv: string, separator: string): string[] {
  const cells: string[] = []
  for (let at = 0; at < csv.length; at++) {
    let cell = ''
    if (csv[at] === '"') {
      for (at++; at < csv.length; at++) {
        if (csv[at] !== '"') cell += csv[at]
        else if (csv[at + 1] === '"') cell += csv[at++]
        else break
      }
      at++
    }
    while (at < csv.length && ![separator, '\n', '\r'].includes(csv[at] ?? '')) cell += csv[at++]
    cells.push(cell)
  }
  return cells
}

const FORMULA = /^[\p{Z}\p{C}]*[=+\-@＝＋－＠]/u

/** Whether a text is a number, or a record that begins with one, for programs with another separator. */
function isNumber(cell: string, { delimiter }: { delimiter: string }): boolean {
  // A delimiter may be a blank.
  const [first = ''] = cell.replace(/^[\p{Z}\p{C}]+/u, '').split(delimiter)
  return /^-?\d+([.,]\d+)?(e[+-]?\d+)?$/i.test(first)
}

test('no text is a formula, whichever character a spreadsheet takes for the end of a cell', async () => {
  await fc.assert(
    fc.asyncProperty(table, style, async ({ names, rows }, style) => {
      const csv = await written(names, rows, { ...style, spreadsheet: true })
      for (const separator of new Set([style.delimiter, ';', '\t', '|']))
        for (const cell of cellsAt(csv.replace(/^\ufeff/, ''), separator))
          assert.ok(!FORMULA.test(cell) || isNumber(cell, style), JSON.stringify([separator, cell]))
      for (const cell of parse(csv, { delimiter: style.delimiter, bom: true }).flat())
        assert.doesNotMatch(cell, /^[\t\r]/)
    }),
    { numRuns: 2_000 },
  )
})

test('a guarded table shows numbers, lists of numbers and common texts as they are', async () => {
  const style = { delimiter: ',', newline: '\n', bom: false, spreadsheet: true }
  const plain = [
    '-5',
    '-1.5e-7',
    '-1,50',
    '1e9',
    'user:42',
    'a-b',
    "O'Neill",
    'ä = b',
    'c++',
    '[1,-2]',
    'no, -5',
  ]
  for (const text of plain) assert.equal(parse(await written(['x'], [[text]], style))[1]?.[0], text)
  const guarded = {
    '=1+1': "'=1+1",
    "'=1": "''=1",
    '+49 170': "'+49 170",
    '- one\n- two': "'- one\n'- two",
    'x;=1': "x;'=1",
    '"=1"': '"\'=1"',
    '\ufeff\u00a0＝1': "'\ufeff\u00a0＝1",
    '\tx': "'\tx",
    '\r\n=1': "'\r\n'=1",
  }
  for (const [text, shown] of Object.entries(guarded))
    assert.equal(parse(await written(['x'], [[text]], style))[1]?.[0], shown)
})
