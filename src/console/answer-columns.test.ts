import assert from 'node:assert/strict'
import { test } from 'node:test'
import { base32 } from '../domain/ids.ts'
import { answerRow, schemaColumns } from './answer-columns.ts'
import { parseExact } from './json.ts'

const schema = { properties: { label: { type: 'string' }, tags: { type: 'array' } } }

test('columns are the properties of the schema that a request asks for', () => {
  const asking = (response_format: unknown) => ({ custom_id: 'a', body: { response_format } })
  assert.deepEqual(schemaColumns(asking({ type: 'json_schema', json_schema: { schema } })), ['label', 'tags'])
  const output_config = { format: { type: 'json_schema', schema } }
  assert.deepEqual(schemaColumns({ custom_id: 'a', body: { output_config } }), ['label', 'tags'])
  for (const input of [null, asking({ type: 'json_object' }), asking({ json_schema: { schema: {} } })])
    assert.equal(schemaColumns(input), null)
})

test('a row has the cells of its answer, or why there are none', () => {
  const result = (line: number, more: object) =>
    parseExact(JSON.stringify({ id: `req_${'0'.repeat(26)}${base32(line)}`, custom_id: 'a', ...more }))
  const answered = (content: string) => ({
    response: { status_code: 200, body: { choices: [{ message: { content }, finish_reason: 'length' }] } },
    error: null,
  })
  const columns = ['label', 'tags', 'missing']
  assert.deepEqual(answerRow(result(70_000, answered('{"label": "x", "tags": ["a", 1.0]}')), columns), {
    line: 70_000,
    custom_id: 'a',
    cells: ['x', '[ "a", 1.0 ]', ''],
    error: null,
  })
  const message = {
    type: 'message',
    content: [{ type: 'text', text: '{"label": "y"}' }],
    stop_reason: 'end_turn',
  }
  const ofMessage = answerRow(result(3, { response: { status_code: 200, body: message } }), columns)
  assert.deepEqual(ofMessage.cells, ['y', '', ''])
  assert.equal(answerRow(result(1, answered('{"label": ')), columns).error, 'not_json (length)')
  const failed = { response: null, error: { code: 'upstream_timeout', message: 'no answer' } }
  assert.equal(answerRow(result(2, failed), columns).error, 'upstream_timeout: no answer')
})
