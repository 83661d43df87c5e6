// GET /v1/usage/entities and /v1/usage/hours: usage by day, and finished lines of the last hours.
import { Readable } from 'node:stream'
import { type Static, type TObject, Type } from 'typebox'
import type { TimelinePoint } from '../../domain/batch-statistics.ts'
import { unixSeconds } from '../../domain/clock.ts'
import { DAY_MS, dayOf, dayText, parseDay, startOfDay } from '../../domain/days.ts'
import { invalidParam } from '../../domain/errors.ts'
import { recordOf } from '../../domain/json-record.ts'
import { DAY_SUMS } from '../../domain/line-sums.ts'
import { FREE, usd, usdLiteral } from '../../domain/money.ts'
import { readHours } from '../../results/batch-statistics.ts'
import type { ProjectRow } from '../../store/schema.ts'
import {
  addUsageSums,
  listUsage,
  TooManyGroups,
  USAGE_COLUMNS,
  type UsageColumn,
  type UsageFilter,
  type UsageGroupRow,
  type UsageSums,
} from '../../store/usage.ts'
import { listLiveWorkers } from '../../store/workers.ts'
import { spreadsheetRecord as record } from '../../tables/csv-writer.ts'
import { FOCUS_COLUMNS, focusRows } from '../../tables/focus.ts'
import type { TableWriter } from '../../tables/table.ts'
import { between, maybeText } from '../../wire/shape.ts'
import { USAGE_COUNTS, USAGE_GROUPS, USAGE_TOTALS, UsageHours, UsageObject } from '../../wire/usage.ts'
import { EVERY_PROJECT, projectsOf } from '../object-routes.ts'
import { attachment } from '../response/send-error.ts'
import { PARQUET, TABLE_TYPES, tablePieces } from '../response/table-stream.ts'
import { type App, type RouteDependencies, route } from '../route.ts'

/** The most groups of a report in JSON, which is built in memory. */
const GROUPS_MAX = 10_000
const HOURS = 24
const HOURS_MAX = 168
const CSV = 'text/csv'

export function usageRoutes(app: App, { store, clock, reads, models, region }: RouteDependencies): void {
  route(app, 'GET /v1/usage/entities', {
    access: ['limits:read', 'usage:read'],
    operation: 'getUsage',
    summary: 'Read usage and cost',
    description:
      'The settled usage: a line counts as soon as its result is committed, on the UTC day on which it was reserved under a limit, else on which it finished.',
    answer: UsageObject,
    rules: { querystring: USAGE_RULES },
    also: { [CSV]: Type.String(), [PARQUET]: Type.String() },
    errors: ['project_not_found'],
    query: UsageQuery,
    async handler(request, caller, reply) {
      const { format, group_by, project_id: asked } = request.query
      const projects = await projectsOf(store.read, caller, asked)
      if (format === 'focus' ? group_by !== undefined : asked === EVERY_PROJECT)
        throw format === 'focus'
          ? invalidParam('group_by', '`format=focus` has groups of its own: leave `group_by` out.')
          : invalidParam('project_id', '`project_id=all` needs `format=focus`.')
      const [{ id: project_id } = { id: caller.project_id }] = projects
      const { filter, by } = readUsageQuery(project_id, request.query)
      const read = await reads.open(caller.project_id, reply.raw)
      if (format === 'focus') {
        const format = request.headers.accept?.includes(PARQUET) ? 'parquet' : 'csv'
        reply.header('content-disposition', attachment(`focus.${format}`))
        const order = { format, spreadsheet: false } as const
        const table = tablePieces(FOCUS_COLUMNS, order, (writer) => writeFocus(writer, projects, filter))
        return reply.type(TABLE_TYPES[format]).send(read.stream(table))
      }
      const pieces = read.inTurns(listUsage(store.read, filter, by))
      if (request.query.format === 'csv') {
        reply.header('content-disposition', attachment('usage.csv'))
        // Too many groups are an error only before the first byte is sent.
        const first = by[0] === 'entity' ? [] : await collected(pieces, Number.POSITIVE_INFINITY)
        return reply.type(`${CSV}; charset=utf-8`).send(Readable.from(usageCsv(first, pieces, by)))
      }
      return showUsage(filter, by, await collected(pieces, GROUPS_MAX))
    },
  })

  async function* writeFocus(
    writer: TableWriter,
    projects: readonly Pick<ProjectRow, 'id' | 'name'>[],
    filter: UsageFilter,
  ): AsyncGenerator<void> {
    for (const project of projects)
      for await (const groups of listUsage(
        store.read,
        { ...filter, project_id: project.id },
        USAGE_COLUMNS,
      )) {
        for (const { day = 0, entity = '', entity_type = '', key = '', model = '', ...sums } of groups) {
          const usage = { ...sums, entity, entity_type, key, model, region, project, start: startOfDay(day) }
          for (const cells of focusRows(usage, models.get(model)?.price ?? FREE))
            await writer.write({ cells })
        }
        yield
      }
    await writer.end()
    yield
  }

  route(app, 'GET /v1/usage/hours', {
    access: ['limits:read', 'usage:read'],
    operation: 'getUsageHours',
    summary: 'Read what finished in the last hours',
    description:
      'Lines, tokens and cost by hour of the clock, from the timelines of batches: as exact as these, whose intervals grow to a two-hundredth of the time that a batch takes.',
    answer: UsageHours,
    query: { hours: Type.Optional(between(1, HOURS_MAX, 'How many, with the one that it is.', HOURS)) },
    async handler(request, { project_id }, reply): Promise<UsageHours> {
      const now = clock.now()
      const read = await reads.open(project_id, reply.raw)
      let hours: readonly TimelinePoint[] = []
      for await (const counted of read.inTurns(
        readHours(store.read, project_id, request.query.hours ?? HOURS, now),
      ))
        hours = counted
      const start = hours[0]?.at ?? now
      const workers = await listLiveWorkers(store.read)
      const left = Map.groupBy(
        workers.flatMap(({ report }) => report?.live_hours ?? []),
        ([at]) => at,
      )
      return {
        object: 'usage_hours',
        start: unixSeconds(start),
        end: unixSeconds(now),
        hours: hours.map(({ at, cost_nanos, ...counts }) => ({
          ...{ at: unixSeconds(at), ...counts, cost_usd: usd(cost_nanos) },
          ...(left.has(at) && { live_left: meanOf(left.get(at)!.map(([, share]) => share)) }),
        })),
      }
    },
  })
}

