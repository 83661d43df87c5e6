import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { AnswerScanner } from '../jsonl/answer-scan.ts'
import { ByteWriter } from './byte-writer.ts'
import { RESULT_BYTES_MAX, writeOutputLine } from './line-record.ts'

const USAGE = { prompt_tokens: 1, completion_tokens: 2, total_tokens: 3 }
const COUNTS = '"prompt_tokens":3.0,"completion_tokens":1e1,"x":1'
const CHOICES = '"choices":[{"message":{"role":"a"}}]'

/** The answer as its result line contains it. */
function spliced(answer: string, cost: string): string {
  const bytes = Buffer.from(answer)
  const completion = new AnswerScanner().scan(bytes, '/v1/chat/completions')
  assert.ok(completion, answer)
  const out = new ByteWriter()
  out.bytes = Buffer.alloc(2 * bytes.length + RESULT_BYTES_MAX)
  const named = { line: 1, custom_id_json: '"ä"', endpoint: '/v1/chat/completions' } as const
  const end = { cost_nanos: Number(cost) * 1e9, shared_from: null, missing: 0 }
  writeOutputLine(out, 'req_', named, bytes, completion.cost, USAGE, end)
  const line = out.bytes.toString('utf8', 0, out.at)
  const head =
    '{"id":"req_0000001","custom_id":"ä","response":{"status_code":200,"request_id":"req_0000001","body":'
  const tail = '},"error":null}\n'
  assert.ok(line.startsWith(head) && line.endsWith(tail), line)
  return line.slice(head.length, -tail.length)
}

test('the cost is inserted into the usage of the answer, and all other bytes stay', () => {
  const rest = `,"a":[1e2,9007199254740993,"\\ud800","ü"],"a":2,${CHOICES}}`
  assert.equal(
    spliced(`{"z":1.0,"usage":{${COUNTS}}${rest}`, '0.5'),
    `{"z":1.0,"usage":{${COUNTS},"cost_usd":0.5}${rest}`,
  )
})

test('a cost that the server reported is replaced', () => {
  assert.equal(
    spliced(`{${CHOICES},"usage":{"cost_usd" : 7 ,${COUNTS}}}`, '0.5'),
    `{${CHOICES},"usage":{"cost_usd" : 0.5 ,${COUNTS}}}`,
  )
})

test('an answer without valid usage gets the estimated usage', () => {
  const added = '"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3,"cost_usd":0.5}'
  assert.equal(spliced(`{${CHOICES}}`, '0.5'), `{${CHOICES},${added}}`)
  assert.equal(spliced(`{"usage": null,${CHOICES}}`, '0.5'), `{"usage": ${added.slice(8)},${CHOICES}}`)
  for (const usage of [
    '{ }',
    '{"cost_usd":7}',
    '{"prompt_tokens":-1,"completion_tokens":1}',
    '[1]',
    '"free"',
  ])
    assert.equal(spliced(`{${CHOICES},"usage":${usage}}`, '0.5'), `{${CHOICES},${added}}`)
})

test('a usage inside another object or a string is not changed', () => {
  const text = `{"choices":[{"message":{"usage":{"a":1}},"text":"\\"usage\\":{}\\\\"}],"usage":{${COUNTS}},"end":{"usage":{}}}`
  assert.equal(spliced(text, '1'), text.replace(`{${COUNTS}}`, `{${COUNTS},"cost_usd":1}`))
})

test('an answer with line breaks becomes one line', () => {
  const usage = { prompt_tokens: 1, completion_tokens: 2 }
  const answer = { id: 'x', choices: [{ message: { content: 'a\nb' } }], usage }
  for (const newline of ['\n', '\r\n']) {
    const text = spliced(JSON.stringify(answer, null, 2).replaceAll('\n', newline), '1')
    assert.doesNotMatch(text, /[\n\r]/)
    assert.deepEqual(JSON.parse(text), { ...answer, usage: { ...usage, cost_usd: 1 } })
  }
})

test('for any answer, the parsed result is the answer with the cost added', () => {
  const count = fc.oneof(fc.nat(), fc.jsonValue())
  const usage = fc.record(
    { prompt_tokens: count, completion_tokens: count, total_tokens: count, x: count },
    { requiredKeys: [] },
  )
  const answer = fc.dictionary(fc.oneof(fc.constant('usage'), fc.string()), fc.oneof(usage, fc.jsonValue()))
  fc.assert(
    fc.property(answer, fc.boolean(), fc.boolean(), (value, pretty, first) => {
      const choices = [{ message: { content: 'x' } }]
      const whole = first ? { choices, ...value, choices_: 0 } : { ...value, choices }
      const text = JSON.stringify(whole, null, pretty ? 1 : undefined)
      const expected: Record<string, unknown> = JSON.parse(text)
      if (JSON.stringify(expected.choices) !== JSON.stringify(choices)) return
      const own = expected.usage
      expected.usage = { ...(isUsage(own) ? own : USAGE), cost_usd: 0.25 }
      assert.deepEqual(JSON.parse(spliced(text, '0.25')), expected)
    }),
  )
})

function isUsage(value: unknown): value is object {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return false
  const isCount = (count: unknown): boolean =>
    typeof count === 'number' && Number.isInteger(count) && count >= 0 && count <= 100_000_000
  const { prompt_tokens, completion_tokens, total_tokens = null } = value as Record<string, unknown>
  return (
    isCount(prompt_tokens) && isCount(completion_tokens) && (total_tokens === null || isCount(total_tokens))
  )
}
