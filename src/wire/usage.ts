// The shape of usage and its cost in the API.
import { type Static, Type } from 'typebox'

export const USAGE_GROUPS = ['entity', 'entity_type', 'model', 'day'] as const

const Count = Type.Integer({ minimum: 0 })
const TextOrNull = Type.Union([Type.String(), Type.Null()])
const SecondsOrNull = Type.Union([Type.Integer({ minimum: 0 }), Type.Null()])

const totals = {
  lines: Type.Integer({ minimum: 0, description: 'Lines that ended.' }),
  succeeded: Type.Integer({ minimum: 0, description: 'With a result; only these cost anything.' }),
  failed: Count,
  prompt_tokens: Count,
  completion_tokens: Count,
  total_tokens: Count,
  cost_usd: Type.Number({ minimum: 0 }),
}

export const UsageObject = Type.Object(
  {
    object: Type.Literal('usage'),
    start: Type.Union(SecondsOrNull.anyOf, {
      description: 'Unix seconds; the beginning of the first day counted. Null: all from the first on.',
    }),
    end: Type.Union(SecondsOrNull.anyOf, {
      description: 'Unix seconds; the end of the last day counted. Null: all up to now.',
    }),
    entity: TextOrNull,
    entity_type: TextOrNull,
    ...totals,
    groups: Type.Optional(
      Type.Array(
        Type.Object({
          entity: Type.Optional(TextOrNull),
          entity_type: Type.Optional(TextOrNull),
          day: Type.Optional(Type.String({ description: 'Of the UTC calendar, as `2026-01-31`.' })),
          model: Type.Optional(TextOrNull),
          ...totals,
        }),
        { description: 'With `group_by`. Null: lines that name no entity, none with a type, or no model.' },
      ),
    ),
  },
  {
    title: 'Usage',
    examples: [
      {
        object: 'usage',
        start: 1767225600,
        end: 1769904000,
        entity: null,
        entity_type: 'user',
        lines: 1200,
        succeeded: 1188,
        failed: 12,
        prompt_tokens: 96000,
        completion_tokens: 48000,
        total_tokens: 144000,
        cost_usd: 0.0288,
      },
    ],
  },
)
export type UsageObject = Static<typeof UsageObject>
