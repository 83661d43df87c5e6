// The page of usage shows tokens and cost: by day, and by entity or model.
import type { VNode } from 'preact'
import type { UsageObject } from '../../wire/usage.ts'
import { pathWith } from '../api.ts'
import { now } from '../browser-clock.ts'
import { Chart, type ChartSeries } from '../chart.tsx'
import { compact, count, percent, usd, usdColumn, usdExact } from '../format.ts'
import { type MessageKey, t } from '../i18n.ts'
import { Entity, LinkButton } from '../parts/button.tsx'
import { optionsOf } from '../parts/field.tsx'
import { days, type Filter, FilterBar, FilterChip } from '../parts/filters.tsx'
import { Empty, Loaded } from '../parts/notice.tsx'
import { amountFigure, costFigure, Figures, Page, Section } from '../parts/page.tsx'
import { failedText } from '../parts/status.tsx'
import { type Column, Table } from '../parts/table.tsx'
import { useGet } from '../resource.ts'
import { useAddress } from '../router.ts'

type Row = NonNullable<UsageObject['groups']>[number]

const PATH = '/v1/usage/entities'
const DAY_S = 86_400
const GROUPS = ['entity', 'model', 'entity_type', 'day'] as const
const METRICS = ['cost', 'tokens'] as const
type Metric = (typeof METRICS)[number]
const RANGES = ['month', '7', '30', '90', 'days'] as const
const STEPS = ['day', 'week', 'month'] as const
type Step = (typeof STEPS)[number]
/** What of rows the table shows. */
const SUMMED = ['lines', 'failed', 'not_run', 'total_tokens', 'cost_usd'] as const
const COLORS = ['--series-1', '--series-2', '--series-3', '--series-4', '--series-5']
const OTHERS = '--series-6'

const dayBefore = (day: string): string => dayText(Date.parse(day) / 1000 - DAY_S)
const dayText = (seconds: number): string => new Date(seconds * 1000).toISOString().slice(0, 10)

/** The first days of this month and of the last, and today, by the UTC calendar. */
function months(): { last: string; current: string; sameDayOfLast: string; tomorrow: string } {
  const date = new Date(now())
  const day = (month: number, of: number): string =>
    dayText(Date.UTC(date.getUTCFullYear(), date.getUTCMonth() + month, of) / 1000)
  return {
    last: day(-1, 1),
    current: day(0, 1),
    sameDayOfLast: day(-1, date.getUTCDate() + 1),
    tomorrow: day(0, date.getUTCDate() + 1),
  }
}

export function Usage(): VNode {
  const { query } = useAddress()
  const by = GROUPS.find((name) => name === query.get('by')) ?? 'entity'
  const metric = METRICS.find((name) => name === query.get('metric')) ?? 'cost'
  const range = RANGES.find((name) => name === query.get('range')) ?? 'month'
  const { last, current, sameDayOfLast, tomorrow } = months()
  const step = STEPS.find((name) => name === query.get('step')) ?? 'day'
  const entity = query.get('entity') ?? ''
  const chosen = (name: string, other: string): string =>
    /^\d{4}-\d\d-\d\d$/.test(query.get(name) ?? '') ? (query.get(name) ?? other) : other
  const since = range === 'days' ? chosen('since', current) : current
  const until = range === 'days' ? chosen('until', dayBefore(tomorrow)) : dayBefore(tomorrow)
  const start =
    range === 'month' || range === 'days' ? since : dayText(now() / 1000 - (Number(range) - 1) * DAY_S)
  const end = dayText(Math.max(Date.parse(until), Date.parse(start)) / 1000 + DAY_S)
  const usage = useGet<UsageObject>(PATH, { start, end, entity, group_by: by === 'day' ? by : `day,${by}` })
  const before = useGet<UsageObject>(PATH, { start: last, end: sameDayOfLast, entity })
  return (
    <Page
      title={t('nav.usage')}
      actions={
        <LinkButton
          label="CSV"
          icon="download"
          href={pathWith(PATH, {
            start,
            end,
            entity,
            group_by: by === 'day' ? by : `${by},day`,
            format: 'csv',
          })}
          download={`usage-${start}.csv`}
        />
      }
    >
      <FilterBar
        filters={[
          choice('range', 'usage.range', RANGES, range),
          ...(range === 'days'
            ? days().map((filter) => ({ ...filter, value: filter.name === 'since' ? since : until }))
            : []),
          choice('step', 'usage.step', STEPS, step),
          choice('by', 'usage.by', GROUPS, by),
          choice('metric', 'usage.metric', METRICS, metric),
        ]}
      />
      {entity === '' ? null : <FilterChip name="entity" title={t('line.entity')} value={entity} />}
      <Loaded resource={usage}>
        {(data) => (
          <Report
            usage={data}
            before={range === 'month' ? before.data : null}
            by={by}
            metric={metric}
            start={start}
            end={end}
            step={step}
          />
        )}
      </Loaded>
    </Page>
  )
}

function choice<Prefix extends MessageKey, Name extends string>(
  name: string,
  label: Prefix & (`${Prefix}.${Name}` extends MessageKey ? unknown : never),
  names: readonly Name[],
  value: Name,
): Filter {
  return { name, label: t(label), options: optionsOf(label, names), value }
}

