// The first page shows failures, at-risk batches, open work, and cost.
import type { VNode } from 'preact'
import { useState } from 'preact/hooks'
import { OPEN_STATUSES } from '../../domain/batch.ts'
import type { BatchObject } from '../../wire/batch.ts'
import type { List } from '../../wire/shape.ts'
import type { UsageHours, UsageObject } from '../../wire/usage.ts'
import { get } from '../api.ts'
import { now } from '../browser-clock.ts'
import { useCell } from '../cell.ts'
import { Chart } from '../chart.tsx'
import { count, duration, perSecond, usd } from '../format.ts'
import { type MessageKey, t } from '../i18n.ts'
import { latest, speedOf, useLive } from '../live.ts'
import { Choice, NewBatchButton } from '../parts/button.tsx'
import { FailureNotice, Loading, Notice } from '../parts/notice.tsx'
import { amountFigure, costFigure, Figures, Page, Section, Time } from '../parts/page.tsx'
import { type Column, Table } from '../parts/table.tsx'
import { WaitingReason } from '../parts/text.tsx'
import { type Health, health, isBroken } from '../problems.ts'
import { useGet, useResource } from '../resource.ts'
import { href } from '../router.ts'
import { may } from '../session.ts'
import { BatchTable, FirstBatch } from './batches.tsx'
import { Gauge } from './limits.tsx'

const HOUR_S = 3_600
const NEWEST = 8
const CAPS_SHOWN = 4

export function Overview(): VNode {
  const newest = useGet<List<BatchObject>>('/v1/batches', { limit: NEWEST })
  const known = useCell(health)
  const { batches: pushed, open } = useLive()
  const lastDay = useResource(readHours, [], { about: ['usage'] })
  const rows = (newest.data?.data ?? []).map((batch) => latest(batch, pushed))
  const failure = newest.failure ?? known.failure ?? lastDay.failure
  return (
    <Page title={t('nav.overview')} actions={<NewBatchButton />}>
      <FailureNotice failure={failure} retry={newest.reload} />
      {newest.data ? (
        <div class="stack wide">
          <Broken {...known} />
          {rows.length === 0 ? (
            <FirstBatch />
          ) : (
            <>
              {open ? <Late open={open} /> : <Loading rows={1} />}
              {open ? <Work open={open} /> : null}
              {lastDay.data ? <LastDay usage={lastDay.data} /> : null}
              <Spend {...known} />
              <Section
                title={t('overview.newest')}
                aside={<a href={href('/batches')}>{t('overview.allBatches')}</a>}
              >
                <BatchTable rows={rows} />
              </Section>
            </>
          )}
        </div>
      ) : newest.failure ? null : (
        <Loading rows={6} />
      )}
    </Page>
  )
}

/** The list of problems, each with the page that helps, and of resources that the key may not see. */
function Broken({ problems, unseen, failure }: Health): VNode {
  return (
    <Section title={t('overview.broken')}>
      {problems === null && !failure ? <Loading rows={1} /> : null}
      {problems?.length === 0 && !failure ? (
        <Notice tone={unseen.length === 0 ? 'good' : 'info'}>{t('overview.nothingBroken')}</Notice>
      ) : null}
      {problems?.map(({ title, to, text }) => (
        <Notice tone="bad" title={<a href={href(to)}>{t(title)}</a>} key={title + text}>
          {text}
        </Notice>
      ))}
      {unseen.length === 0 ? null : (
        <p class="muted small">{t('overview.unseen', { names: unseen.map((name) => t(name)).join(', ') })}</p>
      )}
    </Section>
  )
}

/** The estimated end of a batch in Unix seconds; Infinity where unknown. */
const doneAt = (batch: BatchObject): number => speedOf(batch).estimated_completion ?? Number.POSITIVE_INFINITY

function isLate(batch: BatchObject): boolean {
  const at = doneAt(batch)
  return (batch.progress?.at_risk ?? false) || (at > batch.expires_at && Number.isFinite(at))
}

function Late({ open }: { open: readonly BatchObject[] }): VNode {
  // Batches that cannot run at all come first.
  const rank = ({ waiting_reason }: BatchObject): number =>
    waiting_reason && isBroken(waiting_reason.code) ? 0 : 1
  const late = open.filter(isLate).sort((a, b) => rank(a) - rank(b) || a.expires_at - b.expires_at)
  const columns: Column<BatchObject>[] = [
    {
      title: t('batch'),
      main: true,
      cell: ({ id, name }) => (
        <a href={href(`/batches/${id}`)} class="row-link">
          {name}
        </a>
      ),
    },
    { title: t('overview.deadline'), cell: ({ expires_at }) => <Time at={expires_at} short /> },
    {
      title: t('overview.doneAt'),
      cell: (batch) =>
        Number.isFinite(doneAt(batch)) ? <Time at={doneAt(batch)} short /> : t('servers.state.unknown'),
    },
    {
      title: t('overview.why'),
      cell: ({ waiting_reason }) =>
        waiting_reason ? <WaitingReason reason={waiting_reason} /> : t('overview.tooSlow'),
    },
  ]
  return (
    <Section title={t('overview.late')}>
      {late.length === 0 ? (
        <Notice tone="good">{t(open.length === 0 ? 'overview.nothingOpen' : 'overview.nothingLate')}</Notice>
      ) : (
        <Table label={t('overview.late')} columns={columns} rows={late} />
      )}
    </Section>
  )
}

