import assert from 'node:assert/strict'
import { test } from 'node:test'
import { boundedFault } from './bounded-fault.ts'

const object = (properties: object, more: object = {}): object => ({ type: 'object', properties, ...more })

test('nested fields, bounds, enums and patterns are checked', () => {
  const schema = object({
    label: { enum: ['a', 'b'] },
    why: object({ score: { type: 'number', maximum: 10 } }, { required: ['score'] }),
    code: { type: 'string', pattern: '^[A-Z]{3}$' },
  })
  const fault = boundedFault(schema)
  assert.equal(fault?.({ label: 'a', why: { score: 3 }, code: 'ABC' }), null)
  assert.match(fault?.({ label: 'c', why: { score: 3 }, code: 'ABC' }) ?? '', /label .*\["a","b"\]/)
  assert.match(fault?.({ label: 'a', why: { score: 11 }, code: 'ABC' }) ?? '', /why\.score/)
  assert.match(fault?.({ label: 'a', why: {}, code: 'ABC' }) ?? '', /score/)
  assert.match(fault?.({ label: 'a', why: { score: 3 }, code: 'abc' }) ?? '', /code .*pattern/)
  const other = boundedFault({
    $defs: { why: object({ score: { type: 'number' } }) },
    ...object({ why: { $ref: '#/$defs/why' } }),
  })
  assert.equal(other?.({ why: { score: 1 } }), null)
  assert.match(other?.({ why: { score: 'high' } }) ?? '', /why\.score/)
})

test('a check that takes too long is ended, and after a few of them there are no more', () => {
  const slow = { name: `${'a'.repeat(60)}b` }
  const pattern = boundedFault(object({ name: { type: 'string', pattern: '^(a+)+$' } }))
  assert.match(pattern?.(slow) ?? '', /could not be checked by the schema within 200 ms/)
  assert.equal(pattern?.({ name: 'aa' }), null)
  const doubled = Object.fromEntries(
    Array.from({ length: 40 }, (_, i) => [
      `d${i}`,
      { anyOf: [{ $ref: `#/$defs/d${i + 1}` }, { $ref: `#/$defs/d${i + 1}` }] },
    ]),
  )
  const references = boundedFault({
    $defs: { ...doubled, d40: { type: 'number' } },
    ...object({ name: { $ref: '#/$defs/d0' } }),
  })
  for (let i = 0; i < 5; i++) assert.match(references?.(slow) ?? 'could not', /could not/)
  assert.equal(references?.(slow) ?? null, null)
})

test('what is no schema, or is too large, checks nothing', () => {
  assert.equal(boundedFault(object({ name: { pattern: '(' } })), undefined)
  assert.equal(boundedFault(object({ name: { description: 'x'.repeat(300_000) } })), undefined)
})
