// Bounds the usage that a server reports by what the model can have used: one context window for each input, and one
// for each choice. A server that reports more is wrong, and one such line must not use up a cap. A total below the sum of its parts is replaced by the sum, so that no
// limit on tokens counts less than what is billed.
import { atMost } from './exact-count.ts'
import type { TokenUsage } from './money.ts'

/** The assumed context window of a model whose configuration names none. */
const CONTEXT_WINDOW_MAX = 2 ** 24

/** The reported object itself where it is possible. */
export function boundUsage(
  reported: TokenUsage,
  { context_window, inputs, choices }: { context_window: number | null; inputs: number; choices: number },
): TokenUsage {
  const window = context_window ?? CONTEXT_WINDOW_MAX
  const promptMax = atMost(window * inputs)
  const completionMax = atMost(window * choices)
  const prompt_tokens = Math.min(reported.prompt_tokens, promptMax)
  const completion_tokens = Math.min(reported.completion_tokens, completionMax)
  // Some servers count tokens in the total only.
  const total_tokens = Math.max(
    Math.min(reported.total_tokens, atMost(promptMax + completionMax)),
    atMost(prompt_tokens + completion_tokens),
  )
  const isPossible =
    prompt_tokens === reported.prompt_tokens &&
    completion_tokens === reported.completion_tokens &&
    total_tokens === reported.total_tokens
  if (isPossible) return reported
  const { cached_tokens = 0, reasoning_tokens = 0 } = reported
  return {
    prompt_tokens,
    completion_tokens,
    total_tokens,
    ...(cached_tokens > 0 ? { cached_tokens: Math.min(cached_tokens, prompt_tokens) } : {}),
    ...(reasoning_tokens > 0 ? { reasoning_tokens: Math.min(reasoning_tokens, completion_tokens) } : {}),
  }
}
