import assert from 'node:assert/strict'
import { test } from 'node:test'
import { brokenAt, parseExact, print, schemaProblems } from './json.ts'

test('numbers keep the digits that were sent', () => {
  const text = '{"big":9007199254740993,"float":1.0,"tiny":1e-400}'
  assert.equal(print(parseExact(text)).replaceAll(/\s/g, ''), text)
  assert.equal(parseExact('nonsense'), null)
})

test('the place where a text stops being JSON is found', () => {
  for (const [text, at] of [
    ['{"a": 1}', null],
    ['{"a": nope}', 6],
    ['{"a": 1,}', 8],
    ['[1 2]', 3],
    ['{"a": "\u0001"}', 6],
    ['{"a": 01}', 7],
    ['', 0],
    ['{"a": 1} x', 9],
  ] as const)
    assert.equal(brokenAt(text), at, text)
})

test('an answer is compared with its schema, each problem with its place', () => {
  const schema = {
    type: 'object',
    required: ['label', 'score'],
    additionalProperties: false,
    properties: {
      label: { enum: ['good', 'bad'] },
      score: { type: 'integer', minimum: 0, maximum: 5 },
      tags: { type: 'array', maxItems: 1, items: { type: 'string', maxLength: 2 } },
      note: { type: ['string', 'null'] },
    },
  }
  assert.deepEqual(schemaProblems(schema, { label: 'good', score: 5, tags: ['ab'], note: null }), [])
  assert.deepEqual(schemaProblems(schema, { label: 'fine', score: 5.5, tags: ['abc', 1], more: 1 }), [
    '$.label: not one of ["good","bad"]',
    '$.score: not of type integer',
    '$.tags: more than 1 items',
    '$.tags[0]: longer than 2',
    '$.tags[1]: not of type string',
    '$: "more" is not in the schema',
  ])
  assert.deepEqual(schemaProblems(schema, {}), ['$: "label" is missing', '$: "score" is missing'])
  assert.deepEqual(schemaProblems(schema, []), ['$: not of type object'])
})
