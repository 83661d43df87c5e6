import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { recordOf } from '../domain/json-record.ts'
import { DAY_SUMS } from '../domain/line-sums.ts'
import { type DayUsage, FOCUS_COLUMNS, focusRows } from './focus.ts'
import { type Cell, cellText } from './table.ts'

const USAGE: DayUsage = {
  ...recordOf(DAY_SUMS, () => 0),
  ...{ region: 'eu', project: { id: 'proj_1', name: 'team' }, start: Date.UTC(2026, 1, 28) },
  ...{ entity: 'user:1', entity_type: 'user', key: 'key_1', model: 'm' },
}
const PRICED = { input_picos: 100_000, output_picos: 400_000, cached_input_picos: 10_000 }

function rowsOf(sums: Partial<DayUsage>, rates = PRICED): Record<string, string>[] {
  const texts = (cells: Cell[]): [string, string][] =>
    FOCUS_COLUMNS.map(({ name }, i) => [name, cellText(cells[i])])
  return focusRows({ ...USAGE, ...sums }, rates).map((cells) => Object.fromEntries(texts(cells)))
}

const nanos = ({ BilledCost = '' }: Record<string, string>): bigint => BigInt(BilledCost.replace('.', ''))

test('each meter of a day has a row with what was paid for it', () => {
  const rows = rowsOf({ prompt_tokens: 1000, cached_tokens: 400, completion_tokens: 50, cost_nanos: 84_000 })
  assert.deepEqual(
    rows.map(({ SkuMeter, ConsumedQuantity, PricingQuantity, BilledCost }) => [
      ...[SkuMeter, ConsumedQuantity, PricingQuantity, BilledCost],
    ]),
    [
      ['Input tokens', '600.0', '600.0', '0.000060000'],
      ['Cached input tokens', '400.0', '400.0', '0.000004000'],
      ['Output tokens', '50.0', '50.0', '0.000020000'],
    ],
  )
  const [{ BilledCost, ...first }] = rows as [Record<string, string>]
  for (const name of ['ContractedCost', 'EffectiveCost', 'ListCost']) assert.equal(first[name], BilledCost)
  assert.deepEqual(
    [first.ChargePeriodStart, first.ChargePeriodEnd, first.BillingPeriodStart, first.BillingPeriodEnd],
    ['2026-02-28T00:00:00Z', '2026-03-01T00:00:00Z', '2026-02-01T00:00:00Z', '2026-03-01T00:00:00Z'],
  )
  assert.equal(first.Tags, '{"entity":"user:1","entity_type":"user","api_key":"key_1","model":"m"}')
})

test('lines that cost nothing and had no tokens have no row; what costs something always has one', () => {
  assert.deepEqual(rowsOf({ failed: 3 }), [])
  assert.deepEqual(
    rowsOf({ succeeded: 2, cost_nanos: 7 }).map(({ SkuMeter, BilledCost }) => [SkuMeter, BilledCost]),
    [['Lines', '0.000000007']],
  )
})

test('the rows of a day add up to its cost, whatever the price is now', () => {
  const tokens = fc.nat(1_000_000_000)
  fc.assert(
    fc.property(
      fc.record({ prompt: tokens, cached: tokens, written: tokens, completion_tokens: tokens }),
      fc.nat(Number.MAX_SAFE_INTEGER),
      fc.record({ input_picos: tokens, output_picos: tokens, cached_input_picos: tokens }),
      ({ prompt, cached, written, completion_tokens }, cost_nanos, rates) => {
        const parts = {
          cached_tokens: cached,
          cache_write_tokens: written,
          cache_write_1h_tokens: written >> 1,
        }
        const sums = { ...parts, prompt_tokens: prompt + cached + written, completion_tokens, cost_nanos }
        const rows = rowsOf({ ...sums, succeeded: 1 }, rates)
        assert.equal(
          rows.reduce((sum, row) => sum + nanos(row), 0n),
          BigInt(cost_nanos),
        )
        assert.ok(rows.every((row) => nanos(row) >= 0n))
        const used = rows.filter(({ ConsumedUnit }) => ConsumedUnit === 'Tokens')
        const quantity = used.reduce((sum, row) => sum + Number(row.ConsumedQuantity), 0)
        assert.equal(quantity, sums.prompt_tokens + completion_tokens)
      },
    ),
  )
})

