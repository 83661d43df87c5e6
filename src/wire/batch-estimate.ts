// What a batch would cost, before there is one.
import { type Static, Type } from 'typebox'
import { LimitObject } from './limit.ts'

const Count = Type.Integer({ minimum: 0 })
const Usd = Type.Number({ minimum: 0, description: 'In USD, at most.' })
const InMetric = Type.Number({ minimum: 0, description: 'In the limit’s metric: USD or tokens.' })

const projected = {
  lines: Count,
  input_tokens: Type.Integer({ minimum: 0, description: 'Estimated.' }),
  output_tokens_max: Type.Integer({
    minimum: 0,
    description: 'If every line used all that `max_tokens`, or its model, allows.',
  }),
  cost_usd: Usd,
}

export const BatchEstimate = Type.Object(
  {
    object: Type.Literal('batch.estimate'),
    input_file_id: Type.String(),
    accepted: Type.Boolean({ description: 'Whether the limits would let the batch in now.' }),
    ...projected,
    groups: Type.Array(
      Type.Object({
        model: Type.Union([Type.String(), Type.Null()]),
        entity: Type.Union([Type.String(), Type.Null()]),
        priced: Type.Boolean({ description: 'False: the model has no price, so these lines cost nothing.' }),
        ...projected,
        bytes_per_token: Type.Number({
          minimum: 0,
          description: 'Of text, as projected: learned from what the servers of the model report.',
        }),
      }),
    ),
    unpriced_models: Type.Array(Type.String(), {
      description: 'Models without a price: their lines cost 0.',
    }),
    limits: Type.Array(
      Type.Object({
        limit: LimitObject,
        entity: Type.Union([Type.String(), Type.Null()], {
          description: 'Whose spending it is; null: the project’s.',
        }),
        spent: InMetric,
        open: Type.Number({ minimum: 0, description: 'What open batches may still use.' }),
        needed: Type.Number({ minimum: 0, description: 'What this batch may use.' }),
        exceeds: Type.Boolean({ description: 'Whether all that together passes the cap.' }),
        resets_at: Type.Integer({ description: 'Unix seconds; the end of the window.' }),
      }),
      { description: 'The limits that count lines of this batch.' },
    ),
  },
  {
    title: 'BatchEstimate',
    examples: [
      {
        object: 'batch.estimate',
        input_file_id: 'file_01k0a6v1h8e5q6t2m3x4z9b7cd',
        accepted: true,
        lines: 12,
        input_tokens: 480,
        output_tokens_max: 6144,
        cost_usd: 0.0025056,
        groups: [
          {
            model: 'sim-1',
            entity: 'user:42',
            priced: true,
            lines: 12,
            input_tokens: 480,
            output_tokens_max: 6144,
            cost_usd: 0.0025056,
            bytes_per_token: 4,
          },
        ],
        unpriced_models: [],
        limits: [],
      },
    ],
  },
)
export type BatchEstimate = Static<typeof BatchEstimate>
