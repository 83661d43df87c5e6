import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { COUNT_MAX } from './money.ts'
import { boundUsage, type LineBounds, withoutZeros } from './tokens.ts'

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
      const { prompt_tokens, completion_tokens, total_tokens } = reported
      assert.equal(bounded.total_tokens, bounded.prompt_tokens + bounded.completion_tokens)
      assert.ok(bounded.total_tokens <= Math.max(total_tokens, prompt_tokens + completion_tokens))
      assert.ok(bounded.prompt_tokens >= Math.min(prompt_tokens, promptMax))
      assert.ok(bounded.completion_tokens >= Math.min(completion_tokens, outputMax))
      assert.ok(bounded.total_tokens >= Math.min(total_tokens, promptMax, outputMax))
    }),
  )
})

test('usage that the model can have is billed as it was reported, and is the very same object', () => {
  const reported = { prompt_tokens: 1000, completion_tokens: 3000, total_tokens: 4000 }
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

test('tokens that a server counts in the total alone are output, and what exceeds its limit belongs to the prompt', () => {
  const asked: number[] = []
  const promptTokensMax = (reported: number): number => {
    asked.push(reported)
    return 300
  }
  const bounded = (completion_tokens: number, total_tokens: number) =>
    boundUsage(
      { prompt_tokens: 10, completion_tokens, total_tokens },
      bounds({ output_tokens_max: 50, promptTokensMax }),
    )
  assert.deepEqual(bounded(5, 40), { prompt_tokens: 10, completion_tokens: 30, total_tokens: 40 })
  assert.deepEqual(bounded(5, 5_000), { prompt_tokens: 300, completion_tokens: 50, total_tokens: 350 })
  // A server that ignores the limit has not read more for it.
  assert.deepEqual(bounded(90, 100), { prompt_tokens: 10, completion_tokens: 50, total_tokens: 60 })
  assert.deepEqual(asked, [10, 4_950, 10])
})

test('zeros are replaced by estimates where there is anything to count', () => {
  const usage = (prompt_tokens: number, completion_tokens: number, total_tokens: number) => ({
    prompt_tokens,
    completion_tokens,
    total_tokens,
  })
  const estimated = { prompt_tokens: 20, completion_tokens: 7 }
  assert.deepEqual(withoutZeros(usage(0, 0, 0), estimated), usage(20, 7, 27))
  assert.deepEqual(withoutZeros(usage(30, 0, 30), estimated), usage(30, 7, 37))
  assert.deepEqual(withoutZeros(usage(0, 9, 9), estimated), usage(20, 9, 29))
  assert.deepEqual(withoutZeros(usage(0, 0, 100), estimated), usage(20, 7, 100))
  for (const whole of [usage(1, 1, 2), usage(3, 9, 50)]) assert.equal(withoutZeros(whole, estimated), whole)
  const silent = usage(5, 0, 5)
  assert.equal(withoutZeros(silent, { ...estimated, completion_tokens: 0 }), silent)
})
