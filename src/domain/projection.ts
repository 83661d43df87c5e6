// What lines may cost before they run: the tokens a line may use at most, and the sums that a file keeps so
// that a batch over it is projected without reading it again.
import type { InputLine } from './line-scan.ts'
import type { Model } from './model.ts'

export interface ProjectedTokens {
  input_tokens: number
  output_tokens_max: number
}

/** Sums over the lines of one file that share model and entity. */
export interface TokenSums {
  /** Null for lines without a usable `model`; they will fail alone and cost nothing. */
  model: string | null
  /** The line's own `metadata.entity`; null where it has none, so that the batch's entity applies. */
  entity: string | null
  lines: number
  /** Estimated. */
  input_tokens: number
  /** Over the lines that set max_tokens (or max_completion_tokens), times `n`. */
  output_tokens_max_given: number
  /** Over the lines that set neither: the sum of their `n`, to be multiplied by the model's max_output_tokens. */
  open_choices: number
}

/** What one line may use at most. A model without `max_output_tokens` adds nothing for a line that sets no max_tokens. */
export function projectTokens(_line: InputLine, _model: Model): ProjectedTokens {
  throw new Error('not written yet')
}

/** What the lines of one group may use at most on `model`. */
export function projectSums(_sums: TokenSums, _model: Model): ProjectedTokens {
  throw new Error('not written yet')
}
