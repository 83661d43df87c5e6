import assert from 'node:assert/strict'
import test from 'node:test'
import { sendTo } from '../../../test/fakes/scripted-backend.ts'
import { simBackend } from './sim-backend.ts'

const TOLD_BYTES_MAX = 4 * 1024 * 1024

const string = { type: 'string', minLength: 100_000 }
const names = Array.from({ length: 20_000 }, (_, i) => `p${i}`)
const every = (schema: unknown): Record<string, unknown> =>
  Object.fromEntries(names.map((name) => [name, schema]))
const list = (items: unknown): object => ({ type: 'array', minItems: 1000, items })
const forty = Array.from({ length: 40 }, (_, i) => `s${i}`)

const hostile: Record<string, unknown> = {
  'many long strings': {
    type: 'object',
    required: forty,
    properties: Object.fromEntries(forty.map((name) => [name, string])),
  },
  'lists of lists of long strings': list(list(string)),
  'a long constant': list({ const: 'x'.repeat(100_000) }),
  'long choices': list({ enum: ['x'.repeat(50_000), 'y'.repeat(50_000)] }),
  'many properties, all required': {
    type: 'object',
    required: names,
    properties: every({ type: 'integer' }),
  },
  'many properties, merged again and again': list({
    allOf: Array.from({ length: 12 }, () => ({ properties: every(true), required: names, enum: names })),
  }),
  'references to references': {
    $defs: Object.fromEntries(
      Array.from({ length: 12 }, (_, i) => [
        `d${i}`,
        { allOf: [{ $ref: `#/$defs/d${i + 1}` }, { $ref: `#/$defs/d${i + 1}` }] },
      ]),
    ),
    $ref: '#/$defs/d0',
  },
  'a long reference': list({ $ref: `#${'/a'.repeat(200_000)}` }),
  'many options that lead nowhere': list({ anyOf: names.map(() => false) }),
  'many types': list({ type: names }),
  'long keys': { type: 'object', required: forty.map((name) => name.padEnd(100_000, 'k')) },
}

for (const [name, schema] of Object.entries(hostile)) {
  test(`a schema with ${name} takes no more than another, whatever n is`, async () => {
    const backend = simBackend({ name: 'sim' })
    const messages = [{ role: 'user', content: 'x' }]
    const format = { type: 'json_schema', json_schema: { name: 's', schema } }
    const tools = [{ type: 'function', function: { name: 'f', parameters: schema } }]
    for (const asked of [
      { n: 1, response_format: format },
      { n: 90, response_format: format },
      { n: 128, tools },
    ]) {
      const body = Buffer.from(JSON.stringify({ model: 'sim-1', messages, ...asked }))
      const result = await sendTo(backend, { endpoint: '/v1/chat/completions', project_id: 'p', body })
      if (result.kind === 'answered') assert.ok(result.body.length < TOLD_BYTES_MAX)
      else {
        assert.ok(result.kind === 'refused', JSON.stringify(result))
        assert.match(result.message, /more than the simulator makes.*`n`|no value that fits/)
      }
    }
  })
}

test('many choices share what one could have', async () => {
  const backend = simBackend({ name: 'sim', output_tokens: 8192 })
  const ask = (n: number) =>
    sendTo(backend, {
      endpoint: '/v1/chat/completions',
      project_id: 'p',
      body: Buffer.from(JSON.stringify({ model: 'm', n, messages: [{ role: 'user', content: 'x' }] })),
    })
  assert.equal((await ask(10)).kind, 'answered')
  const result = await ask(128)
  assert.match(result.kind === 'refused' ? result.message : '', /longer than 1048576 bytes/)
})
