// The page of batches lists them with progress, failures and cost, and shows an example file where there is none.
import type { VNode } from 'preact'
import { BATCH_STATUSES, endedAt } from '../../domain/batch.ts'
import type { BatchObject } from '../../wire/batch.ts'
import type { ModelObject } from '../../wire/model.ts'
import { pathWith, serviceUrl } from '../api.ts'
import { now } from '../browser-clock.ts'
import { between, count, duration, percent, perSecond, shortId, usd, usdExact } from '../format.ts'
import { type MessageKey, t } from '../i18n.ts'
import { ended, latest, speedOf, useLive, useMissedEnds } from '../live.ts'
import { LinkButton, NewBatchButton } from '../parts/button.tsx'
import { optionsOf } from '../parts/field.tsx'
import { anyOf, dayStart, days, FilterBar } from '../parts/filters.tsx'
import { PagedTable } from '../parts/long-table.tsx'
import { Page, Time } from '../parts/page.tsx'
import { BatchStatus, lineCounts, ProgressBar } from '../parts/status.tsx'
import { type Column, Table, useColumns, useOrder } from '../parts/table.tsx'
import { waitingWords } from '../parts/text.tsx'
import { useAll, usePages } from '../resource.ts'
import { href, useAddress } from '../router.ts'

const PATH = '/v1/batches'

export function Batches(): VNode {
  const { query } = useAddress()
  const filter = {
    status: query.get('status') ?? '',
    model: query.get('model') ?? '',
    since: dayStart(query.get('since')),
    until: dayStart(query.get('until'), 1),
    search: query.get('q')?.trim() ?? '',
  }
  const { model } = filter
  const order = useOrder('created', ['name', 'status'])
  const sorted = { sort: order.by, order: order.isAscending ? 'asc' : 'desc' }
  const isByTime = order.by === 'created' && !order.isAscending
  const models = useAll<ModelObject>('/v1/models')
  const { batches: pushed } = useLive()
  const pages = usePages<BatchObject>(PATH, { ...filter, ...sorted })
  const [columns, chooseColumns] = useColumns('batches', COLUMNS)
  const read = pages.rows.filter((batch) => batch !== undefined)
  const rows = pushed.size === 0 ? read : merged(read, pushed, filter, isByTime)
  useMissedEnds(rows, () => pages.refresh())
  const named = new Set([...(models.data ?? []).map(({ id }) => id), ...(model ? [model] : [])])
  const offered = Array.from(named, (id) => [id, id] as const)
  const isFiltered = Object.values(filter).some((value) => value !== '' && value !== null)
  const untouched = pages.rows.length === 0 && !pages.hasMore && pushed.size === 0 && !isFiltered
  return (
    <Page
      title={t('nav.batches')}
      actions={[
        <LinkButton
          label="CSV"
          icon="download"
          href={serviceUrl(pathWith(PATH, { ...filter, ...sorted, format: 'csv' }))}
          download="batches.csv"
        />,
        <LinkButton label={t('requests')} href={href('/requests')} />,
        <NewBatchButton />,
      ]}
    >
      {untouched ? (
        <FirstBatch />
      ) : (
        <>
          <FilterBar
            filters={[
              { name: 'q', label: t('search'), placeholder: t('batches.searchHint') },
              {
                name: 'status',
                label: t('batch.status'),
                options: anyOf(optionsOf('status', BATCH_STATUSES)),
              },
              offered.length > 1 || model !== ''
                ? { name: 'model', label: t('line.model'), options: anyOf(offered) }
                : null,
              ...days(),
            ]}
          >
            {chooseColumns}
          </FilterBar>
          <PagedTable<BatchObject>
            pages={pages}
            rows={rows}
            label={t('nav.batches')}
            columns={columns}
            order={order}
            cards
            none={t('batches.noneMatch')}
          />
        </>
      )}
    </Page>
  )
}

/** The batches that were read and, in the list of the newest, pushed since. Only the service can search pushed ones. */
function merged(
  read: readonly BatchObject[],
  pushed: ReadonlyMap<string, BatchObject>,
  { status, ...others }: { status: string } & Record<string, unknown>,
  isByTime: boolean,
): BatchObject[] {
  const known = new Set(read.map(({ id }) => id))
  const oldest = read.at(-1)?.id ?? ''
  const isSearch = Object.values(others).some((value) => value !== '' && value !== null)
  const added =
    isSearch || !isByTime ? [] : [...pushed.values()].filter(({ id }) => !known.has(id) && id > oldest)
  return [...added, ...read.map((batch) => latest(batch, pushed))]
    .filter((batch) => status === '' || batch.status === status)
    .sort((a, b) => (!isByTime ? 0 : a.id < b.id ? 1 : -1))
}

export function BatchTable({ rows }: { rows: readonly BatchObject[] }): VNode {
  return <Table label={t('nav.batches')} columns={COLUMNS()} rows={rows} />
}

