// The request that runs the failed lines of a batch again.
import { type Static, Type } from 'typebox'

export const RetryBatch = Type.Object(
  {
    codes: Type.Optional(
      Type.Array(Type.String(), {
        minItems: 1,
        maxItems: 50,
        description: 'Only lines that failed with one of these error codes.',
      }),
    ),
    message: Type.Optional(
      Type.String({
        description: 'Only lines that failed with a message of this `pattern`, as the error groups give it.',
      }),
    ),
    model: Type.Optional(Type.String({ description: 'Only lines of this model.' })),
    entity: Type.Optional(Type.String({ description: 'Only lines of this entity.' })),
    custom_id: Type.Optional(
      Type.String({ description: 'Only lines whose `custom_id` contains this text.' }),
    ),
    completion_window: Type.Optional(
      Type.String({ description: 'The window of the batch, if it is left out.' }),
    ),
  },
  { title: 'RetryBatch', additionalProperties: false },
)

export type RetryBatch = Static<typeof RetryBatch>
