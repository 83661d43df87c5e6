import assert from 'node:assert/strict'
import { test } from 'node:test'
import { servedFacts } from './served-facts.ts'

test('the context window is what a server says of it, the loaded one before that of the training', () => {
  const windowOf = (model: Record<string, unknown>) => servedFacts(model).context_window
  assert.equal(windowOf({ max_model_len: 2048 }), 2048)
  assert.equal(windowOf({ meta: { n_ctx: 1024, n_ctx_train: 8192 } }), 1024)
  assert.equal(windowOf({ meta: { n_ctx_train: 8192 } }), 8192)
  assert.equal(windowOf({ max_model_len: 'many', max_context_length: 4096 }), 4096)
  for (const absurd of [-1, 0, 1, 1e155, 2 ** 64, 2 ** 40])
    assert.equal(windowOf({ max_model_len: absurd, max_context_length: 4096 }), 4096, `${absurd}`)
})

test("LiteLLM's proxy tells input and output apart, of which the window has room for both", () => {
  assert.equal(servedFacts({ max_input_tokens: 777 }).context_window, 777)
  assert.equal(servedFacts({ max_input_tokens: 777, max_output_tokens: 2 ** 50 }).context_window, null)
  assert.equal(servedFacts({ max_input_tokens: 128_000, max_output_tokens: 16_384 }).context_window, 144_384)
})
