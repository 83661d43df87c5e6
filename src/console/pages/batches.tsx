// Batches: is it moving, what failed, what does it cost.

import type { VNode } from 'preact'
import { useState } from 'preact/hooks'
import type { BatchObject } from '../../wire/batch.ts'
import type { List } from '../../wire/list.ts'
import type { ModelObject } from '../../wire/model.ts'
import { get, getPage, pathWith } from '../api.ts'
import { later, now } from '../browser-clock.ts'
import { between, count, duration, percent, perSecond, shortId, usd, usdExact } from '../format.ts'
import { type MessageKey, t } from '../i18n.ts'
import { endedAt, latest, speedOf, useLive, useMissedEnds } from '../live.ts'
import { Button, LinkButton } from '../parts/button.tsx'
import { SelectField, TextField } from '../parts/field.tsx'
import { Empty, FailureNotice, Loading } from '../parts/notice.tsx'
import { Page } from '../parts/page.tsx'
import { BatchStatus, ProgressBar } from '../parts/status.tsx'
import { type Column, Table } from '../parts/table.tsx'
import { waitingWords } from '../parts/text.tsx'
import { Time } from '../parts/time.tsx'
import { useResource } from '../resource.ts'
import { href, replaceQuery, useAddress } from '../router.ts'
import { may } from '../session.ts'
import { FirstBatch } from './first-batch.tsx'

const PATH = '/v1/batches'
const PAGE = 50
/** So long after a key was pressed, the text is searched for. */
const TYPING_MS = 200
const STATUSES = [
  'validating',
  'queued',
  'in_progress',
  'cancelling',
  'completed',
  'failed',
  'expired',
  'cancelled',
] as const

export function Batches(): VNode {
  const { query } = useAddress()
  const text = query.get('q') ?? ''
  const filter = {
    status: query.get('status') ?? '',
    model: query.get('model') ?? '',
    since: secondsAt(query.get('since')),
    until: secondsAt(query.get('until'), 1),
    search: text.trim(),
  }
  const { status, model } = filter
  const models = useResource((signal) => get<List<ModelObject>>('/v1/models', {}, { signal }), [])
  const { batches: pushed } = useLive()
  const [more, setMore] = useState<{ of: string; pages: readonly List<BatchObject>[] }>({ of: '', pages: [] })
  const shown = JSON.stringify(filter)
  const followed = more.of === shown ? more.pages : []
  const first = useResource(async (signal) => {
    if (text !== '') await new Promise<void>((resolve) => later(TYPING_MS, resolve))
    signal.throwIfAborted()
    return await getPage<BatchObject>(PATH, { ...filter, limit: PAGE }, { signal })
  }, Object.values(filter))
  const pages = first.data ? [first.data, ...followed] : []
  const rows = merged(
    pages.flatMap(({ data }) => data),
    pushed,
    filter,
  )
  useMissedEnds(rows, first.reload)
  const last = pages.at(-1)
  const offered = [...new Set([...(models.data?.data ?? []).map(({ id }) => id), ...(model ? [model] : [])])]
  const loadMore = async (): Promise<void> => {
    const next = await getPage<BatchObject>(PATH, {
      ...filter,
      limit: PAGE,
      starting_after: last?.next_cursor,
    })
    setMore({ of: shown, pages: [...followed, next] })
  }
  const isFiltered = Object.values(filter).some((value) => value !== '' && value !== undefined)
  const untouched = first.data?.data.length === 0 && pushed.size === 0 && !isFiltered
  return (
    <Page
      title={t('batches.title')}
      actions={[
        <LinkButton
          label="CSV"
          icon="download"
          href={pathWith(PATH, { ...filter, format: 'csv' })}
          download="batches.csv"
        />,
        may('batches:write') ? (
          <LinkButton label={t('new.title')} href={href('/new')} icon="plus" kind="primary" />
        ) : null,
      ]}
    >
      <FailureNotice failure={first.failure} retry={first.reload} />
      {untouched ? (
        <FirstBatch />
      ) : (
        <>
          <div class="filters" role="search">
            <TextField
              label={t('search')}
              type="search"
              value={text}
              placeholder={t('batches.searchHint')}
              onInput={(value) => replaceQuery({ q: value })}
            />
            <SelectField
              label={t('batch.status')}
              value={status}
              options={[
                ['', t('all')],
                ...STATUSES.map((name) => [name, t(`status.${name}` satisfies MessageKey)] as const),
              ]}
              onInput={(value) => replaceQuery({ status: value })}
            />
            {offered.length > 1 || model !== '' ? (
              <SelectField
                label={t('line.model')}
                value={model}
                options={[['', t('all')], ...offered.map((id) => [id, id] as const)]}
                onInput={(value) => replaceQuery({ model: value })}
              />
            ) : null}
            {(['since', 'until'] as const).map((name) => (
              <TextField
                label={t(`usage.${name}` satisfies MessageKey)}
                type="date"
                value={query.get(name) ?? ''}
                onInput={(value) => replaceQuery({ [name]: value })}
              />
            ))}
          </div>
          {first.loading && !first.data ? (
            <Loading rows={6} />
          ) : rows.length === 0 ? (
            <Empty title={t('nothingFound')}>
              <p>{t(last?.has_more ? 'batches.noneYet' : 'batches.noneMatch')}</p>
            </Empty>
          ) : (
            <BatchTable rows={rows} />
          )}
          {last?.has_more ? (
            <div class="more">
              <Button
                label={t(text === '' ? 'showMore' : 'batches.searchOlder')}
                onClick={() => void loadMore()}
              />
            </div>
          ) : null}
        </>
      )}
    </Page>
  )
}

