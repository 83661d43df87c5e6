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
