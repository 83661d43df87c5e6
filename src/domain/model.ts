// A model as the configuration declares it and the API shows it.
import type { EndpointPath } from './endpoint.ts'
import type { Price } from './money.ts'
import type { PromptStatistics } from './tokens.ts'

export interface Model {
  id: string
  /** Tokens of input and output together; null when unknown: then only the server can reject a line. */
  context_window: number | null
  /** The projected output of a line that sets no max_tokens; null when unknown. */
  max_output_tokens: number | null
  price: Price
  /** What its servers have reported about prompts; absent before the first report. */
  seen?: PromptStatistics | undefined
  /** False when the configuration gives no price: the model costs 0. */
  priced: boolean
  supports: { structured_output: boolean; tools: boolean }
  /** Lines for any other endpoint fail. */
  endpoints: readonly EndpointPath[]
  /** Unix seconds; when this model was first configured (the start of the process that reads it). */
  created: number
}
