import assert from 'node:assert/strict'
import { test } from 'node:test'
import {
  answerColumns,
  answerSchema,
  EMBEDDING,
  FIELDS_MAX,
  formOfAnswers,
  LINE_BYTES_MAX,
  parseResultRow,
} from './answer-cells.ts'

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

test('columns are typed by references, choices with null, and enums, as Pydantic writes them', () => {
  const schema = {
    $defs: { Label: { enum: ['good', 'bad'], type: 'string' }, Ring: { $ref: '#/$defs/Ring' } },
    properties: {
      label: { $ref: '#/$defs/Label' },
      stars: { anyOf: [{ type: 'integer' }, { type: 'null' }] },
      price: { anyOf: [{ type: 'integer' }, { type: 'number' }] },
      one: { allOf: [{ $ref: '#/$defs/Label' }] },
      level: { enum: [1, 2, 3] },
      fixed: { const: true },
      tags: { type: 'array', items: { $ref: '#/$defs/Label' } },
      mixed: { anyOf: [{ type: 'string' }, { type: 'object' }] },
      ring: { $ref: '#/$defs/Ring' },
      gone: { $ref: '#/$defs/Gone' },
    },
  }
  const line = (asked: object) => Buffer.from(JSON.stringify({ body: asked }))
  const found = formOfAnswers('/v1/chat/completions', line({ response_format: { json_schema: { schema } } }))
  assert.deepEqual(
    found?.fields.map(({ type, nullable }) => [type, nullable]),
    [
      ['string', false],
      ['integer', true],
      ['number', false],
      ['string', false],
      ['integer', false],
      ['boolean', false],
      [{ items: 'string' }, false],
      ['json', true],
      ['json', true],
      ['json', true],
    ],
  )
  assert.equal(formOfAnswers('/v1/chat/completions', line({})), undefined)
})

test('the answers to a request for one embedding are vectors, and those for several are one cell', () => {
  const form = (body: object | null) =>
    formOfAnswers('/v1/embeddings', body && Buffer.from(JSON.stringify({ body })))
  for (const input of ['a', ['a'], [1, 2]]) assert.equal(form({ input }), EMBEDDING)
  for (const input of [
    ['a', 'b'],
    [[1], [2]],
  ])
    assert.equal(form({ input }), undefined)
  assert.equal(form(null), EMBEDDING)
})

test('the cell of an embedding is its vector, and several vectors are none', async () => {
  const vector = (embedding: unknown) => ({ index: 0, embedding })
  const cells = async (...data: object[]): Promise<unknown> => {
    const response = { status_code: 200, body: { object: 'list', data } }
    return (await answerColumns(EMBEDDING, '').cells([{ id: 'r', custom_id: 'a', response }]))[0]
  }
  assert.deepEqual(await cells(vector([0.5, -1])), [[0.5, -1], null])
  assert.deepEqual(await cells(vector(Buffer.from([0, 0, 0, 63]).toString('base64'))), [[0.5], null])
  assert.deepEqual(await cells(vector([1]), vector([2])), [null, 'no_vector: the answer has not one vector'])
})

test('the cells of a message are its text, or why it has none', async () => {
  const row = (content: object[], stop_reason: string) => ({
    ...{ id: 'r', custom_id: 'a', error: null },
    response: { status_code: 200, body: { type: 'message', content, stop_reason } },
  })
  const schema = answerSchema({ properties: { n: { type: 'integer' } } }) ?? undefined
  const cells = (on: typeof schema, ...of: Parameters<typeof row>) =>
    answerColumns(on, '').cells([row(...of)])
  const said = [
    { type: 'thinking', thinking: 'hm' },
    { type: 'text', text: '{"n": ' },
  ]
  assert.deepEqual(await cells(undefined, said, 'end_turn'), [['{"n": ', null]])
  assert.deepEqual(await cells(schema, [...said, { type: 'text', text: '1}' }], 'end_turn'), [[1, null]])
  assert.match(
    String((await cells(schema, said, 'max_tokens'))[0]?.[1]),
    /^not_json: .* cut off: set a higher max_tokens/,
  )
  assert.deepEqual(await cells(undefined, [{ type: 'tool_use' }], 'tool_use'), [
    [null, 'no_text: the answer has no text (finish_reason tool_use)'],
  ])
})

test('an answer that nests too deeply to be printed has an error, and other rows their cells', async () => {
  const row = (content: string) => ({
    ...{ id: 'r', custom_id: 'a', error: null },
    response: { status_code: 200, body: { choices: [{ message: { content } }] } },
  })
  const columns = answerColumns(answerSchema({ properties: { a: {} } }) ?? undefined, '')
  const nested = (levels: number) => `{"a":${'['.repeat(levels)}${']'.repeat(levels)}}`
  assert.deepEqual(await columns.cells([row(nested(50_000)), row(nested(100)), row(nested(1))]), [
    [null, 'not_json: the answer nests deeper than 100 levels'],
    [null, 'not_json: the answer nests deeper than 100 levels'],
    [[], null],
  ])
})
