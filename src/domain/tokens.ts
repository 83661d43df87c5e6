// Estimates token counts without a tokenizer, for projections and where a server reports no usage. The bytes per
// token depend on the model and on the prompts, so they are learned from the usage that servers report.
import { atMost, partsWithin, type TokenUsage } from './money.ts'

/** Bytes of UTF-8 per token of running text, as byte-pair encodings average over English and code. */
const BYTES_PER_TOKEN = 4
/** Below the first number of tokens nothing is learned; below the second, an estimate can only become higher. */
const LEARNED_TOKENS_MIN = 1_000
const LEARNED_TOKENS_ENOUGH = 20_000
/** Lines differ: a projection is higher than the observed mean by this factor. */
const MARGIN = 1.1
/** The bounds of what is learned, whatever a server reports. */
const BYTES_PER_TOKEN_MIN = 0.25
const BYTES_PER_TOKEN_MAX = 16

/** Sums that servers of one model reported: prompts by their bytes as written in the input, and their tokens. */
export interface PromptStatistics {
  bytes: number
  tokens: number
  /** The bytes of the prompts that have more than LONG_PROMPT_BYTES. */
  long_bytes: number
  long_tokens: number
}

/** A token has no less than a byte, and a template adds some. No text has tokens that are longer on average. */
const TEMPLATE_TOKENS = 256
const BYTES_PER_TOKEN_EVER = 64

/** The tokens of a prompt to learn from a server's report; null if the report has none. */
export function learnedTokens(prompt_bytes: number, reported: number): number | null {
  if (reported * BYTES_PER_TOKEN_EVER < prompt_bytes) return null
  return Math.min(reported, prompt_bytes + TEMPLATE_TOKENS)
}

/** In longer prompts the tokens that a chat template adds are negligible. */
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

/** An estimate that was made without the model, adjusted to the model. */
export function projectedTokens(estimated: number, seen: PromptStatistics | undefined): number {
  const bytes_per_token = bytesPerToken(seen)
  if (bytes_per_token === BYTES_PER_TOKEN) return estimated
  return Math.ceil((estimated * BYTES_PER_TOKEN) / bytes_per_token)
}

/** The most characters per token of running text in any tokenizer in use. */
const CHARACTERS_PER_TOKEN_MAX = 16
/** The bound that is learned: three times the observed mean, and at least 8 characters per token. */
const DENSER_MAX = 3
const CHARACTERS_PER_TOKEN_MIN = 8

/** An upper bound of the mean characters per token of one prompt. */
export function charactersPerTokenMax(seen: PromptStatistics | undefined): number {
  if (!seen || seen.long_tokens < LEARNED_TOKENS_ENOUGH) return CHARACTERS_PER_TOKEN_MAX
  const densest = (DENSER_MAX * seen.long_bytes) / seen.long_tokens
  return Math.min(Math.max(densest, CHARACTERS_PER_TOKEN_MIN), CHARACTERS_PER_TOKEN_MAX)
}

/** Long runs of one character are single tokens in many vocabularies: a run counts for no more than this. */
const RUN_MAX = 16
const RUNS = new RegExp(`(.)\\1{${RUN_MAX},}`, 'gsu')

/** The characters of a text that count for its lower bound of tokens. */
export function countedCharacters(text: string): number {
  const collapsed = text.replace(RUNS, (run) => run.slice(0, RUN_MAX))
  let characters = 0
  for (const _ of collapsed) characters++
  return characters
}

// Bounds the usage that a server reports by what the line can have used: a prompt by the bytes that make it, and each choice
// by the output limit. A server that reports more is wrong, and one such line must not use up a cap. A server that
// reports less than it says elsewhere is wrong too: no tokens of the total are free, and no answer comes of nothing.

/** Tokens in place of a count of zero that cannot be: the prompt has bytes, or the answer has content. The same object if none is. */
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
  /** All choices together; 0 where neither the line nor the model has a limit. */
  output_tokens_max: number
  /** The bound of all inputs together, by the line alone, whatever the model: no less than `reported` where that is possible. */
  promptTokensMax(reported: number): number
}

/** The reported object itself where it is possible. */
export function boundUsage(reported: TokenUsage, bounds: LineBounds): TokenUsage {
  const { inputs, choices, output_tokens_max } = bounds
  const window = windowOf(bounds.context_window)
  const completionMax = atMost(Math.min(window * choices, output_tokens_max || Number.POSITIVE_INFINITY))
  // Some servers count tokens in the total only. Those are output, as far as there can be so much of it.
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
