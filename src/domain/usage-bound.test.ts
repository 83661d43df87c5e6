import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { COUNT_MAX } from './exact-count.ts'
import { boundUsage } from './usage-bound.ts'

const tokens = fc.nat(200_000_000)
const usage = fc.record({ prompt_tokens: tokens, completion_tokens: tokens, total_tokens: tokens })
const window = fc.option(fc.integer({ min: 1, max: 2 ** 24 }))
const choices = fc.oneof(fc.integer({ min: 1, max: 200 }), fc.constant(COUNT_MAX))

test('no more is billed than a prompt of a whole window and choices that fill it', () => {
  fc.assert(
    fc.property(usage, window, choices, (reported, context_window, choices) => {
      const bounded = boundUsage(reported, { context_window, inputs: 1, choices })
      const window = context_window ?? 2 ** 24
      assert.ok(bounded.prompt_tokens <= window)
      assert.ok(bounded.completion_tokens <= window * choices)
      assert.ok(bounded.total_tokens <= window * (choices + 1))
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
  assert.equal(boundUsage(reported, { context_window: 1000, inputs: 1, choices: 3 }), reported)
})

test('a total below the sum of its parts is replaced by the sum', () => {
  const reported = { prompt_tokens: 1000, completion_tokens: 200, total_tokens: 0 }
  const bounded = boundUsage(reported, { context_window: null, inputs: 1, choices: 1 })
  assert.deepEqual(bounded, { prompt_tokens: 1000, completion_tokens: 200, total_tokens: 1200 })
})
