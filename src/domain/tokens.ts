// Estimates token counts without a tokenizer, for projections and where a server reports no usage. The bytes per
// token depend on the model and on the prompts, so they are learned from the usage that servers report.
import { atMost, partsWithin, type TokenUsage } from './money.ts'

/** Bytes of UTF-8 per token of running text, as byte-pair encodings average over English and code. */
const BYTES_PER_TOKEN = 4
/** The number of tokens from which statistics are used, and that from which an estimate may become lower. */
const LEARNED_TOKENS_MIN = 1_000
const LEARNED_TOKENS_ENOUGH = 20_000
/** The factor of a projection over the observed mean, since lines differ. */
const MARGIN = 1.1
/** Bounds of the learned bytes per token, whatever a server reports. */
const BYTES_PER_TOKEN_MIN = 0.25
const BYTES_PER_TOKEN_MAX = 16

/**
 * Sums that servers of one model reported: prompts by their bytes as written in the input, and their tokens; also of
 * prompts longer than LONG_PROMPT_BYTES alone.
 */
export const PROMPT_SUMS = ['bytes', 'tokens', 'long_bytes', 'long_tokens'] as const
export type PromptStatistics = Record<(typeof PROMPT_SUMS)[number], number>

/** The limit of tokens that a template adds to a prompt; every other token has at least one byte. */
const TEMPLATE_TOKENS = 256
const BYTES_PER_TOKEN_EVER = 64

/** The tokens of a prompt that statistics count from a server's report; null without a valid report. */
export function learnedTokens(prompt_bytes: number, reported: number): number | null {
  if (reported * BYTES_PER_TOKEN_EVER < prompt_bytes) return null
  return Math.min(reported, prompt_bytes + TEMPLATE_TOKENS)
}

/** The prompt size from which the tokens of a chat template are negligible. */
export const LONG_PROMPT_BYTES = 4_096

/** Estimated tokens of `bytes` bytes of text or JSON. */
export function estimateTokens(bytes: number): number {
  return Math.ceil(bytes / BYTES_PER_TOKEN)
}

/** The bytes per token of projections, with two decimals. */
export function bytesPerToken(seen: PromptStatistics | undefined): number {
  if (!seen || seen.tokens < LEARNED_TOKENS_MIN) return BYTES_PER_TOKEN
  const mean = seen.bytes / seen.tokens / MARGIN
  const bounded = Math.min(Math.max(mean, BYTES_PER_TOKEN_MIN), BYTES_PER_TOKEN_MAX)
  const learned = Math.round(bounded * 100) / 100
  return seen.tokens < LEARNED_TOKENS_ENOUGH ? Math.min(BYTES_PER_TOKEN, learned) : learned
}

/** An estimate for any model, adjusted to a model's statistics. */
export function projectedTokens(estimated: number, seen: PromptStatistics | undefined): number {
  const bytes_per_token = bytesPerToken(seen)
  if (bytes_per_token === BYTES_PER_TOKEN) return estimated
  return Math.ceil((estimated * BYTES_PER_TOKEN) / bytes_per_token)
}

/** The most characters per token of running text in any tokenizer in use. */
const CHARACTERS_PER_TOKEN_MAX = 16
/** The factor over the mean that bounds a prompt's characters per token, and the smallest such bound. */
const DENSER_MAX = 3
const CHARACTERS_PER_TOKEN_MIN = 8

/** An upper bound of the mean characters per token of one prompt. */
export function charactersPerTokenMax(seen: PromptStatistics | undefined): number {
  if (!seen || seen.long_tokens < LEARNED_TOKENS_ENOUGH) return CHARACTERS_PER_TOKEN_MAX
  const densest = (DENSER_MAX * seen.long_bytes) / seen.long_tokens
  return Math.min(Math.max(densest, CHARACTERS_PER_TOKEN_MIN), CHARACTERS_PER_TOKEN_MAX)
}

/** The characters that a run of one character counts for at most: many vocabularies have tokens for long runs. */
const RUN_MAX = 16

/** The characters of a text that count for its lower bound of tokens. */
export function countedCharacters(text: string): number {
  let characters = 0
  let last = ''
  let run = 0
  for (const character of text) {
    run = character === last ? run + 1 : 1
    last = character
    if (run <= RUN_MAX) characters++
  }
  return characters
}

// Bounds the usage that a server reports by the largest that the line can have: the prompt by its bytes, and each
// choice by the output limit. A server that reports more is wrong, and one such line must not use up a cap. A count
// that contradicts the total or the content is replaced too.

/** Replaces an impossible count of zero, where the prompt has bytes or the answer has content; else the same object. */
export function withoutZeros(
  reported: TokenUsage,
  estimated: Pick<TokenUsage, 'prompt_tokens' | 'completion_tokens'>,
): TokenUsage {
  const prompt_tokens = reported.prompt_tokens || estimated.prompt_tokens
  const completion_tokens = reported.completion_tokens || estimated.completion_tokens
  if (prompt_tokens === reported.prompt_tokens && completion_tokens === reported.completion_tokens)
    return reported
  const total_tokens = Math.max(reported.total_tokens, atMost(prompt_tokens + completion_tokens))
  return { ...reported, prompt_tokens, completion_tokens, total_tokens }
}

/** The assumed context window of a model whose configuration names none. */
const CONTEXT_WINDOW_MAX = 2 ** 20

/** The most tokens of one prompt. */
export function windowOf(context_window: number | null): number {
  return context_window ?? CONTEXT_WINDOW_MAX
}

export interface LineBounds {
  context_window: number | null
  inputs: number
  choices: number
  /** The limit of output tokens of all choices; 0 where neither the line nor the model has one. */
  output_tokens_max: number
  /** The limit of all inputs' tokens by the line alone: no less than `reported` where possible. */
  promptTokensMax(reported: number): number
}

/** The reported usage within the bounds; the same object if it is. */
export function boundUsage(reported: TokenUsage, bounds: LineBounds): TokenUsage {
  const { inputs, choices, output_tokens_max } = bounds
  const window = windowOf(bounds.context_window)
  const completionMax = atMost(Math.min(window * choices, output_tokens_max || Number.POSITIVE_INFINITY))
  // Some servers count reasoning tokens in the total only. They become output tokens, up to the limit.
  const unnamed = Math.max(0, reported.total_tokens - reported.prompt_tokens - reported.completion_tokens)
  const completion_tokens = Math.min(reported.completion_tokens + unnamed, completionMax)
  const beyond = Math.min(unnamed, reported.completion_tokens + unnamed - completion_tokens)
  const promptReported = reported.prompt_tokens + beyond
  const promptMax = atMost(Math.min(window * inputs, bounds.promptTokensMax(promptReported)))
  const prompt_tokens = Math.min(promptReported, promptMax)
  const total_tokens = atMost(prompt_tokens + completion_tokens)
  const isPossible =
    prompt_tokens === reported.prompt_tokens &&
    completion_tokens === reported.completion_tokens &&
    total_tokens === reported.total_tokens
  if (isPossible) return reported
  const counts = { prompt_tokens, completion_tokens, total_tokens }
  return { ...counts, ...partsWithin(counts, reported) }
}
