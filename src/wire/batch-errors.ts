// The errors of a batch, grouped by code and message.
import { type Static, Type } from 'typebox'

const Count = Type.Integer({ minimum: 0 })

export const BatchErrors = Type.Object(
  {
    object: Type.Literal('batch_errors'),
    batch_id: Type.String(),
    failed: Type.Integer({
      minimum: 0,
      description: 'How many lines failed: the sum of the groups and `other`.',
    }),
    groups: Type.Array(
      Type.Object({
        code: Type.String(),
        pattern: Type.Union([Type.String(), Type.Null()], {
          description:
            'What the messages of the group have in common: words with digits are `0`. It is the `message` that filters lines. Null for messages of the code that found no group of their own.',
        }),
        message: Type.String({ description: 'The message of one of them.' }),
        lines: Count,
        retryable: Type.Boolean({
          description: 'Whether the same lines may succeed when they are sent again.',
        }),
        advice: Type.String({ description: 'What to do.' }),
      }),
      { description: 'Those with the most lines first.' },
    ),
    other: Type.Integer({
      minimum: 0,
      description: 'Failed lines that belong to no group: they failed under an earlier version.',
    }),
  },
  { title: 'BatchErrors' },
)

export type BatchErrors = Static<typeof BatchErrors>
