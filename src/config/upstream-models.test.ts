import assert from 'node:assert/strict'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import test from 'node:test'
import type { Config } from './config.ts'
import { loadConfig } from './load.ts'
import {
  type Listings,
  listingUpstreams,
  SERVED_MODELS_MAX,
  type ServedModel,
  upstreamModels,
  withServedModels,
} from './upstream-models.ts'

function config(models: string): Config {
  const folder = mkdtempSync(join(tmpdir(), 'offpeak-served-'))
  const file = join(folder, 'offpeak.yaml')
  writeFileSync(file, `models:\n${models}`)
  try {
    return loadConfig({ file, env: {} })
  } finally {
    rmSync(folder, { recursive: true })
  }
}

function served(id: string, facts: Partial<ServedModel> = {}): ServedModel {
  return { id, endpoints: null, context_window: null, parent: null, root: null, ...facts }
}

const A = 'http://a:8000/v1'
const B = 'http://b:8000/v1'
const ONE = `  - {id: m, upstreams: [{type: openai, base_url: "${A}", model: base}]}`
const TWO = `  - {id: m, upstreams: [{type: openai, base_url: "${A}"}, {type: openai, base_url: "${B}"}]}`

function facts(models: string, listings: Listings): [id: string, window: number | null, endpoints: string][] {
  return withServedModels(config(models), listings).models.map(({ model }) => [
    model.id,
    model.context_window,
    model.endpoints.join(' '),
  ])
}

test('a window and endpoints come from the server where the configuration is silent', () => {
  const listing = new Map([
    [A, [served('base', { context_window: 4096, endpoints: ['/v1/embeddings'] }), served('other')]],
  ])
  assert.deepEqual(facts(ONE, listing), [['m', 4096, '/v1/embeddings']])
  const spoken = ONE.replace('id: m,', 'id: m, context_window: 100, endpoints: [/v1/completions],')
  assert.deepEqual(facts(spoken, listing), [['m', 100, '/v1/completions']])
  assert.deepEqual(facts(ONE, new Map()), [['m', null, '/v1/chat/completions']])
})

test('a server that lists one model alone is taken at its word, whatever it calls the model', () => {
  const listing = new Map([[A, [served('/models/qwen.gguf', { context_window: 8192 })]]])
  assert.deepEqual(facts(ONE, listing)[0]?.[1], 8192)
})

test('of several servers the largest window counts, and none if one of them is silent', () => {
  const a = [served('m', { context_window: 4096 })]
  const b = [served('m', { context_window: 8192 })]
  assert.equal(
    facts(
      TWO,
      new Map([
        [A, a],
        [B, b],
      ]),
    )[0]?.[1],
    8192,
  )
  assert.equal(facts(TWO, new Map([[A, a]]))[0]?.[1], null)
  assert.equal(
    facts(
      TWO,
      new Map([
        [A, a],
        [B, [served('m')]],
      ]),
    )[0]?.[1],
    null,
  )
})

test('endpoints are those that all servers offer that name any', () => {
  const a = [served('m', { endpoints: ['/v1/chat/completions', '/v1/completions'] })]
  const b = [served('m', { endpoints: ['/v1/completions'] })]
  assert.equal(
    facts(
      TWO,
      new Map([
        [A, a],
        [B, b],
      ]),
    )[0]?.[2],
    '/v1/completions',
  )
  assert.equal(
    facts(
      TWO,
      new Map([
        [A, a],
        [B, [served('m')]],
      ]),
    )[0]?.[2],
    '/v1/chat/completions /v1/completions',
  )
})

test('adapters of a configured model become models with its terms and the servers that have them', () => {
  const lora = served('sql-lora', { parent: 'm', root: '/loras/sql' })
  const listing = new Map([
    [
      A,
      [
        served('m', { context_window: 4096 }),
        lora,
        served('other'),
        served('other-lora', { parent: 'other' }),
      ],
    ],
    [B, [served('m', { context_window: 4096 })]],
  ])
  const priced = TWO.replace('id: m,', 'id: m, price: {input_per_mtok: 1, output_per_mtok: 2},')
  const { models } = withServedModels(config(priced), listing)
  assert.deepEqual(
    models.map(({ model, upstreams }) => [
      model.id,
      model.context_window,
      model.price.output_picos,
      upstreams.map((one) => one.type === 'openai' && [one.base_url, one.model]),
    ]),
    [
      [
        'm',
        4096,
        2_000_000,
        [
          [A, 'm'],
          [B, 'm'],
        ],
      ],
      ['sql-lora', 4096, 2_000_000, [[A, 'sql-lora']]],
    ],
  )
})

test('an adapter of another name of the model is one of the model, and configured models are left alone', () => {
  const listing = new Map([
    [
      A,
      [
        served('first', { root: 'weights' }),
        served('base', { root: 'weights' }),
        served('lora', { parent: 'first' }),
        served('m', { parent: 'first' }),
      ],
    ],
  ])
  assert.deepEqual(
    facts(ONE, listing).map(([id]) => id),
    ['m', 'lora'],
  )
})

test('higher tiers and servers that are started on demand are not asked', () => {
  const models = `
  - id: m
    upstreams:
      - {type: openai, base_url: "${A}"}
      - {type: openai, base_url: "${B}", tier: 1}
  - id: n
    upstreams: [{type: openai, engine: {command: [server, "{port}"]}}]
  - id: s
    upstreams: [{type: sim}]
`
  assert.deepEqual([...listingUpstreams(config(models)).keys()], [A])
})

const MANY = 100_000
const LISTS: [what: string, list: ServedModel[]][] = [
  ['unknown parents', Array.from({ length: MANY }, (_, i) => served(`a${i}`, { parent: `gone${i}` }))],
  ['one unknown parent', Array.from({ length: MANY }, (_, i) => served(`a${i}`, { parent: 'gone' }))],
  ['a chain', Array.from({ length: MANY }, (_, i) => served(`a${i}`, { parent: `a${i + 1}` }))],
  ['a ring', Array.from({ length: MANY }, (_, i) => served(`a${i}`, { parent: `a${(i + 1) % MANY}` }))],
  [
    'one root',
    Array.from({ length: MANY }, (_, i) => served(`a${i}`, { root: 'r', parent: i % 2 ? 'a0' : null })),
  ],
  [
    'adapters of one base',
    [served('base'), ...Array.from({ length: MANY }, (_, i) => served(`a${i}`, { parent: 'base' }))],
  ],
]

for (const [what, list] of LISTS)
  test(`a list of 100,000 models with ${what} is read in one pass, and makes no more models than are useful`, () => {
    // Quadratic time would be minutes: the test would time out.
    const made = upstreamModels(A, list, { api_key: null, proxy: null }, 0)
    assert.equal(made.length, SERVED_MODELS_MAX)
    const listings = new Map([[A, list]])
    assert.ok(
      withServedModels({ ...config(ONE), models: made }, listings).models.length <= 2 * SERVED_MODELS_MAX,
    )
    assert.ok(withServedModels(config(ONE), listings).models.length <= 1 + SERVED_MODELS_MAX)
  })
