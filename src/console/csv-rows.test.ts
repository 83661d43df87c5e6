import assert from 'node:assert/strict'
import { test } from 'node:test'
import { fillPrompt, readTable, unknownColumns } from './csv-rows.ts'

test('quotes, line ends, a byte-order mark and tabs are read', () => {
  assert.deepEqual(readTable('\ufeffa,b\r\n"x, ""y""\nz",2\r\n\r\n3,\n'), {
    columns: ['a', 'b'],
    rows: [
      ['x, "y"\nz', '2'],
      ['3', ''],
    ],
  })
  assert.deepEqual(readTable('a\tb\n1,5\t2'), { columns: ['a', 'b'], rows: [['1,5', '2']] })
  assert.deepEqual(readTable('a,b\r1,"2\r"\n'), { columns: ['a', 'b'], rows: [['1', '2\r']] })
  assert.deepEqual(readTable(''), { columns: [], rows: [] })
})

test('a prompt is filled with the cells, and names what is no column', () => {
  const table = readTable('name,home town\nAda,London')
  assert.equal(
    fillPrompt('{{name}} of {{ home town }}, {{age}}', table, table.rows[0] ?? []),
    'Ada of London, {{age}}',
  )
  assert.deepEqual(unknownColumns('{{name}} {{age}}', table), ['age'])
})
