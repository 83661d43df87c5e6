// Describes a model as the API shows it.
import { type Static, Type } from 'typebox'
import { ENDPOINT_PATHS, type EndpointPath } from '../domain/endpoint.ts'
import { amount, arrayOf, count, flag, object, orNull, text, timestamp } from './shape.ts'

const TokensOrNull = orNull(Type.Integer({ minimum: 1 }))

const RATES = {
  input_per_mtok: amount(),
  output_per_mtok: amount(),
  cached_input_per_mtok: Type.Optional(amount('Of prompt tokens that the server took from its cache.')),
  cache_write_per_mtok: Type.Optional(amount('Of prompt tokens that the server wrote to its cache.')),
  cache_write_1h_per_mtok: Type.Optional(amount('Of those that it keeps for an hour.')),
}

export const ModelObject = object(
  'Model',
  {
    id: text('May hold slashes.'),
    object: Type.Literal('model'),
    created: timestamp('since when it has been offered.'),
    owned_by: Type.String(),
    region: Type.String(),
    context_window: TokensOrNull,
    max_output_tokens: TokensOrNull,
    supports: Type.Object({
      structured_output: flag('Whether a strict JSON schema is enforced.'),
      tools: Type.Boolean(),
    }),
    endpoints: arrayOf(
      Type.Unsafe<EndpointPath>({ type: 'string', examples: [...ENDPOINT_PATHS] }),
      'The endpoints of batches that it serves.',
    ),
    pricing: Type.Object({
      ...RATES,
      service_tiers: Type.Optional(
        Type.Record(Type.String(), Type.Object(RATES), {
          description: 'By the service tier that an answer names, the prices that hold instead.',
        }),
      ),
      above: Type.Optional(
        arrayOf(
          Type.Object({ prompt_tokens: count(), ...RATES }),
          'The prices of requests whose prompt has more tokens than `prompt_tokens`, for all their tokens.',
        ),
      ),
      currency: Type.Literal('USD'),
      configured: flag('False: no price is set, so lines of this model cost nothing.'),
    }),
  },
  {
    id: 'sim-1',
    object: 'model',
    created: 1767225600,
    owned_by: 'offpeak',
    region: 'local',
    context_window: 131072,
    max_output_tokens: 4096,
    supports: { structured_output: true, tools: true },
    endpoints: ['/v1/chat/completions'],
    pricing: { input_per_mtok: 0.1, output_per_mtok: 0.4, currency: 'USD', configured: true },
  },
)

export type ModelObject = Static<typeof ModelObject>

/** Whether the project of the caller has paused a model. */
export const ModelPause = object(
  'ModelPause',
  {
    id: text('The model.'),
    object: Type.Literal('model.pause'),
    paused_at: orNull(count(), 'Unix seconds, since when the project has paused it; null when it has not.'),
  },
  { id: 'sim-1', object: 'model.pause', paused_at: 1767225660 },
)
