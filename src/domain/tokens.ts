// Estimates of token counts without a tokenizer, used for projections and where a server reports no usage.

/** Bytes of UTF-8 per token of running text, as byte-pair encodings average over English and code. */
const BYTES_PER_TOKEN = 4

/** Estimated tokens of `bytes` bytes of text or JSON. */
export function estimateTokens(bytes: number): number {
  return Math.ceil(bytes / BYTES_PER_TOKEN)
}
