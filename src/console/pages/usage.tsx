// The page of usage shows tokens and cost: by day, and by entity or model.
import type { VNode } from 'preact'
import { DAY_MS, dayOf, dayText, parseDay, startOfDay } from '../../domain/days.ts'
import { windowAt } from '../../domain/limit.ts'
import type { UsageObject } from '../../wire/usage.ts'
import { pathWith, serviceUrl } from '../api.ts'
import { now } from '../browser-clock.ts'
import { useCell } from '../cell.ts'
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
import { health } from '../problems.ts'
import { useGet } from '../resource.ts'
import { useAddress } from '../router.ts'
import { Gauge } from './limits.tsx'

type Row = NonNullable<UsageObject['groups']>[number]

const PATH = '/v1/usage/entities'
const GROUPS = ['entity', 'model', 'entity_type', 'key', 'day'] as const
const METRICS = ['cost', 'tokens'] as const
type Metric = (typeof METRICS)[number]
const RANGES = ['month', '7', '30', '90', 'days'] as const
const STEPS = ['day', 'week', 'month'] as const
type Step = (typeof STEPS)[number]
/** The sums of a usage row that the table shows. */
const SUMMED = ['lines', 'failed', 'not_run', 'total_tokens', 'cost_usd'] as const
const COLORS = ['--series-1', '--series-2', '--series-3', '--series-4', '--series-5']
const OTHERS = '--series-6'

export function Usage(): VNode {
  const { query } = useAddress()
  const by = GROUPS.find((name) => name === query.get('by')) ?? 'entity'
  const metric = METRICS.find((name) => name === query.get('metric')) ?? 'cost'
  const range = RANGES.find((name) => name === query.get('range')) ?? 'month'
  const today = dayOf(now())
  const month = windowAt('month', now()).start
  const [first, firstOfLast] = [dayOf(month), dayOf(windowAt('month', month - 1).start)]
  const step = STEPS.find((name) => name === query.get('step')) ?? 'day'
  const entity = query.get('entity') ?? ''
  const chosen = (name: string, other: number): number =>
    (range === 'days' ? parseDay(query.get(name) ?? '') : null) ?? other
  const until = chosen('until', today)
  const start = range === 'month' || range === 'days' ? chosen('since', first) : today - (Number(range) - 1)
  const end = Math.max(until, start) + 1
  const caps = useCell(health).caps.filter(({ name }) => entity !== '' && name === entity)
  const shown = { start: dayText(start), end: dayText(end), entity }
  const usage = useGet<UsageObject>(PATH, { ...shown, group_by: by === 'day' ? by : `day,${by}` })
  // The last month may be shorter than this one.
  const sameDayOfLast = dayText(Math.min(firstOfLast + today - first + 1, first))
  const before = useGet<UsageObject>(PATH, { start: dayText(firstOfLast), end: sameDayOfLast, entity })
  return (
    <Page
      title={t('nav.usage')}
      actions={
        <LinkButton
          label="CSV"
          icon="download"
          href={serviceUrl(
            pathWith(PATH, { ...shown, group_by: by === 'day' ? by : `${by},day`, format: 'csv' }),
          )}
          download={`usage-${shown.start}.csv`}
        />
      }
    >
      <FilterBar
        filters={[
          choice('range', 'usage.range', RANGES, range),
          ...(range === 'days'
            ? days().map((filter) => ({ ...filter, value: dayText(filter.name === 'since' ? start : until) }))
            : []),
          choice('step', 'usage.step', STEPS, step),
          choice('by', 'usage.by', GROUPS, by),
          choice('metric', 'usage.metric', METRICS, metric),
        ]}
      />
      {entity === '' ? null : <FilterChip name="entity" title={t('line.entity')} value={entity} />}
      {caps.map((cap) => (
        <Gauge cap={cap} isNamed />
      ))}
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

interface ReportProps {
  usage: UsageObject
  before: UsageObject | null
  by: (typeof GROUPS)[number]
  metric: Metric
  start: number
  end: number
  step: Step
}

function Report({ usage, before, by, metric, start, end, step }: ReportProps): VNode {
  if (usage.lines === 0) return <Empty title={t('usage.none')} text={t('usage.noneText')} />
  const rows = usage.groups ?? []
  const nameOf = (row: Row): string =>
    by === 'day' ? dayText(periodOf(row, step)) : (row[by] ?? t('usage.unnamed'))
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
          barS={{ day: 1, week: 7, month: 28 }[step] * (DAY_MS / 1000)}
        />
      </div>
      <Section title={t(`usage.by.${by}` satisfies MessageKey)}>
        <Table label={t('nav.usage')} columns={columns} rows={sorted} />
      </Section>
    </div>
  )
}

/** The first day of a day's week (from Monday) or month. */
function firstDay(day: number, step: Step): number {
  if (step === 'month') return dayOf(windowAt('month', startOfDay(day)).start)
  // The first of all days was a Thursday.
  return step === 'day' ? day : day - ((day + 3) % 7)
}

const periodOf = (row: Row, step: Step): number => firstDay(parseDay(row.day ?? '') ?? 0, step)

function added(a: Row | undefined, b: Row): Row {
  if (!a) return b
  const sums = SUMMED.map((name) => [name, a[name] + b[name]])
  return { ...a, ...Object.fromEntries(sums) }
}

/** Stacks series: each becomes the sum of itself and those below it, to be drawn in this order. */
function stacked(
  rows: readonly Row[],
  names: readonly string[],
  nameOf: (row: Row) => string,
  metric: Metric,
  { start, end, step }: { start: number; end: number; step: Step },
): { times: number[]; series: ChartSeries[] } {
  const periods = [...new Set(Array.from({ length: end - start }, (_, i) => firstDay(start + i, step)))]
  const times = periods.map((day) => startOfDay(day) / 1000)
  const shown = names.slice(0, COLORS.length)
  const layers = [...shown, ...(names.length > shown.length ? [t('usage.others')] : [])]
  const amounts = layers.map(() => times.map(() => 0))
  for (const row of rows) {
    const period = periods.indexOf(periodOf(row, step))
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
