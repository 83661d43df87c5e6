// What a server reports as used is billed as far as the model can have used it. A prompt is never longer than the
// context window, and each choice of `n` ends at the window at the latest. A server that reports more is at fault,
// and one line of it must not spend a whole cap. A total below the sum of its parts is replaced by the sum, so that no
// limit on tokens counts less than what is billed.
import { atMost } from './exact-count.ts'
import type { TokenUsage } from './money.ts'

/** No model has a larger context window; stands in for one that the configuration does not name. */
const CONTEXT_WINDOW_MAX = 2 ** 24

/** The reported object itself where it is possible; `choices` is the `n` of the request. */
export function boundUsage(
  reported: TokenUsage,
  { context_window, choices }: { context_window: number | null; choices: number },
): TokenUsage {
  const window = context_window ?? CONTEXT_WINDOW_MAX
  const completion_max = atMost(window * choices)
  const prompt_tokens = Math.min(reported.prompt_tokens, window)
  const completion_tokens = Math.min(reported.completion_tokens, completion_max)
  // Some servers count in the total what they count in neither part.
  const total_tokens = Math.max(
    Math.min(reported.total_tokens, atMost(window + completion_max)),
    atMost(prompt_tokens + completion_tokens),
  )
  const isPossible =
    prompt_tokens === reported.prompt_tokens &&
    completion_tokens === reported.completion_tokens &&
    total_tokens === reported.total_tokens
  return isPossible ? reported : { prompt_tokens, completion_tokens, total_tokens }
}
