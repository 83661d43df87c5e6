// A model as the configuration declares it and the API shows it.
import type { Price } from './money.ts'
import type { PromptStatistics } from './tokens.ts'

export interface Model {
  id: string
  /** Tokens of input and output together; null when unknown: then only the server can refuse. */
  context_window: number | null
  /** What is projected for a line that sets no max_tokens; null when unknown. */
  max_output_tokens: number | null
  price: Price
  /** What its servers have reported of prompts; absent where nothing is known. */
  seen?: PromptStatistics | undefined
  /** False when the configuration gives no price: the model costs 0, and is said to. */
  priced: boolean
  supports: { structured_output: boolean; tools: boolean }
  /** Unix seconds; when this model was first configured (the start of the process that reads it). */
  created: number
}
