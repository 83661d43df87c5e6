import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { COUNT_MAX } from './money.ts'
import { boundUsage, type LineBounds } from './tokens.ts'

const WINDOW_MAX = 2 ** 20

const tokens = fc.nat(200_000_000)
const usage = fc.record({ prompt_tokens: tokens, completion_tokens: tokens, total_tokens: tokens })
const window = fc.option(fc.integer({ min: 1, max: WINDOW_MAX }))
const choices = fc.oneof(fc.integer({ min: 1, max: 200 }), fc.constant(COUNT_MAX))
const limit = fc.oneof(fc.constant(0), fc.integer({ min: 1, max: 10_000_000 }))

function bounds(some: Partial<LineBounds>): LineBounds {
  const promptTokensMax = (): number => COUNT_MAX
  return { context_window: null, inputs: 1, choices: 1, output_tokens_max: 0, promptTokensMax, ...some }
}

test('no more is billed than the prompt can have, choices to their limit, and a window of each', () => {
  fc.assert(
    fc.property(usage, window, choices, limit, tokens, (reported, context_window, choices, limit, most) => {
      const all = { context_window, choices, output_tokens_max: limit, promptTokensMax: () => most }
      const bounded = boundUsage(reported, bounds(all))
      const window = context_window ?? WINDOW_MAX
      const promptMax = Math.min(window, most)
      const outputMax = Math.min(window * choices, limit === 0 ? Number.POSITIVE_INFINITY : limit)
      assert.ok(bounded.prompt_tokens <= promptMax)
      assert.ok(bounded.completion_tokens <= outputMax)
      assert.ok(bounded.total_tokens <= promptMax + outputMax)
      const sum = bounded.prompt_tokens + bounded.completion_tokens
      assert.ok(bounded.total_tokens >= sum)
      assert.ok(bounded.total_tokens <= Math.max(reported.total_tokens, sum))
      for (const key of ['prompt_tokens', 'completion_tokens'] as const)
        assert.ok(bounded[key] <= reported[key] && Number.isSafeInteger(bounded[key]))
    }),
  )
})

test('usage that the model can have is billed as it was reported, and is the very same object', () => {
  const reported = { prompt_tokens: 1000, completion_tokens: 2900, total_tokens: 4000 }
  assert.equal(boundUsage(reported, bounds({ context_window: 1000, choices: 3 })), reported)
})

test('cached and reasoning tokens are no more than the tokens that they are part of', () => {
  const reported = {
    prompt_tokens: 9_000,
    completion_tokens: 9_000,
    total_tokens: 18_000,
    cached_tokens: 8_000,
    reasoning_tokens: 8_000,
  }
  const bounded = boundUsage(reported, bounds({ output_tokens_max: 5, promptTokensMax: () => 100 }))
  assert.deepEqual(bounded, {
    prompt_tokens: 100,
    completion_tokens: 5,
    total_tokens: 105,
    cached_tokens: 100,
    reasoning_tokens: 5,
  })
})

test('a total below the sum of its parts is replaced by the sum', () => {
  const reported = { prompt_tokens: 1000, completion_tokens: 200, total_tokens: 0 }
  const bounded = boundUsage(reported, bounds({}))
  assert.deepEqual(bounded, { prompt_tokens: 1000, completion_tokens: 200, total_tokens: 1200 })
})

test('tokens that a server counts in the total alone are tokens of the prompt at most', () => {
  const asked: number[] = []
  const promptTokensMax = (reported: number): number => {
    asked.push(reported)
    return 300
  }
  const reported = { prompt_tokens: 10, completion_tokens: 5, total_tokens: 5_000 }
  const bounded = boundUsage(reported, bounds({ output_tokens_max: 50, promptTokensMax }))
  assert.deepEqual([asked, bounded.total_tokens], [[4_950], 350])
})
