import assert from 'node:assert/strict'
import test from 'node:test'
import { Check } from 'typebox/schema'
import { schemaInstance } from './schema-instance.ts'
import { randomOf } from './seeded-random.ts'

const person = {
  type: 'object',
  properties: {
    name: { type: 'string', minLength: 3, maxLength: 40 },
    age: { type: 'integer', minimum: 18, maximum: 19 },
    email: { type: ['string', 'null'] },
    role: { enum: ['admin', 'guest', 7, null] },
    kind: { const: 'person' },
  },
  required: ['name', 'age', 'email', 'role', 'kind'],
  additionalProperties: false,
}

const valid: Record<string, unknown> = {
  'an object with every field required': person,
  'nested arrays': {
    type: 'array',
    minItems: 2,
    maxItems: 3,
    items: {
      type: 'array',
      minItems: 1,
      items: { type: 'number', exclusiveMinimum: 0, exclusiveMaximum: 1 },
    },
  },
  'an array that may hold nothing': { type: 'array', maxItems: 0, items: { type: 'string' } },
  'a tuple': {
    type: 'array',
    prefixItems: [{ type: 'string' }, { type: 'boolean' }],
    minItems: 2,
    items: false,
  },
  'definitions by reference': {
    type: 'object',
    properties: { who: { $ref: '#/$defs/person' }, odd: { $ref: '#/$defs/a~1b c' } },
    required: ['who', 'odd'],
    $defs: { person, 'a/b c': { type: 'integer', multipleOf: 7, minimum: 50 } },
  },
  'a tree that calls itself through an array': {
    type: 'object',
    properties: { label: { type: 'string' }, children: { type: 'array', items: { $ref: '#' } } },
    required: ['label', 'children'],
    additionalProperties: false,
  },
  'a list that calls itself through anyOf': {
    $ref: '#/$defs/node',
    $defs: {
      node: {
        type: 'object',
        properties: {
          value: { type: 'number' },
          next: { anyOf: [{ $ref: '#/$defs/node' }, { type: 'null' }] },
        },
        required: ['value', 'next'],
        additionalProperties: false,
      },
    },
  },
  'an expression with many ways to go on forever': {
    $ref: '#/$defs/expr',
    $defs: {
      expr: {
        anyOf: [
          {
            type: 'object',
            properties: { left: { $ref: '#/$defs/expr' }, right: { $ref: '#/$defs/expr' } },
            required: ['left', 'right'],
          },
          { type: 'object', properties: { not: { $ref: '#/$defs/expr' } }, required: ['not'] },
          { type: 'integer' },
        ],
      },
    },
  },
  'anyOf beside properties': {
    type: 'object',
    properties: { a: { type: 'string' }, b: { type: 'integer' } },
    anyOf: [{ required: ['a'] }, { required: ['b'] }],
  },
  'oneOf that is told apart by a constant': {
    oneOf: [
      { type: 'object', properties: { t: { const: 'x' }, x: { type: 'number' } }, required: ['t', 'x'] },
      { type: 'object', properties: { t: { const: 'y' } }, required: ['t'] },
    ],
  },
  'allOf that narrows': {
    allOf: [
      { type: 'object', properties: { n: { type: 'number', minimum: 5 } }, required: ['n'] },
      { properties: { n: { type: 'integer', maximum: 6 }, m: { type: 'boolean' } }, required: ['m'] },
    ],
  },
  'bounds that come twice': {
    allOf: [
      { type: 'integer', minimum: 5, maximum: 100 },
      { minimum: 2, maximum: 6 },
    ],
  },
  'numbers in every corner': {
    type: 'object',
    properties: {
      a: { type: 'integer', exclusiveMinimum: 4, exclusiveMaximum: 6 },
      b: { type: 'number', minimum: -2.5, maximum: -2.4 },
      c: { type: 'integer', maximum: -1000 },
      d: { type: 'number', multipleOf: 0.25, minimum: 1.1, maximum: 1.3 },
      e: { type: 'number', minimum: 3, maximum: 3 },
      f: { type: 'integer', multipleOf: 1000, minimum: 1, maximum: 1000 },
    },
    required: ['a', 'b', 'c', 'd', 'e', 'f'],
  },
  'long strings': { type: 'string', minLength: 300, maxLength: 300 },
  'the empty string': { type: 'string', maxLength: 0 },
  formats: {
    type: 'array',
    prefixItems: [
      'date-time',
      'date',
      'time',
      'duration',
      'email',
      'hostname',
      'ipv4',
      'ipv6',
      'uri',
      'uuid',
    ].map((format) => ({ type: 'string', format })),
    minItems: 10,
  },
  'a format that nobody knows': { type: 'string', format: 'constructor' },
  'fields that are required but not described': { type: 'object', required: ['x', '__proto__'] },
  'no type at all': { properties: { x: {} }, required: ['x'] },
  'the schema true': true,
  'the schema {}': {},
}

for (const [title, schema] of Object.entries(valid)) {
  test(`an instance is made of ${title}`, () => {
    assert.ok(typeof schema === 'boolean' || (typeof schema === 'object' && schema !== null))
    for (let i = 0; i < 60; i++) {
      const made = schemaInstance(schema, randomOf(Buffer.from(`${title} ${i}`)))
      assert.notEqual(made, undefined)
      // Printed and parsed, as an answer is.
      const instance: unknown = JSON.parse(JSON.stringify(made))
      assert.ok(Check(schema, instance), `${i}: ${JSON.stringify(instance)}`)
    }
  })
}

const impossible: Record<string, unknown> = {
  'an empty range': { type: 'integer', minimum: 5, maximum: 4 },
  'the schema false': false,
  'an enum of nothing': { enum: [] },
  'a reference into nothing': { $ref: '#/$defs/missing' },
  'a reference to itself': { $ref: '#' },
  'a reference elsewhere': { $ref: 'https://example.com/schema.json' },
  'an object that must contain itself': {
    type: 'object',
    properties: { self: { $ref: '#' } },
    required: ['self'],
  },
  'a million items': { type: 'array', minItems: 1_000_000, items: {} },
  'what doubles at every level': { allOf: [{ $ref: '#' }, { $ref: '#' }, { $ref: '#' }] },
}

for (const [title, schema] of Object.entries(impossible)) {
  test(`nothing is made of ${title}, and that soon`, () => {
    assert.equal(schemaInstance(schema, randomOf(Buffer.from(title))), undefined)
  })
}

test('the same request gets the same instance, another request another', () => {
  const schema = { type: 'object', properties: { id: { type: 'string', format: 'uuid' } }, required: ['id'] }
  const of = (text: string) => JSON.stringify(schemaInstance(schema, randomOf(Buffer.from(text))))
  assert.equal(of('a'), of('a'))
  assert.notEqual(of('a'), of('b'))
})