const COLUMNS = (): Column<BatchObject>[] => [
  {
    title: t('batch'),
    main: true,
    sort: 'name',
    cell: (batch) => [
      <a href={href(`/batches/${batch.id}`)} class="row-link two-lines" title={batch.name}>
        {batch.name}
      </a>,
      <div class="muted small">
        {[batch.metadata?.entity, batch.model].filter(Boolean).join(' · ')}
        <span class="mono wide">{` ${shortId(batch.id)}`}</span>
        {ended(batch) ? null : (
          <span class="narrow">
            {` · ${t('batch.ends')} `}
            <Time at={batch.expires_at} short />
          </span>
        )}
      </div>,
    ],
  },
  {
    title: t('batch.status'),
    width: 'max(10.5rem, 14.5%)',
    sort: 'status',
    cell: (batch) => [
      <BatchStatus batch={batch} />,
      batch.waiting_reason ? (
        <div class="muted small two-lines" title={waitingWords(batch.waiting_reason)}>
          {t(`waiting.${batch.waiting_reason.code}` as MessageKey)}
        </div>
      ) : null,
    ],
  },
  {
    title: t('batch.progress'),
    width: 'max(9.5rem, 12%)',
    sort: 'lines',
    cell: (batch) => <Progress batch={batch} />,
  },
  {
    title: t('batch.failedLines'),
    align: 'end',
    width: '7.5rem',
    sort: 'failed',
    cell: (batch) => <Failed batch={batch} />,
  },
  {
    title: t('batch.speed'),
    sort: 'speed',
    width: '9.5rem',
    wide: true,
    align: 'end',
    cell: (batch) => <Speed batch={batch} />,
  },
  {
    title: t('batch.cost'),
    align: 'end',
    width: 'max(7rem, 8%)',
    sort: 'cost',
    cell: ({ cost_usd }) => <span title={usdExact(cost_usd)}>{usd(cost_usd)}</span>,
  },
  {
    title: t('batch.created'),
    sort: 'created',
    width: '8rem',
    wide: true,
    align: 'end',
    cell: ({ created }) => <Time at={created} short />,
  },
  {
    title: t('overview.deadline'),
    sort: 'deadline',
    width: '8rem',
    minor: true,
    align: 'end',
    cell: (batch) => (
      <span class={ended(batch) ? 'muted' : ''}>
        <Time at={batch.expires_at} short />
      </span>
    ),
  },
]

function Progress({ batch }: { batch: BatchObject }): VNode {
  const { total, done } = lineCounts(batch)
  return (
    <>
      <div class="progress-line">
        <span>{count(done)}</span>
        <span class="muted">{`\u00a0/ ${count(total)}`}</span>
        <span class="muted push">{batch.status === 'validating' ? '' : percent(done, total)}</span>
      </div>
      <ProgressBar batch={batch} thin />
    </>
  )
}

/** The number of failed lines and, below it, of those that were not run. */
function Failed({ batch }: { batch: BatchObject }): VNode {
  const { failed, notRun } = lineCounts(batch)
  return (
    <>
      {failed === 0 ? (
        <span class="muted">0</span>
      ) : (
        <a href={`${href(`/batches/${batch.id}`)}?status=failed`} class="bad-text">
          {count(failed)}
        </a>
      )}
      {notRun === 0 ? null : <div class="muted small two-lines">{t('errors.notRun', { n: notRun })}</div>}
    </>
  )
}

/** The rate and the time left; of an ended batch, its mean rate and its duration. */
function Speed({ batch }: { batch: BatchObject }): VNode {
  const end = endedAt(batch)
  if (end !== undefined) {
    const from = batch.in_progress_at ?? batch.created
    const { done } = lineCounts(batch)
    return (
      <div>
        {end > from && done > 0 ? perSecond(done / (end - from)) : '–'}
        <div class="muted small">{t('batch.tookTime', { time: between(from, end) })}</div>
      </div>
    )
  }
  const { lines_per_s, estimated_completion } = speedOf(batch)
  return (
    <div>
      {lines_per_s === null ? '–' : perSecond(lines_per_s)}
      {estimated_completion === null ? null : (
        <div class="muted small">
          {t('batch.left', { time: duration(Math.max(0, estimated_completion * 1000 - now())) })}
        </div>
      )}
    </div>
  )
}

/** The model of a service without a configuration, which the example names. */
export const SIMULATOR = 'sim-1'

export function FirstBatch(): VNode {
  const models = useAll<ModelObject>('/v1/models')
  const simulated = models.data?.some(({ id }) => id === SIMULATOR)
  return (
    <div class="empty wide">
      <h2>{t('first.title')}</h2>
      <p>{t('first.text')}</p>
      <div class="row">
        <LinkButton label={t('nav.new')} href={href('/new')} icon="new" kind="primary" />
        <LinkButton
          label={t(simulated ? 'first.simulated' : 'first.example')}
          href={`${href('/new')}?example=1`}
          icon="play"
        />
      </div>
    </div>
  )
}
