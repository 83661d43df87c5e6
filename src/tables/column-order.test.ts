import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ColumnOrder } from './column-order.ts'

const COLUMNS = ['text', 'country', 'rules']
const ROWS = Array.from({ length: 300 }, (_, i) => [
  `review number ${i}`,
  ['Chile', 'Japan', 'Kenya'][i % 3]!,
  `the long rules of group ${i % 5}, `.repeat(3),
])

function adviceOn(template: string, rows: readonly string[][] = ROWS, before?: string) {
  const order = new ColumnOrder(template, COLUMNS, before)
  for (const row of rows) order.add((column) => row[column] ?? '')
  return order.advice()
}

test('the columns with few values should stand before the one with many, by how much they share', () => {
  const { columns, shared, as_written } = adviceOn('Classify {{text}} of {{country}} by {{ rules }}')!
  assert.equal(columns, '{{rules}} {{country}} {{text}}')
  assert.deepEqual(
    [shared, as_written].map((share) => Math.round(100 * share)),
    [85, 7],
  )
})

test('an order that shares most already, and a prompt whose columns cannot be moved, get no advice', () => {
  assert.equal(adviceOn('{{rules}} {{country}} {{text}}'), null)
  assert.equal(adviceOn('Classify {{text}}'), null)
  assert.equal(adviceOn('{{text}} {{#country}}{{rules}}{{/country}}'), null)
  assert.equal(adviceOn('{{text}} {{rules}} {{text}}'), null)
  assert.equal(adviceOn('{{text}} {{rules}}', []), null)
  assert.equal(adviceOn('{{text}} {{rules}}', ROWS, 'You know {{country}}.'), null)
  assert.equal(adviceOn('{{text}} {{rules}}', ROWS, 'What you know. '.repeat(100)), null)
})

test('a prompt is read in a time that grows with its text, and a name may have blanks around it', () => {
  const begun = performance.now()
  adviceOn(`{{${' '.repeat(2 ** 17)}`)
  assert.ok(performance.now() - begun < 5_000)
  assert.deepEqual(adviceOn('{{ text }} {{ country }}'), adviceOn('{{text}} {{country}}'))
})
