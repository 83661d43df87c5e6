// A configured model as the API shows it.
import type { Model } from '../../../domain/model.ts'
import type { ModelObject } from '../../../wire/model.ts'

/** Pico-dollars per token in a dollar per million tokens. */
const PICOS_PER_USD_PER_MTOK = 1_000_000

export function showModel(model: Model, region: string): ModelObject {
  return {
    id: model.id,
    object: 'model',
    created: model.created,
    owned_by: 'offpeak',
    region,
    context_window: model.context_window,
    max_output_tokens: model.max_output_tokens,
    supports: { ...model.supports },
    endpoints: [...model.endpoints],
    pricing: {
      input_per_mtok: model.price.input_picos / PICOS_PER_USD_PER_MTOK,
      output_per_mtok: model.price.output_picos / PICOS_PER_USD_PER_MTOK,
      ...(model.price.cached_input_picos === undefined
        ? {}
        : { cached_input_per_mtok: model.price.cached_input_picos / PICOS_PER_USD_PER_MTOK }),
      currency: 'USD',
      configured: model.priced,
    },
  }
}