/** The amount of open work by state, and its estimated end. */
function Work({ open }: { open: readonly BatchObject[] }): VNode {
  const left = open.reduce(
    (sum, { request_counts: { total, completed, failed } }) => sum + total - completed - failed,
    0,
  )
  const times = open.filter(({ paused_at }) => !paused_at).map(doneAt)
  const known = times.filter(Number.isFinite)
  const last = Math.max(...known)
  const states = OPEN_STATUSES.map((status) => ({
    title: t(`status.${status}` satisfies MessageKey),
    value: (
      <a href={`${href('/batches')}?status=${status}`}>
        {count(open.filter((batch) => batch.status === status).length)}
      </a>
    ),
  }))
  return (
    <div class="card">
      <Figures
        figures={[
          ...states,
          amountFigure(t('overview.linesLeft'), left),
          {
            title: t('overview.doneIn'),
            value: known.length === 0 ? '–' : duration(Math.max(0, last * 1000 - now())),
            note:
              known.length < times.length
                ? t('overview.unknownFor', { n: times.length - known.length })
                : null,
          },
        ]}
      />
    </div>
  )
}

async function readHours(signal: AbortSignal): Promise<UsageHours | null> {
  if (!may('usage:read') && !may('limits:read')) return null
  return await get<UsageHours>('/v1/usage/hours', {}, { signal })
}

type Hour = UsageHours['hours'][number]

const linesOf = ({ completed, failed, not_run }: Hour): number => completed + failed - not_run
const tokensOf = ({ prompt_tokens, completion_tokens }: Hour): number => prompt_tokens + completion_tokens

/** The measures by which the chart shows each hour; lines and tokens as rates per second. */
const MEASURES = {
  lines: { of: linesOf, show: perSecond, isRate: true },
  tokens: { of: tokensOf, show: perSecond, isRate: true },
  cost: { of: ({ cost_usd }: Hour) => cost_usd, show: usd, isRate: false },
}
const MEASURE_NAMES = ['lines', 'tokens', 'cost'] as const

/** The share left for lines below which live traffic is shaded, and the opacity of full live traffic. */
const LIVE_SHOWN = 0.98
const LIVE_OPACITY = 0.5

/** The chart of the last 24 hours, with live traffic. */
function LastDay({ usage: { hours, end } }: { usage: UsageHours }): VNode {
  const [measure, setMeasure] = useState<(typeof MEASURE_NAMES)[number]>('lines')
  const { of, show, isRate } = MEASURES[measure]
  const sum = (value: (hour: Hour) => number): number => hours.reduce((all, hour) => all + value(hour), 0)
  /** The seconds of an hour so far: the last one is not over. */
  const secondsOf = ({ at }: Hour): number => (isRate ? Math.max(1, Math.min(HOUR_S, end - at)) : 1)
  const options = MEASURE_NAMES.map((name) => [name, t(`timeline.${name}`)] as const)
  const label = t(`timeline.${measure}`)
  return (
    <Section
      title={t('overview.lastDay')}
      aside={<Choice label={t('timeline.measure')} options={options} value={measure} choose={setMeasure} />}
    >
      <div class="card stack">
        <Figures
          figures={[
            amountFigure(t('lines.title'), sum(linesOf)),
            amountFigure(t('line.usage'), sum(tokensOf)),
            costFigure(
              t('batch.cost'),
              sum(({ cost_usd }) => cost_usd),
            ),
          ]}
        />
        <Chart
          label={label}
          times={hours.map(({ at }) => at)}
          series={[
            {
              title: label,
              color: '--accent',
              values: hours.map((hour) => of(hour) / secondsOf(hour) || null),
            },
          ]}
          shades={hours
            .filter(({ live_left = 1 }) => live_left < LIVE_SHOWN)
            .map(({ at, live_left = 1 }) => ({
              ...{ start: at, end: at + HOUR_S, color: '--fill-warn' },
              title: t('overview.live'),
              opacity: (1 - live_left) * LIVE_OPACITY,
            }))}
          show={show}
          height={160}
          barS={HOUR_S}
        />
      </div>
    </Section>
  )
}

/** The spend of this day and this month, and the fullest limits. */
function Spend({ caps, spent }: Health): VNode | null {
  if (!spent) return null
  const figure = (title: string, { cost_usd, lines, not_run }: UsageObject) =>
    costFigure(title, cost_usd, t('lines.count', { n: lines - not_run }))
  return (
    <Section title={t('batch.cost')} aside={<a href={href('/usage?range=7')}>{t('overview.byEntity')}</a>}>
      <div class="card stack">
        <Figures
          figures={[figure(t('overview.today'), spent.day), figure(t('overview.month'), spent.month)]}
        />
        {caps.slice(0, CAPS_SHOWN).map((cap) => (
          <Gauge cap={cap} isNamed />
        ))}
      </div>
    </Section>
  )
}
