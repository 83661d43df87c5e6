// Describes usage and its cost as the API shows them.
import { type Static, Type } from 'typebox'
import { recordOf } from '../domain/json-record.ts'
import { DAY_SUMS, LINE_SUMS, type LineSum, type SumOf } from '../domain/line-sums.ts'
import { amount, arrayOf, count, maybeText, object, orNull, timestamp } from './shape.ts'

export const USAGE_GROUPS = ['entity', 'entity_type', 'model', 'day', 'key'] as const

const TextOrNull = orNull(Type.String())

/** The sums of usage that the API shows unchanged. */
export const USAGE_COUNTS = DAY_SUMS.filter(
  (name): name is Exclude<SumOf<'usage_days'>, 'cost_nanos'> => name !== 'cost_nanos',
)

/** The totals of the report, and of each of its groups. */
export const USAGE_TOTALS = {
  lines: count('Lines that ended.'),
  ...recordOf(USAGE_COUNTS, (name) => {
    const { text }: LineSum = LINE_SUMS[name]
    return count(text)
  }),
  cost_usd: amount(),
}

export const UsageObject = object(
  'Usage',
  {
    object: Type.Literal('usage'),
    start: orNull(
      Type.Integer(),
      'Unix seconds; the beginning of the first day counted. Null: all from the first on.',
    ),
    end: orNull(Type.Integer(), 'Unix seconds; the end of the last day counted. Null: all up to now.'),
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
          key: Type.Optional(TextOrNull),
          ...USAGE_TOTALS,
        }),
        'With `group_by`. Null: lines that name no entity, none with a type, or no model; a key that was not recorded.',
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
    not_run: 2,
    prompt_tokens: 96000,
    completion_tokens: 48000,
    total_tokens: 144000,
    cost_usd: 0.0288,
  },
)
export type UsageObject = Static<typeof UsageObject>

// The lines that finished in each of the last hours.

const { succeeded: completed, failed, not_run, prompt_tokens, completion_tokens, cost_usd } = USAGE_TOTALS

export const UsageHours = object('UsageHours', {
  object: Type.Literal('usage_hours'),
  start: timestamp('the beginning of the first hour.'),
  end: timestamp('now: the last hour is not over.'),
  hours: arrayOf(
    Type.Object({
      at: timestamp('the beginning of the hour.'),
      ...{ completed, failed, not_run, prompt_tokens, completion_tokens, cost_usd },
      live_left: Type.Optional(
        amount(
          'What live traffic left for lines, from 0 to 1: on servers that answer other requests too, as the workers that run now have seen it since they started.',
        ),
      ),
    }),
    'Each hour once, in order. Lines count in the hour in which the interval of the timeline of their batch begins.',
  ),
})
export type UsageHours = Static<typeof UsageHours>
