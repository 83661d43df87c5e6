import assert from 'node:assert/strict'
import { test } from 'node:test'
import { repairMessages, schemaAsked, withMessages, withOtherSeed } from './ask-again.ts'

const bytes = (text: string): Buffer => Buffer.from(text)

test('another seed changes no other byte', () => {
  assert.equal(String(withOtherSeed(bytes('{ "a":1.0}'), 2)), '{"seed":2, "a":1.0}')
  assert.equal(String(withOtherSeed(bytes('{"a":[1], "seed" : 7 }'), 2)), '{"a":[1], "seed" : 9 }')
  assert.equal(String(withOtherSeed(bytes('{"seed":null,"a":1}'), 1)), '{"seed":1,"a":1}')
  assert.equal(String(withOtherSeed(bytes('{"seed":2147483647}'), 1)), '{"seed":1}')
  assert.equal(String(withOtherSeed(bytes('{"se\\u0065d":5}'), 1)), '{"se\\u0065d":6}')
})

test('messages come behind those that there are', () => {
  const body = bytes('{"messages": [ {"role":"user","content":"é ]"} ] ,"model":"m"}')
  const more = repairMessages('{"a":"\\n"}', 'No.')
  assert.equal(
    String(withMessages(body, more)),
    `{"messages": [ {"role":"user","content":"é ]"} ${more}] ,"model":"m"}`,
  )
  assert.deepEqual(JSON.parse(String(withMessages(body, more))).messages[1], {
    role: 'assistant',
    content: '{"a":"\\n"}',
  })
})

test('a schema is that of `response_format`', () => {
  const schema = { type: 'object', required: ['a'] }
  const format = { type: 'json_schema', json_schema: { name: 's', schema } }
  assert.deepEqual(schemaAsked(bytes(JSON.stringify({ response_format: format }))), schema)
  for (const other of [{}, { response_format: { type: 'json_object' } }, { response_format: null }])
    assert.equal(schemaAsked(bytes(JSON.stringify(other))), null)
})
