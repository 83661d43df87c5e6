import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { spliceCost } from './splice-cost.ts'

const USAGE = '{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}'

test('the cost is set into the usage that the answer has, and nothing else moves', () => {
  const text = '{"z":1.0,"usage":{"prompt_tokens":3},"a":[1e2,9007199254740993,"\\ud800"],"a":2}'
  assert.equal(
    spliceCost(text, '0.5', USAGE),
    '{"z":1.0,"usage":{"prompt_tokens":3,"cost_usd":0.5},"a":[1e2,9007199254740993,"\\ud800"],"a":2}',
  )
})

test('a cost that the server reported itself is replaced', () => {
  assert.equal(
    spliceCost('{"usage":{"cost_usd" : 7 ,"x":1}}', '0.5', USAGE),
    '{"usage":{"cost_usd" : 0.5 ,"x":1}}',
  )
})

test('an answer without usage, or with null, gets the one that was estimated', () => {
  const added = '"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3,"cost_usd":0.5}'
  assert.equal(spliceCost('{"a":1}', '0.5', USAGE), `{"a":1,${added}}`)
  assert.equal(spliceCost('{}', '0.5', USAGE), `{${added}}`)
  assert.equal(spliceCost('{"usage": null}', '0.5', USAGE), `{"usage": ${added.slice(8)}}`)
})

test('a usage inside another object, or inside a text, is left alone', () => {
  const text = '{"choices":[{"usage":{"a":1},"text":"\\"usage\\":{}\\\\"}],"usage":{},"end":{"usage":{}}}'
  assert.equal(
    spliceCost(text, '1', USAGE),
    '{"choices":[{"usage":{"a":1},"text":"\\"usage\\":{}\\\\"}],"usage":{"cost_usd":1},"end":{"usage":{}}}',
  )
})

test('an answer printed over many lines becomes one line', () => {
  const pretty = JSON.stringify({ id: 'x', usage: { a: 1 } }, null, 2)
  const spliced = spliceCost(pretty, '1', USAGE)
  assert.ok(!spliced.includes('\n'))
  assert.deepEqual(JSON.parse(spliced), { id: 'x', usage: { a: 1, cost_usd: 1 } })
})

test('for any answer, parsing gives the answer with the cost added', () => {
  const answer = fc.dictionary(fc.oneof(fc.constant('usage'), fc.string()), fc.jsonValue())
  fc.assert(
    fc.property(answer, fc.boolean(), (value, pretty) => {
      const text = JSON.stringify(value, null, pretty ? 1 : undefined)
      const expected: Record<string, unknown> = JSON.parse(text)
      const own = expected.usage
      const isObject = typeof own === 'object' && own !== null && !Array.isArray(own)
      expected.usage = isObject ? { ...own, cost_usd: 0.25 } : { ...JSON.parse(USAGE), cost_usd: 0.25 }
      assert.deepEqual(JSON.parse(spliceCost(text, '0.25', USAGE)), expected)
    }),
  )
})
