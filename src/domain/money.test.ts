import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import fc from 'fast-check'
import {
  costNanos,
  dearest,
  FREE,
  isDearer,
  NANOS_PER_USD,
  nanosFromUsd,
  partsWithin,
  picosPerToken,
  ratesAt,
  usd,
  usdLiteral,
} from './money.ts'

const tokens = fc.integer({ min: 0, max: 10_000_000 })
const picos = fc.integer({ min: 0, max: 10 ** 9 })
const price = fc.record({ input_picos: picos, output_picos: picos })
/** Amounts below a million dollars, where a double still shows every nano-dollar. */
const nanos = fc.integer({ min: 0, max: 1_000_000 * NANOS_PER_USD - 1 })

describe('prices', () => {
  test('USD per million tokens become whole pico-dollars per token', () => {
    assert.equal(picosPerToken(0.1), 100_000)
    assert.equal(picosPerToken(0.000001), 1)
    assert.equal(picosPerToken(15), 15_000_000)
    assert.equal(picosPerToken(0), 0)
  })

  test('what is no price is refused', () => {
    for (const wrong of [-0.01, Number.NaN, Number.POSITIVE_INFINITY, 1e11]) {
      assert.throws(() => picosPerToken(wrong), RangeError, String(wrong))
    }
  })
})

describe('the cost of a line', () => {
  test('a known line costs what a pocket calculator says', () => {
    // 1,000 tokens in at 0.10 and 500 out at 0.40 USD per million: 0.0001 + 0.0002 USD.
    assert.equal(costNanos(1000, 500, { input_picos: 100_000, output_picos: 400_000 }), 300_000)
    assert.equal(costNanos(1_000_000, 1_000_000, FREE), 0)
  })

  test('half a nano-dollar is rounded up, less is dropped', () => {
    assert.equal(costNanos(1, 0, { input_picos: 499, output_picos: 0 }), 0)
    assert.equal(costNanos(1, 0, { input_picos: 500, output_picos: 0 }), 1)
    assert.equal(costNanos(1, 0, { input_picos: 1499, output_picos: 0 }), 1)
  })

  test('is the exact product rounded once, also beyond the safe integers', () => {
    fc.assert(
      fc.property(tokens, tokens, price, (input, output, { input_picos, output_picos }) => {
        const exact = BigInt(input) * BigInt(input_picos) + BigInt(output) * BigInt(output_picos)
        assert.equal(costNanos(input, output, { input_picos, output_picos }), Number((exact + 500n) / 1000n))
      }),
      { examples: [[10_000_000, 10_000_000, { input_picos: 10 ** 9, output_picos: 10 ** 9 }]] },
    )
  })

  test('stays an amount that can be written, whatever is counted', () => {
    const dear = { input_picos: 10 ** 12, output_picos: 10 ** 12 }
    const cost_nanos = costNanos(Number.MAX_SAFE_INTEGER, Number.MAX_SAFE_INTEGER, dear)
    assert.equal(usdLiteral(cost_nanos), usdLiteral(Number.MAX_SAFE_INTEGER))
  })

  test('never falls when a token is added', () => {
    fc.assert(
      fc.property(tokens, tokens, price, (input, output, p) => {
        assert.ok(costNanos(input + 1, output, p) >= costNanos(input, output, p))
        assert.ok(costNanos(input, output + 1, p) >= costNanos(input, output, p))
      }),
    )
  })

  test('summed over lines comes to the same in any order and any grouping', () => {
    const lines = fc.array(fc.tuple(tokens, tokens), { maxLength: 50 })
    fc.assert(
      fc.property(lines, price, fc.nat(), fc.nat(50), (all, p, seed, cut) => {
        const costs = all.map(([input, output]) => costNanos(input, output, p))
        const mixed = costs
          .map((cost, i) => ({ cost, at: Math.imul(i + 1, seed | 1) >>> 0 }))
          .sort((a, b) => a.at - b.at)
          .map(({ cost }) => cost)
        const exact = costs.reduce((total, cost) => total + BigInt(cost), 0n)
        assert.equal(BigInt(sum(mixed)), exact)
        assert.equal(BigInt(sum(mixed.slice(0, cut)) + sum(mixed.slice(cut))), exact)
      }),
    )
  })
})