function meanOf(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length
}

/** Collects the groups of a report. Throws invalid_request beyond `max`. */
async function collected(
  pieces: AsyncIterable<readonly UsageGroupRow[]>,
  max: number,
): Promise<UsageGroupRow[]> {
  const groups: UsageGroupRow[] = []
  try {
    for await (const some of pieces) {
      groups.push(...some)
      if (groups.length > max) throw new TooManyGroups()
    }
  } catch (error) {
    if (!(error instanceof TooManyGroups)) throw error
    const message =
      'There are too many groups for one report. Ask for fewer days or entities, or for `format=csv` with groups by `entity`.'
    throw invalidParam('group_by', message)
  }
  return groups
}

// Reads the query of a usage report.

const DAY_FORM = 'a day of the UTC calendar such as 2026-01-31, or Unix seconds'

const UsageQuery = {
  entity: maybeText('Only usage of this entity.'),
  entity_type: maybeText('Only usage of entities of this type.'),
  key: maybeText('Only usage of batches that were created with the API key of this ID.'),
  model: maybeText('Only usage of this model.'),
  start: maybeText(`The first day of the report: ${DAY_FORM}.`),
  end: maybeText(`The day after the last day of the report: ${DAY_FORM}.`),
  group_by: Type.Optional(
    Type.String({
      description: `Any of ${USAGE_GROUPS.map((name) => `\`${name}\``).join(', ')}, separated by commas.`,
      examples: ['entity,day'],
    }),
  ),
  project_id: maybeText('Another project; `all` of them with `format=focus`. Needs the scope `operator`.'),
  format: Type.Optional(
    Type.Enum(['json', 'csv', 'focus'], {
      description:
        '`focus`: FOCUS 1.3, a row for each day, project, entity, key, model and meter, as CSV, or as Parquet with `Accept: application/vnd.apache.parquet`.',
    }),
  ),
}
/** The shape of the days `start` and `end` of a usage report. */
const Day = { anyOf: [{ format: 'date' }, { pattern: '^[0-9]{1,11}$' }] }
const GROUP = `(${USAGE_GROUPS.join('|')})`

const USAGE_RULES = {
  properties: { start: Day, end: Day, group_by: { pattern: `^(${GROUP}( *, *${GROUP})*)?$` } },
}

type UsageQuery = Static<TObject<typeof UsageQuery>>

/** Reads the query of a report. Throws invalid_request with the parameter's name. */
function readUsageQuery(project_id: string, query: UsageQuery): { filter: UsageFilter; by: UsageColumn[] } {
  const { entity, entity_type, key, model, start, end, group_by } = query
  const from_day = start === undefined ? undefined : dayFrom('start', start, Math.floor)
  const to_day = end === undefined ? undefined : dayFrom('end', end, Math.ceil)
  if (from_day !== undefined && to_day !== undefined && to_day < from_day)
    throw invalidParam('end', '`end` must not lie before `start`.')
  return {
    filter: {
      project_id,
      entity: entity?.trim(),
      entity_type: entity_type?.trim(),
      key,
      model,
      from_day,
      to_day,
    },
    by: columns(group_by),
  }
}

/** Parses a day; a time within a day stands for the whole day, as start and as end. */
function dayFrom(param: 'start' | 'end', text: string, round: (days: number) => number): number {
  const day = /^\d{1,11}$/.test(text) ? round((Number(text) * 1000) / DAY_MS) : parseDay(text)
  if (day === null || day > LAST_DAY) throw invalidParam(param, `\`${param}\` must be ${DAY_FORM}.`)
  return day
}

