// Reads the query of a usage report.

import type { Static } from 'typebox'
import { Type } from 'typebox'
import { ApiError } from '../../../domain/errors.ts'
import { DAY_MS, dayOf, parseDay } from '../../../domain/utc-day.ts'
import { USAGE_COLUMNS, type UsageColumn, type UsageFilter } from '../../../store/usage-report.ts'
import { USAGE_GROUPS } from '../../../wire/usage.ts'

const DAY_FORM = 'a day of the UTC calendar such as 2026-01-31, or Unix seconds'

export const UsageQuery = Type.Object({
  entity: Type.Optional(Type.String({ description: 'Only usage of this entity.' })),
  entity_type: Type.Optional(Type.String({ description: 'Only usage of entities of this type.' })),
  start: Type.Optional(Type.String({ description: `The first day of the report: ${DAY_FORM}.` })),
  end: Type.Optional(Type.String({ description: `The day after the last day of the report: ${DAY_FORM}.` })),
  group_by: Type.Optional(
    Type.String({
      description: `Any of ${USAGE_GROUPS.map((name) => `\`${name}\``).join(', ')}, separated by commas.`,
      examples: ['entity,day'],
    }),
  ),
  format: Type.Optional(Type.Enum(['json', 'csv'])),
})
/** Of `start` and `end`. */
const Day = { anyOf: [{ format: 'date' }, { pattern: '^[0-9]{1,11}$' }] }
const GROUP = `(${USAGE_GROUPS.join('|')})`

export const USAGE_RULES = {
  properties: { start: Day, end: Day, group_by: { pattern: `^(${GROUP}( *, *${GROUP})*)?$` } },
}

export type UsageQuery = Static<typeof UsageQuery>

/** Throws invalid_request with the parameter's name. */
export function readUsageQuery(
  project_id: string,
  query: UsageQuery,
): { filter: UsageFilter; by: UsageColumn[] } {
  const { entity, entity_type, start, end, group_by } = query
  const from_day = start === undefined ? undefined : dayFrom('start', start, Math.floor)
  const to_day = end === undefined ? undefined : dayFrom('end', end, Math.ceil)
  if (from_day !== undefined && to_day !== undefined && to_day < from_day)
    throw new ApiError('invalid_request', '`end` must not lie before `start`.', { param: 'end' })
  return {
    filter: { project_id, entity: entity?.trim(), entity_type: entity_type?.trim(), from_day, to_day },
    by: columns(group_by),
  }
}

/** A time within a day stands for the whole day, as start and as end. */
function dayFrom(param: 'start' | 'end', text: string, round: (days: number) => number): number {
  const day = /^\d{1,11}$/.test(text) ? round((Number(text) * 1000) / DAY_MS) : parseDay(text)
  if (day === null || day > LAST_DAY)
    throw new ApiError('invalid_request', `\`${param}\` must be ${DAY_FORM}.`, { param })
  return day
}

/** The largest time of a Date. */
const LAST_DAY = dayOf(8.64e15)

/** In the order of the store's columns, not of the query. */
function columns(group_by: string | undefined): UsageColumn[] {
  if (group_by === undefined || group_by === '') return []
  const names = group_by.split(',').map((name) => name.trim())
  const unknown = names.find((name) => !USAGE_GROUPS.some((group) => group === name))
  if (unknown !== undefined)
    throw new ApiError(
      'invalid_request',
      `\`group_by\` must hold any of ${USAGE_GROUPS.join(', ')}, not ${JSON.stringify(unknown.slice(0, 40))}.`,
      { param: 'group_by' },
    )
  return USAGE_COLUMNS.filter((column) => names.includes(column))
}