describe('amounts in USD', () => {
  test('a literal is an exact decimal without exponent', () => {
    assert.equal(usdLiteral(0), '0')
    assert.equal(usdLiteral(1), '0.000000001')
    assert.equal(usdLiteral(12_340), '0.00001234')
    assert.equal(usdLiteral(NANOS_PER_USD), '1')
    assert.equal(usdLiteral(2_500_000_000), '2.5')
  })

  test('a literal, read back as text, is the amount again', () => {
    fc.assert(
      fc.property(fc.integer({ min: 0, max: Number.MAX_SAFE_INTEGER }), (amount) => {
        const [whole = '', rest = ''] = usdLiteral(amount).split('.')
        assert.equal(Number(whole + rest.padEnd(9, '0')), amount)
      }),
    )
  })

  test('the JSON number that the API shows is the amount again', () => {
    fc.assert(
      fc.property(nanos, (amount) => {
        assert.equal(nanosFromUsd(usd(amount)), amount)
        assert.equal(nanosFromUsd(Number(usdLiteral(amount))), amount)
        assert.equal(usd(amount), Number(usdLiteral(amount)))
      }),
    )
  })

  test('what is no amount is refused', () => {
    for (const wrong of [-1, Number.NaN, Number.POSITIVE_INFINITY, 1e8]) {
      assert.throws(() => nanosFromUsd(wrong), RangeError, String(wrong))
    }
    for (const wrong of [-1, 0.5, Number.MAX_SAFE_INTEGER + 1])
      assert.throws(() => usdLiteral(wrong), RangeError)
  })
})

function sum(amounts: readonly number[]): number {
  return amounts.reduce((total, amount) => total + amount, 0)
}

describe('rates by kind and by length', () => {
  const flat = { input_picos: 1_000_000, output_picos: 4_000_000 }
  const write = { ...flat, cached_input_picos: 100_000, cache_write_picos: 1_250_000 }
  const steps = [
    { ...write, prompt_tokens: 128_000, input_picos: 2_000_000 },
    { ...write, prompt_tokens: 200_000, output_picos: 8_000_000, cache_write_1h_picos: 3_000_000 },
  ]

  test('tokens read from a cache and written to it have rates of their own, or those of the input', () => {
    const parts = { cached_tokens: 100, cache_write_tokens: 50, cache_write_1h_tokens: 20 }
    assert.equal(costNanos(200, 10, flat, parts), 240_000)
    assert.equal(costNanos(200, 10, write, parts), 50_000 + 10_000 + 62_500 + 40_000)
    const hour = { ...write, cache_write_1h_picos: 2_000_000 }
    assert.equal(costNanos(200, 10, hour, parts), 50_000 + 10_000 + 37_500 + 40_000 + 40_000)
  })

  test('a prompt above a step has all rates of that step', () => {
    const price = { ...write, above: steps }
    assert.deepEqual(
      [0, 128_000, 128_001, 200_000, 200_001].map((tokens) => ratesAt(price, tokens)),
      [price, price, steps[0], steps[0], steps[1]],
    )
  })

  test('the dearest price has the dearest kind of input, and never falls with the length', () => {
    const dear = dearest([flat, { ...write, above: steps }, { ...flat, output_picos: 5_000_000 }])
    assert.deepEqual(dear, {
      input_picos: 1_250_000,
      output_picos: 5_000_000,
      above: [
        { prompt_tokens: 128_000, input_picos: 2_000_000, output_picos: 5_000_000 },
        { prompt_tokens: 200_000, input_picos: 3_000_000, output_picos: 8_000_000 },
      ],
    })
    assert.deepEqual(dearest([flat]), flat)
    assert.deepEqual(dearest([]), FREE)
    const { above, ...base } = dear
    assert.ok(isDearer(dear, base) && !isDearer(base, dear) && !isDearer(dear, dear))
    const moved = {
      ...base,
      above: above?.map((step) => ({ ...step, prompt_tokens: step.prompt_tokens - 1 })),
    }
    assert.ok(isDearer(moved, dear) && !isDearer(dear, moved))
  })

  test('parts are no more than the tokens that they are part of', () => {
    const within = { prompt_tokens: 10, completion_tokens: 5 }
    const parts = { cached_tokens: 9, cache_write_tokens: 4, cache_write_1h_tokens: 7, reasoning_tokens: 8 }
    assert.deepEqual(partsWithin(within, parts), {
      cached_tokens: 6,
      cache_write_tokens: 4,
      cache_write_1h_tokens: 4,
      reasoning_tokens: 5,
    })
    assert.deepEqual(partsWithin(within, {}), {})
  })
})
