// How a batch got on, as points for a chart.
import { type Static, Type } from 'typebox'
import { timestamp } from './timestamp.ts'

const Count = Type.Integer({ minimum: 0 })

export const BatchTimeline = Type.Object(
  {
    object: Type.Literal('batch_timeline'),
    batch_id: Type.String(),
    interval_s: Type.Number({
      exclusiveMinimum: 0,
      description: 'How much time a point covers; it grows as the batch does.',
    }),
    points: Type.Array(
      Type.Object({
        at: timestamp('when the interval begins.'),
        completed: Count,
        failed: Count,
        prompt_tokens: Count,
        completion_tokens: Count,
        cost_usd: Type.Number({ minimum: 0 }),
      }),
      {
        description:
          'What finished in each interval, in order of time; intervals in which nothing did are left out.',
      },
    ),
    states: Type.Array(Type.Object({ status: Type.String(), at: timestamp('when it was entered.') }), {
      description: 'The statuses that the batch has had, with their times.',
    }),
  },
  { title: 'BatchTimeline' },
)

export type BatchTimeline = Static<typeof BatchTimeline>
