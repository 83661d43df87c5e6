// Bounds the usage that a server reports by what the line can have used: a prompt by the bytes that make it, and each choice
// by the output limit. A server that reports more is wrong, and one such line must not use up a cap. A total below the sum
// of its parts is replaced by the sum, so that no limit on tokens counts less than what is billed.
import { atMost } from './exact-count.ts'
import type { TokenUsage } from './money.ts'

/** The assumed context window of a model whose configuration names none. */
const CONTEXT_WINDOW_MAX = 2 ** 20

export interface LineBounds {
  context_window: number | null
  inputs: number
  choices: number
  /** All choices together; 0 where neither the line nor the model has a limit. */
  output_tokens_max: number
  /** Of all inputs together, by what the line says, whatever the model: no less than `reported` where that is possible. */
  promptTokensMax(reported: number): number
}

/** The reported object itself where it is possible. */
export function boundUsage(reported: TokenUsage, bounds: LineBounds): TokenUsage {
  const { context_window, inputs, choices, output_tokens_max } = bounds
  const window = context_window ?? CONTEXT_WINDOW_MAX
  const completionMax = atMost(Math.min(window * choices, output_tokens_max || Number.POSITIVE_INFINITY))
  const promptReported = Math.max(reported.prompt_tokens, reported.total_tokens - completionMax)
  const promptMax = atMost(Math.min(window * inputs, bounds.promptTokensMax(promptReported)))
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