/** The last day that a Date can have. */
const LAST_DAY = dayOf(8.64e15)

/** The columns of a grouping, in the store's order. */
function columns(group_by: string | undefined): UsageColumn[] {
  if (group_by === undefined || group_by === '') return []
  const names = group_by.split(',').map((name) => name.trim())
  const unknown = names.find((name) => !USAGE_GROUPS.some((group) => group === name))
  if (unknown !== undefined)
    throw invalidParam(
      'group_by',
      `\`group_by\` must hold any of ${USAGE_GROUPS.join(', ')}, not ${JSON.stringify(unknown.slice(0, 40))}.`,
    )
  return USAGE_COLUMNS.filter((column) => names.includes(column))
}

const NO_USAGE: UsageSums = recordOf(DAY_SUMS, () => 0)

function showUsage(
  { entity, entity_type, from_day, to_day }: UsageFilter,
  by: readonly UsageColumn[],
  groups: readonly UsageGroupRow[],
): UsageObject {
  const shown = groups.map((row) => ({ ...names(row, by), ...totals(row) }))
  return {
    object: 'usage',
    start: from_day === undefined ? null : unixSeconds(startOfDay(from_day)),
    end: to_day === undefined ? null : unixSeconds(startOfDay(to_day)),
    entity: entity ?? null,
    entity_type: entity_type ?? null,
    ...totals(groups.reduce<UsageSums>((sums, group) => addUsageSums(sums, group), NO_USAGE)),
    groups: by.length > 0 ? shown : undefined,
  }
}

function totals(sums: UsageSums): Record<keyof typeof USAGE_TOTALS, number> {
  const counts = recordOf(USAGE_COUNTS, (name) => sums[name])
  return { lines: sums.succeeded + sums.failed, ...counts, cost_usd: usd(sums.cost_nanos) }
}

function names(row: UsageGroupRow, by: readonly UsageColumn[]): Record<string, string | null> {
  const entries = by.map((column) => [column, column === 'day' ? dayText(row.day ?? 0) : row[column] || null])
  return Object.fromEntries(entries)
}

// A usage report as CSV. Names come from callers, and the report is opened in spreadsheets.

/** The rows of a report as CSV, a header first; without groups one row of totals. */
async function* usageCsv(
  first: readonly UsageGroupRow[],
  rest: AsyncIterable<readonly UsageGroupRow[]>,
  by: readonly UsageColumn[],
): AsyncGenerator<string> {
  const text = (groups: readonly UsageGroupRow[]): string =>
    groups.map((group) => record([...Object.values(names(group, by)), ...sumCells(group)])).join('')
  yield record([...by, ...Object.keys(USAGE_TOTALS)]) + text(first)
  for await (const groups of rest) if (groups.length > 0) yield text(groups)
}

function sumCells(sums: UsageSums): string[] {
  return Object.values({ ...totals(sums), cost_usd: usdLiteral(sums.cost_nanos) }).map(String)
}
