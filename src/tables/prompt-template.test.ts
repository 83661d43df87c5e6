import assert from 'node:assert/strict'
import { test } from 'node:test'
import { columnIndex, compileTemplate, refuseSame } from './prompt-template.ts'
import type { Cell, Column } from './table.ts'

const columns = (...names: string[]): Column[] => names.map((name) => ({ name, type: 'string' }))

function rendered(text: string, row: Record<string, Cell>): string {
  return compileTemplate(text, columns(...Object.keys(row)), '--prompt', 'x.csv')(Object.values(row))
}

test('a cell is put in as it is, whatever it contains', () => {
  assert.equal(
    rendered('{{a}}|{{{a}}}|{{&a}}', { a: '<b> & "{{a}}"' }),
    '<b> & "{{a}}"|<b> & "{{a}}"|<b> & "{{a}}"',
  )
})

test('a missing value is no text; false, zero and big integers are text', () => {
  const row = { none: null, absent: undefined, no: false, zero: 0, big: 2n ** 63n }
  assert.equal(rendered('{{none}}{{absent}},{{no}},{{zero}},{{big}}', row), ',false,0,9223372036854775808')
})

test('any column name works, with spaces, dots and the names of built-in properties', () => {
  const row = { 'Review Text': 'good', 'a.b': 'dots', constructor: 'c', toString: 't', __proto__x: 'p' }
  assert.equal(
    rendered('{{Review Text}} {{ a.b }} {{constructor}} {{toString}} {{__proto__x}}', row),
    'good dots c t p',
  )
})

test('fields of objects are reached by their path, and objects are JSON', () => {
  const row = { address: { city: 'Oslo', geo: [59, 10] }, tags: ['x', 'y'] }
  assert.equal(rendered('{{address.city}} {{address}}', row), 'Oslo {"city":"Oslo","geo":[59,10]}')
  assert.equal(rendered('{{#tags}}-{{.}}{{/tags}} {{{address.geo}}}', row), '-x-y [59,10]')
})

test('sections are for values that are there, and see fields and columns', () => {
  const text =
    '{{#note}}Note: {{note}}{{/note}}{{^note}}None{{/note}}{{#who}} by {{name}} of {{team}}{{/who}}'
  assert.equal(rendered(text, { note: 'n', who: { name: 'Ada' }, team: 'T' }), 'Note: n by Ada of T')
  assert.equal(rendered(text, { note: '', who: null, team: 'T' }), 'None')
})

test('a name that is not a column is an error with the names that are', () => {
  assert.throws(() => rendered('{{txt}}', { id: 1, text: 'a' }), {
    message: '--prompt names the column "txt", which x.csv does not have; its columns are id, text',
  })
  assert.throws(() => rendered('{{txt.a}}', { id: 1 }), /names the column "txt\.a"/)
  assert.throws(() => rendered('{{.}}', { id: 1 }), /names the column "\."/)
  assert.throws(() => columnIndex('pic', columns('a'), '--image', 'x.csv'), /--image names the column "pic"/)
  const many = Object.fromEntries(Array.from({ length: 40 }, (_, i) => [`c${i}`, i]))
  assert.throws(() => rendered('{{x}}', many), /c28, c29 and 10 more$/)
})

test('blanks around the name of a column do not count, unless another column has them', () => {
  assert.equal(rendered('{{stars}} {{ stars }}', { ' stars ': 5 }), '5 5')
  assert.equal(rendered('{{a}}{{#b}}{{b.c}}{{/b}}', { 'a ': 1, a: 2, ' b': { c: 3 } }), '23')
  assert.equal(columnIndex('pic', columns('a', 'pic '), '--image', 'x.csv'), 1)
  assert.throws(() => rendered('{{x}}', { ' stars ': 5, '': 1 }), /its columns are " stars ", ""$/)
})

test('a prompt that names no column is an error, also where it has one in a single pair of braces', () => {
  const of = (text: string): void => {
    const all = columns('id', ' text')
    refuseSame([compileTemplate(text, all, '--prompt', 'x.csv')], text, all, '--prompt', 'x.csv')
  }
  assert.throws(
    () => of('Classify: {text}'),
    /--prompt names no column, .* with two braces: \{\{text\}\}\. The columns of x\.csv are id, " text"$/,
  )
  assert.throws(() => of('Classify'), /for example \{\{id\}\}/)
  of('{{text}}')
})

test('a template that is not closed or includes another is refused', () => {
  assert.throws(() => rendered('{{a', { a: 1 }), /--prompt is not a valid template \(Unclosed tag/)
  assert.throws(() => rendered('{{/a}}', { a: 1 }), /Unopened section "a"/)
  assert.throws(() => rendered('{{> other}}', { a: 1 }), /includes another template/)
})
