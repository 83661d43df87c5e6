import assert from 'node:assert/strict'
import { test } from 'node:test'
import { answerSchema, FIELDS_MAX } from './answer-cells.ts'
import { LINE_BYTES_MAX, parseResultRow } from './result-row.ts'

test('of a line that is too long for a table its IDs are read, and nothing else', () => {
  const head = '{"id":"req_1","custom_id":"a\\"b","response":{"status_code":200,"body":['
  const line = Buffer.from(`${head}${'[],'.repeat(LINE_BYTES_MAX / 3)}0]}}`)
  const message = 'the result takes 5 MiB, and a table shows up to 4: read it in the output file'
  const row = { id: 'req_1', custom_id: 'a"b', error: { code: 'too_large', message } }
  assert.deepEqual(parseResultRow(line), row)
  assert.deepEqual(parseResultRow(line.subarray(0, 200), line.length), row)
  assert.equal(parseResultRow(Buffer.from('{"id":"req_1"}')), null)
  assert.equal(parseResultRow(line.subarray(9), line.length), null)
})

test('a schema with more properties than a table has columns makes none', () => {
  const schema = (fields: number): object => ({
    properties: Object.fromEntries(Array.from({ length: fields }, (_, i) => [`p${i}`, {}])),
  })
  assert.equal(answerSchema(schema(FIELDS_MAX))?.fields.length, FIELDS_MAX)
  assert.equal(answerSchema(schema(FIELDS_MAX + 1)), null)
})