function Report({
  usage,
  before,
  by,
  metric,
  start,
  end,
  step,
}: {
  usage: UsageObject
  before: UsageObject | null
  by: (typeof GROUPS)[number]
  metric: Metric
  start: string
  end: string
  step: Step
}): VNode {
  if (usage.lines === 0)
    return (
      <Empty title={t('usage.none')}>
        <p>{t('usage.noneText')}</p>
      </Empty>
    )
  const rows = usage.groups ?? []
  const nameOf = (row: Row): string =>
    by === 'day' ? periodOf(row.day ?? '', step) : (row[by] ?? t('usage.unnamed'))
  const totals = new Map<string, Row>()
  for (const row of rows) totals.set(nameOf(row), added(totals.get(nameOf(row)), row))
  const sorted = [...totals].sort(([nameA, a], [nameB, b]) =>
    by === 'day' ? (nameA < nameB ? 1 : -1) : b.cost_usd - a.cost_usd || b.total_tokens - a.total_tokens,
  )
  const cost = usdColumn(sorted.map(([, { cost_usd }]) => cost_usd))
  const columns: Column<readonly [string, Row]>[] = [
    {
      title: t(by === 'day' ? `usage.step.${step}` : `usage.by.${by}`),
      main: true,
      cell: ([name, row]) => (by === 'entity' && row.entity ? <Entity name={row.entity} /> : name),
    },
    { title: t('lines.title'), align: 'end', cell: ([, { lines }]) => count(lines) },
    {
      title: t('batch.failedLines'),
      minor: true,
      align: 'end',
      cell: ([, { failed, not_run }]) => (
        <>
          <span class={failed === not_run ? 'muted' : ''}>{count(failed - not_run)}</span>
          {not_run > 0 ? <div class="muted small">{t('errors.notRun', { n: not_run })}</div> : null}
        </>
      ),
    },
    {
      title: t('line.usage'),
      align: 'end',
      cell: ([, { total_tokens }]) => <span title={count(total_tokens)}>{compact(total_tokens)}</span>,
    },
    {
      title: t('batch.cost'),
      align: 'end',
      cell: ([, { cost_usd }]) => <span title={usdExact(cost_usd)}>{cost(cost_usd)}</span>,
    },
    {
      title: t('usage.share'),
      minor: true,
      align: 'end',
      cell: ([, { cost_usd }]) => <span class="muted">{percent(cost_usd, usage.cost_usd)}</span>,
    },
  ]
  const change = before && before.cost_usd > 0 ? t('usage.lastMonth', { cost: usd(before.cost_usd) }) : null
  const { times, series } = stacked(
    rows,
    by === 'day' ? [t('all')] : sorted.map(([name]) => name),
    by === 'day' ? () => t('all') : nameOf,
    metric,
    { start, end, step },
  )
  return (
    <div class="stack wide">
      <div class="card stack">
        <Figures
          figures={[
            costFigure(t('batch.cost'), usage.cost_usd, change),
            {
              title: t('lines.title'),
              value: count(usage.lines),
              note: failedText(usage.failed - usage.not_run, usage.not_run) || null,
            },
            amountFigure(t('new.inputTokens'), usage.prompt_tokens),
            amountFigure(t('timeline.completionTokens'), usage.completion_tokens),
          ]}
        />
        <Chart
          label={t(metric === 'cost' ? 'usage.chart' : 'usage.chartTokens')}
          times={times}
          series={series}
          show={metric === 'cost' ? usd : compact}
          height={220}
          barS={{ day: 1, week: 7, month: 28 }[step] * DAY_S}
        />
      </div>
      <Section title={t(`usage.by.${by}` satisfies MessageKey)}>
        <Table label={t('nav.usage')} columns={columns} rows={sorted} />
      </Section>
    </div>
  )
}

/** The first day of the week, from Monday on, or of the month that a day is of. */
function periodOf(day: string, step: Step): string {
  if (step === 'month') return `${day.slice(0, 8)}01`
  const sinceMonday = (new Date(day).getUTCDay() + 6) % 7
  return step === 'day' ? day : dayText(Date.parse(day) / 1000 - sinceMonday * DAY_S)
}

function added(a: Row | undefined, b: Row): Row {
  if (!a) return b
  const sums = SUMMED.map((name) => [name, a[name] + b[name]])
  return { ...a, ...Object.fromEntries(sums) }
}

/** Each series is its own amount and that of all below it, so that drawing them in order stacks them. */
function stacked(
  rows: readonly Row[],
  names: readonly string[],
  nameOf: (row: Row) => string,
  metric: Metric,
  { start, end, step }: { start: string; end: string; step: Step },
): { times: number[]; series: ChartSeries[] } {
  const first = Date.parse(start) / 1000
  const days = Math.round((Date.parse(end) / 1000 - first) / DAY_S)
  const periods = [
    ...new Set(Array.from({ length: days }, (_, i) => periodOf(dayText(first + i * DAY_S), step))),
  ]
  const times = periods.map((day) => Date.parse(day) / 1000)
  const shown = names.slice(0, COLORS.length)
  const layers = [...shown, ...(names.length > shown.length ? [t('usage.others')] : [])]
  const amounts = layers.map(() => times.map(() => 0))
  for (const row of rows) {
    const period = periods.indexOf(periodOf(row.day ?? '', step))
    const at = shown.indexOf(nameOf(row))
    const values = amounts[at < 0 ? layers.length - 1 : at]
    const amount = metric === 'cost' ? row.cost_usd : row.total_tokens
    if (values && period >= 0) values[period] = (values[period] ?? 0) + amount
  }
  const sums = times.map((_, i) => amounts.map((values) => values[i] ?? 0))
  const series = layers.map((title, layer) => ({
    title,
    color: COLORS[layer] ?? OTHERS,
    values: sums.map((parts) => parts.slice(0, layer + 1).reduce((a, b) => a + b, 0) || null),
  }))
  return { times, series: series.reverse() }
}
