// What one line may cost at most, before it is sent.
import { sumOf } from '../domain/exact-count.ts'
import type { Model } from '../domain/model.ts'
import { costNanos } from '../domain/money.ts'
import { NO_SPEND, type Spend } from '../domain/spend.ts'
import type { ProjectedTokens } from './projection.ts'

/** A line whose model is not known fails alone and costs nothing. */
export function projectedSpend(
  { input_tokens, output_tokens_max }: ProjectedTokens,
  model: Model | undefined,
): Spend {
  if (!model) return NO_SPEND
  return {
    cost_nanos: costNanos(input_tokens, output_tokens_max, model.price),
    tokens: sumOf(input_tokens, output_tokens_max),
  }
}
