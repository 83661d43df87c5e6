import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { accountsOf } from '../domain/limit.ts'
import type { Model } from '../domain/model.ts'
import { emptySums, type TokenSums } from '../jsonl/projection.ts'
import { type BatchProjection, projectBatch } from './check-limits.ts'

function entitiesOf({ payers }: BatchProjection): Set<string> {
  return new Set(payers.flatMap(({ entity }) => entity ?? []))
}

const MODEL: Model = {
  id: 'm',
  context_window: null,
  max_output_tokens: 100,
  price: { input_picos: 1000, output_picos: 2000 },
  priced: true,
  supports: { structured_output: true, tools: true },
  endpoints: ['/v1/chat/completions'],
  created: 0,
}
const MODELS = new Map([
  ['m', MODEL],
  ['free', { ...MODEL, id: 'free', price: { input_picos: 0, output_picos: 0 }, priced: false }],
])

function sums(part: Partial<TokenSums>): TokenSums {
  return {
    ...emptySums('m', null),
    lines: 1,
    input_tokens: 10,
    output_tokens_max_given: 5,
    ...part,
  }
}

const nobody = { key_id: 'key_1', metadata: null, header_entity: null, reask: null }

describe('the projection of a batch', () => {
  it('is input plus all the output that is allowed, at the price of the model', () => {
    const index = { groups: [sums({}), sums({ entity: 'user:a', open_choices: 2 })], unattributed: [] }
    const { total, byAccount, lines } = projectBatch(index, MODELS, nobody)
    assert.equal(lines, 2)
    const [ofUser, ofUserAndModel] = accountsOf({ entity: 'user:a', key_id: null, model: 'm' })
    const user = { cost_nanos: 10 + 2 * 205, tokens: 215, requests: 1 }
    assert.deepEqual([byAccount.get(ofUser!), byAccount.get(ofUserAndModel!)], [user, user])
    const all = { cost_nanos: 10 + 10 + 10 + 410, tokens: 15 + 215, requests: 2 }
    assert.deepEqual(total, all)
    for (const account of accountsOf({ entity: null, key_id: 'key_1', model: 'm' }))
      assert.deepEqual(byAccount.get(account), all)
  })

  it('charges lines that name nobody to the batch’s entity, else to that of the header', () => {
    const index = { groups: [sums({}), sums({ entity: 'user:a' })], unattributed: [] }
    const entities = (metadata: string | null, header_entity: string | null) => [
      ...entitiesOf(projectBatch(index, MODELS, { ...nobody, metadata, header_entity })),
    ]
    assert.deepEqual(entities(null, null), ['user:a'])
    assert.deepEqual(entities(null, 'user:h'), ['user:h', 'user:a'])
    assert.deepEqual(entities('{"entity":"user:b"}', 'user:h'), ['user:b', 'user:a'])
  })

  it('counts lines whose entity the index does not know in the total only', () => {
    const index = { groups: [sums({ entity: 'user:a' })], unattributed: [sums({ lines: 7 })] }
    const projection = projectBatch(index, MODELS, { ...nobody, metadata: '{"entity":"user:b"}' })
    const { total, lines } = projection
    assert.deepEqual([...entitiesOf(projection)], ['user:a'])
    assert.deepEqual([lines, total.tokens], [8, 30])
  })

  it('is nothing for a model that is unknown, and free for one without a price; both are said', () => {
    const index = {
      groups: [sums({ model: 'nope' }), sums({ model: 'free' }), sums({ model: null })],
      unattributed: [],
    }
    const { groups, total } = projectBatch(index, MODELS, nobody)
    assert.deepEqual(total, { cost_nanos: 0, tokens: 15, requests: 1 })
    assert.deepEqual(
      groups.map(({ priced }) => priced),
      [false, false, false],
    )
  })

  it('stays a whole number for requests of absurd size', () => {
    const index = {
      groups: Array.from({ length: 3 }, () => sums({ output_tokens_max_given: Number.MAX_SAFE_INTEGER })),
      unattributed: [],
    }
    const { total } = projectBatch(index, MODELS, nobody)
    assert.ok(Number.isSafeInteger(total.tokens) && Number.isSafeInteger(total.cost_nanos))
  })
})
