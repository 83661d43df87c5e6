import assert from 'node:assert/strict'
import { test } from 'node:test'
import { INLINE_LINES_MAX, takeBody, takeInlineLines } from './inline-lines.ts'

const CHAT = '/v1/chat/completions'

async function taken(json: string): Promise<{ rest: string; content: string | null; sha256?: string }> {
  const { rest, lines } = await takeInlineLines(Buffer.from(json))
  let content: string | null = lines && ''
  if (lines) for await (const piece of lines.content(CHAT)) content += piece.toString()
  return { rest: rest.toString(), content, ...(lines && { sha256: lines.sha256 }) }
}

test('requests become lines byte for byte, and an empty array stands in their place', async () => {
  const whole = (id: string, body: string): string =>
    `{ "custom_id":"${id}", "body":${body},"method":"POST","url":"${CHAT}" }`
  // Neither the order of keys, nor numbers, nor escapes survive a parser.
  const first = whole('a', '{"b":1.0, "a":1e400,"c":"\\u00e9\\/é","b":12345678901234567890}')
  const second = whole('b', '{}')
  const { rest, content } = await taken(
    `{"endpoint": "x",\n "requests" : [ ${first} ,${second}], "m":{"requests":[1]}}`,
  )
  assert.equal(content, `${first}\n${second}\n`)
  assert.equal(rest, '{"endpoint": "x",\n "requests" : [], "m":{"requests":[1]}}')
})

test('a line break within a request becomes a blank', async () => {
  const pretty = '{\n  "custom_id": "a\\n",\r\n  "method": "POST", "url": "u",\n\n  "body": {}\n}'
  const { content } = await taken(`{"requests":[\n${pretty}\n,\n${pretty}\n]}`)
  const line = '{   "custom_id": "a\\n",\r   "method": "POST", "url": "u",    "body": {} }'
  assert.equal(content, `${line}\n${line}\n`)
})

test('what a request leaves out is filled in; what it has stays as it is', async () => {
  const { content } = await taken(
    '{"requests":[{"body":{"custom_id":"inner"}},{},{"url":"/v1/embeddings","custom_id":null},7,{"\\u0075rl":"x","method":"GET"}]}',
  )
  assert.deepEqual(content?.trimEnd().split('\n'), [
    `{"custom_id":"request-1","method":"POST","url":"${CHAT}","body":{"custom_id":"inner"}}`,
    `{"custom_id":"request-2","method":"POST","url":"${CHAT}"}`,
    '{"method":"POST","url":"/v1/embeddings","custom_id":null}',
    '7',
    '{"custom_id":"request-5","\\u0075rl":"x","method":"GET"}',
  ])
})

test('many requests are read in pieces, each in its place', async () => {
  const bodies = Array.from(
    { length: INLINE_LINES_MAX },
    (_, i) => `{"body":{"i":${i},"t":"${'x'.repeat(200)}"}}`,
  )
  const { content } = await taken(`{"requests":[${bodies.join(',')}]}`)
  const lines = (content ?? '')
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line))
  assert.equal(lines.length, INLINE_LINES_MAX)
  assert.ok(lines.every(({ custom_id, body }, i) => custom_id === `request-${i + 1}` && body.i === i))
  const message = /must hold 1 to 10000 requests/
  await assert.rejects(taken(`{"requests":[${bodies.join(',')},{}]}`), message)
  await assert.rejects(taken('{"requests":[]}'), message)
})

test('JSON without such an array is left to others', async () => {
  for (const json of [
    '',
    '[]',
    '7',
    '{}',
    '{"input_file_id":"f"}',
    '{"requests":null}',
    '{"requests":{"a":[]}}',
    '{"x":{"requests":[1]}}',
  ])
    assert.deepEqual(await taken(json), { rest: json, content: null })
})

test('JSON that is broken, or too deep, is an error', async () => {
  for (const json of [
    '{"requests":[',
    '{"requests":[{}',
    '{"requests":[{}]',
    '{"requests":[{},]}',
    '{"requests":[{"a":tru}]}',
    '{"requests":[{}]}}',
  ])
    await assert.rejects(taken(json), { code: 'invalid_json' }, json)
  const deep = `{"requests":[{"body":${'['.repeat(200)}${']'.repeat(200)}}]}`
  await assert.rejects(taken(deep), /deeper than 100 levels/)
})

test('the hash tells requests apart', async () => {
  const hashes = await Promise.all(
    ['[{"a":1}]', '[{"a":1} ]', '[{"a":2}]'].map((array) => taken(`{"requests":${array}}`)),
  )
  assert.equal(new Set(hashes.map(({ sha256 }) => sha256)).size, 3)
  const again = await taken('{"x":1,"requests":[{"a":1}]}')
  assert.equal(again.sha256, hashes[0]?.sha256)
})

test('a body that is not valid UTF-8 is rejected', async () => {
  const bytes = Buffer.from('{"endpoint":"/v1/embeddings","body":{"input":"\u00e9"}}', 'latin1')
  await assert.rejects(takeBody(bytes, 'body'), { code: 'invalid_json', details: { param: 'body' } })
  const whole = Buffer.from('{"input":"\u00e9"}', 'latin1')
  await assert.rejects(takeBody(whole, 'whole'), { code: 'invalid_json', details: { param: 'input' } })
})