// The rules of the dataset CostAndUsage of FOCUS 1.3 that can be seen in a row: the columns that are mandatory, and those that
// usage of this kind has. A pattern holds for values that are not null; null is allowed where the name ends in `?`.
const DECIMAL = /^-?\d+\.\d+$/
const TIME = /^\d{4}-\d\d-\d\dT\d\d:00:00Z$/
const TEXT = /\S/
const FOCUS_1_3: Readonly<Record<string, RegExp>> = {
  ...{ BilledCost: DECIMAL, ContractedCost: DECIMAL, EffectiveCost: DECIMAL, ListCost: DECIMAL },
  ...{ BillingAccountId: TEXT, 'BillingAccountName?': TEXT, BillingCurrency: /^[A-Z]{3}$/ },
  ...{ BillingPeriodStart: TIME, BillingPeriodEnd: TIME, ChargePeriodStart: TIME, ChargePeriodEnd: TIME },
  ChargeCategory: /^(Usage|Purchase|Tax|Credit|Adjustment)$/,
  'ChargeClass?': /^Correction$/,
  'ChargeDescription?': TEXT,
  ChargeFrequency: /^(One-Time|Recurring|Usage-Based)$/,
  ...{ ConsumedQuantity: DECIMAL, ConsumedUnit: TEXT, PricingQuantity: DECIMAL, PricingUnit: TEXT },
  PricingCategory: /^(Standard|Dynamic|Committed|Other)$/,
  ...{ HostProviderName: TEXT, InvoiceIssuerName: TEXT, 'InvoiceId?': TEXT, ServiceProviderName: TEXT },
  // Deprecated since 1.3, and mandatory until they are removed.
  ...{ ProviderName: TEXT, PublisherName: TEXT },
  ...{
    'RegionId?': TEXT,
    'RegionName?': TEXT,
    'ResourceId?': TEXT,
    'ResourceName?': TEXT,
    'ResourceType?': TEXT,
  },
  ServiceCategory: /^AI and Machine Learning$/,
  ServiceName: TEXT,
  ServiceSubcategory:
    /^(AI Platforms|Bots|Generative AI|Machine Learning|Natural Language Processing|Other \(AI and Machine Learning\))$/,
  ...{ SkuId: TEXT, SkuMeter: TEXT, 'SubAccountId?': TEXT, 'SubAccountName?': TEXT, 'SubAccountType?': TEXT },
  'Tags?': /^\{.*\}$/,
}
/** The second is null where the first is, and only there. */
const NULL_TOGETHER = [
  ...[
    ['RegionId', 'RegionName'],
    ['ResourceId', 'ResourceType'],
    ['SubAccountId', 'SubAccountType'],
  ],
  ...[
    ['ConsumedQuantity', 'ConsumedUnit'],
    ['PricingQuantity', 'PricingUnit'],
  ],
] as const

test('every row keeps the rules of FOCUS 1.3', () => {
  const ruled = Object.keys(FOCUS_1_3).map((name) => name.replace('?', ''))
  const others = FOCUS_COLUMNS.map(({ name }) => name).filter((name) => !ruled.includes(name))
  assert.deepEqual(others, ['x_ApiKeyId', 'x_Entity', 'x_EntityType'], 'columns of our own begin with x_')
  const text = fc.constantFrom('', 'a', 'é "quoted", and more')
  const sums = {
    prompt_tokens: fc.nat(9),
    completion_tokens: fc.nat(9),
    succeeded: fc.nat(9),
    cost_nanos: fc.nat(),
  }
  const names = { model: text, entity: text, entity_type: text, key: text }
  fc.assert(
    fc.property(fc.record({ ...sums, ...names }), (usage) => {
      for (const row of rowsOf(usage)) {
        for (const [rule, pattern] of Object.entries(FOCUS_1_3)) {
          const name = rule.replace('?', '')
          const value = row[name] ?? assert.fail(`${name} is mandatory`)
          if (value !== '' || name === rule) assert.match(value, pattern, name)
        }
        for (const [one, other] of NULL_TOGETHER) assert.equal(row[one] === '', row[other] === '', other)
        assert.ok(
          row.BillingPeriodStart! <= row.ChargePeriodStart! && row.ChargePeriodEnd! <= row.BillingPeriodEnd!,
        )
        JSON.parse(row.Tags!)
      }
    }),
  )
})
