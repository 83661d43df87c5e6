// The shape of usage and its cost in the API.
import { type Static, Type } from 'typebox'
import { amount, arrayOf, count, maybeText, object, orNull } from './shape.ts'

export const USAGE_GROUPS = ['entity', 'entity_type', 'model', 'day'] as const

const Count = count()
const TextOrNull = orNull(Type.String())

/** Of the report, and of each of its groups. */
export const USAGE_TOTALS = {
  lines: count('Lines that ended.'),
  succeeded: count('With a result; only these cost anything.'),
  failed: Count,
  prompt_tokens: Count,
  completion_tokens: Count,
  total_tokens: Count,
  cost_usd: amount(),
}

export const UsageObject = object(
  'Usage',
  {
    object: Type.Literal('usage'),
    start: orNull(
      count(),
      'Unix seconds; the beginning of the first day counted. Null: all from the first on.',
    ),
    end: orNull(count(), 'Unix seconds; the end of the last day counted. Null: all up to now.'),
    entity: TextOrNull,
    entity_type: TextOrNull,
    ...USAGE_TOTALS,
    groups: Type.Optional(
      arrayOf(
        Type.Object({
          entity: Type.Optional(TextOrNull),
          entity_type: Type.Optional(TextOrNull),
          day: maybeText('Of the UTC calendar, as `2026-01-31`.'),
          model: Type.Optional(TextOrNull),
          ...USAGE_TOTALS,
        }),
        'With `group_by`. Null: lines that name no entity, none with a type, or no model.',
      ),
    ),
  },
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
)
export type UsageObject = Static<typeof UsageObject>
