// Estimates of token counts without a tokenizer, used for projections and where a server reports no usage. How many
// bytes a token has depends on the model and on what is sent to it: it is learned from what servers report.

/** Bytes of UTF-8 per token of running text, as byte-pair encodings average over English and code. */
const BYTES_PER_TOKEN = 4
/** Of so few tokens nothing is learned; up to the second figure only that a token has fewer bytes than expected. */
const LEARNED_TOKENS_MIN = 1_000
const LEARNED_TOKENS_ENOUGH = 20_000
/** Lines differ: a projection is higher by this than the mean of what was seen. */
const MARGIN = 1.1
/** What is taken for possible, whatever a server reports. */
const BYTES_PER_TOKEN_MIN = 0.25
const BYTES_PER_TOKEN_MAX = 16

/** What servers of one model reported: prompts by their bytes as written in the input, and their tokens. */
export interface PromptStatistics {
  bytes: number
  tokens: number
  /** Of those, the prompts of more than LONG_PROMPT_BYTES. */
  long_bytes: number
  long_tokens: number
}

/** In longer prompts, what a chat template adds does not count. */
export const LONG_PROMPT_BYTES = 4_096

/** Estimated tokens of `bytes` bytes of text or JSON. */
export function estimateTokens(bytes: number): number {
  return Math.ceil(bytes / BYTES_PER_TOKEN)
}

/** By how many bytes a token is projected, with two decimals. */
export function bytesPerToken(seen: PromptStatistics | undefined): number {
  if (!seen || seen.tokens < LEARNED_TOKENS_MIN) return BYTES_PER_TOKEN
  const mean = seen.bytes / seen.tokens / MARGIN
  const bounded = Math.min(Math.max(mean, BYTES_PER_TOKEN_MIN), BYTES_PER_TOKEN_MAX)
  const learned = Math.round(bounded * 100) / 100
  return seen.tokens < LEARNED_TOKENS_ENOUGH ? Math.min(BYTES_PER_TOKEN, learned) : learned
}

/** What was estimated without knowing the model, as it is projected for this one. */
export function projectedTokens(estimated: number, seen: PromptStatistics | undefined): number {
  const bytes_per_token = bytesPerToken(seen)
  if (bytes_per_token === BYTES_PER_TOKEN) return estimated
  return Math.ceil((estimated * BYTES_PER_TOKEN) / bytes_per_token)
}

/** No running text packs more characters into its tokens than this, in any tokenizer in use. */
const CHARACTERS_PER_TOKEN_MAX = 16
/** The most that is concluded from what was seen: text three times as dense as the mean, and never denser than 8. */
const DENSER_MAX = 3
const CHARACTERS_PER_TOKEN_MIN = 8

/** More characters than this no token of the model has, on average over one prompt. */
export function charactersPerTokenMax(seen: PromptStatistics | undefined): number {
  if (!seen || seen.long_tokens < LEARNED_TOKENS_ENOUGH) return CHARACTERS_PER_TOKEN_MAX
  const densest = (DENSER_MAX * seen.long_bytes) / seen.long_tokens
  return Math.min(Math.max(densest, CHARACTERS_PER_TOKEN_MIN), CHARACTERS_PER_TOKEN_MAX)
}

/** Long runs of one character are single tokens in many vocabularies: a run counts for no more than this. */
const RUN_MAX = 16
const RUNS = new RegExp(`(.)\\1{${RUN_MAX},}`, 'gsu')

/** The characters of a text that its tokens have to be made of. */
export function countedCharacters(text: string): number {
  const collapsed = text.replace(RUNS, (run) => run.slice(0, RUN_MAX))
  let characters = 0
  for (const _ of collapsed) characters++
  return characters
}