/** The start of a day of the reader's calendar, or of one so many days later, in Unix seconds. */
function secondsAt(day: string | null, daysLater = 0): number | undefined {
  const at = new Date(`${day}T00:00`)
  at.setDate(at.getDate() + daysLater)
  return Number.isNaN(at.getTime()) ? undefined : at.getTime() / 1000
}

/** What was read and what was pushed since, newest first. Only the service can tell whether what is pushed is searched for. */
function merged(
  read: readonly BatchObject[],
  pushed: ReadonlyMap<string, BatchObject>,
  { status, ...others }: { status: string } & Record<string, unknown>,
): BatchObject[] {
  const known = new Set(read.map(({ id }) => id))
  const oldest = read.at(-1)?.id ?? ''
  const isSearch = Object.values(others).some((value) => value !== '' && value !== undefined)
  const added = isSearch ? [] : [...pushed.values()].filter(({ id }) => !known.has(id) && id > oldest)
  return [...added, ...read.map((batch) => latest(batch, pushed))]
    .filter((batch) => status === '' || batch.status === status)
    .sort((a, b) => (a.id < b.id ? 1 : -1))
}

export function BatchTable({ rows }: { rows: readonly BatchObject[] }): VNode {
  return (
    <Table<BatchObject> label={t('batches.title')} columns={COLUMNS()} rows={rows} keyOf={({ id }) => id} />
  )
}

const COLUMNS = (): Column<BatchObject>[] => [
  {
    title: t('batch'),
    main: true,
    cell: (batch) => [
      <div class="clip">
        <a href={href(`/batches/${batch.id}`)} class="row-link" title={batch.name}>
          {batch.name}
        </a>
      </div>,
      <div class="muted small">
        <span class="mono">{shortId(batch.id)}</span>
        {batch.metadata?.entity ? ` · ${batch.metadata.entity}` : ''}
        {batch.model ? ` · ${batch.model}` : ''}
        {' · '}
        <Time at={batch.created} short />
      </div>,
    ],
  },
  {
    title: t('batch.status'),
    cell: (batch) => [
      <BatchStatus batch={batch} />,
      batch.waiting_reason ? (
        <div class="muted small clip" title={waitingWords(batch.waiting_reason)}>
          {t(`waiting.${batch.waiting_reason.code}` as MessageKey)}
        </div>
      ) : null,
    ],
  },
  {
    title: t('batch.progress'),
    width: '24%',
    cell: ({ request_counts: counts, status }) => [
      <div class="progress-line">
        <span>{count(counts.completed + counts.failed)}</span>
        <span class="muted">{`\u00a0/ ${count(counts.total)}`}</span>
        <span class="muted push">
          {status === 'validating' ? '' : percent(counts.completed + counts.failed, counts.total)}
        </span>
      </div>,
      <ProgressBar counts={counts} thin />,
    ],
  },
  {
    title: t('batch.failedLines'),
    align: 'end',
    cell: ({ id, request_counts: { failed } }) =>
      failed === 0 ? (
        <span class="muted">0</span>
      ) : (
        <a href={`${href(`/batches/${id}`)}?status=failed`} class="bad-text">
          {count(failed)}
        </a>
      ),
  },
  {
    title: t('batch.speed'),
    minor: true,
    align: 'end',
    cell: (batch) => <Speed batch={batch} />,
  },
  {
    title: t('batch.cost'),
    align: 'end',
    cell: ({ cost_usd }) => <span title={usdExact(cost_usd)}>{usd(cost_usd)}</span>,
  },
]

/** The rate and the time that is left; of a batch that has ended, its mean rate and how long it took. */
function Speed({ batch }: { batch: BatchObject }): VNode {
  const end = endedAt(batch)
  if (end !== undefined) {
    const from = batch.in_progress_at ?? batch.created
    const { completed, failed } = batch.request_counts
    return (
      <div>
        {end > from ? perSecond((completed + failed) / (end - from)) : '–'}
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
