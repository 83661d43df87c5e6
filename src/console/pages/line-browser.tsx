// Lists the lines of a batch, with filters that are part of the address, or shows their answers as a table.
import type { VNode } from 'preact'
import { useEffect, useRef } from 'preact/hooks'
import type { BatchObject, FailedLines } from '../../wire/batch.ts'
import type { BatchLine, FoundLine, LineStatus, LineSummary, LinesQuery } from '../../wire/batch-line.ts'
import type { List } from '../../wire/shape.ts'
import { type AnswerRow, answerRow, schemaColumns } from '../answer-columns.ts'
import { get, pathWith, type Query, readResults } from '../api.ts'
import { later } from '../browser-clock.ts'
import { compact, count, duration, usdColumn, usdExact } from '../format.ts'
import { type MessageKey, t } from '../i18n.ts'
import { parseExact } from '../json.ts'
import type { ListSource } from '../list-pages.ts'
import { ended } from '../live.ts'
import { Choice } from '../parts/button.tsx'
import { optionsOf } from '../parts/field.tsx'
import { anyOf, FilterBar, FilterChip } from '../parts/filters.tsx'
import { PagedTable } from '../parts/long-table.tsx'
import { Page, Section } from '../parts/page.tsx'
import { LineBadge } from '../parts/status.tsx'
import type { Column } from '../parts/table.tsx'
import { useListPages, usePages, useResource, useSettled } from '../resource.ts'
import { href, replaceQuery, useAddress } from '../router.ts'
import { may } from '../session.ts'
import { mayRetryCode, RetryButton } from './batch-actions.tsx'

const LINE_STATUSES: readonly LineStatus[] = ['completed', 'failed', 'pending']
const REFRESH_MS = 2_000
const PAGE = 200
const FIELDS = ['status', 'code', 'message', 'model', 'entity', 'conversation', 'search'] as const

export type LineFilter = Pick<LinesQuery, (typeof FIELDS)[number]>

/** The lines of a batch as a list, or their answers as a table where the requests ask for columns. */
export function Lines({ batch }: { batch: BatchObject }): VNode {
  const { query } = useAddress()
  // Before that status, the service has no lines to show.
  const isPlanned = batch.status !== 'validating' && batch.status !== 'failed'
  const columns = useResource(
    async (signal) =>
      may('files:read') && isPlanned
        ? schemaColumns((await get<BatchLine>(`/v1/batches/${batch.id}/lines/1`, {}, { signal })).input)
        : null,
    [batch.id, isPlanned],
  )
  const asTable = query.get('view') === 'answers' && columns.data !== null
  const choice = columns.data ? (
    <Choice
      label={t('lines.view')}
      options={[
        ['', t('lines.title')],
        ['answers', t('lines.answers')],
      ]}
      value={asTable ? 'answers' : ''}
      choose={(view) => replaceQuery({ view })}
    />
  ) : null
  return asTable && columns.data ? (
    <Section title={t('lines.answers')} id="lines" aside={choice}>
      <AnswerTable batch={batch} columns={columns.data} />
    </Section>
  ) : (
    <LineBrowser batch={batch} choice={choice} />
  )
}

/** A table of answers, which loads more rows on scrolling. */
function AnswerTable({ batch, columns }: { batch: BatchObject; columns: readonly string[] }): VNode {
  const pages = useListPages<AnswerRow>({
    name: `answers of ${batch.id}`,
    read: async (cursor, signal) => {
      const { lines, next } = await readResults(batch.id, { after: cursor ?? '0', limit: PAGE }, signal)
      return { rows: lines.map((line) => answerRow(parseExact(line), columns)), next }
    },
  })
  const table: Column<AnswerRow>[] = [
    { title: '#', width: '4rem', minor: true, cell: ({ line }) => <span class="muted">{count(line)}</span> },
    {
      title: 'custom_id',
      main: true,
      cell: ({ line, custom_id }) => lineLink(batch.id, line, custom_id),
    },
    ...columns.map((title, i) => ({
      title,
      grow: 1.75,
      minor: i >= 2,
      cell: ({ cells, error }: AnswerRow) =>
        error === null ? (
          <span title={cells[i]}>{cells[i]}</span>
        ) : i === 0 ? (
          <span class="bad-text whole" title={error}>
            {error}
          </span>
        ) : null,
    })),
  ]
  return <PagedTable<AnswerRow> pages={pages} label={t('lines.answers')} columns={table} />
}

/** A link to a line that keeps the filters, also for its neighbours. */
const lineLink = (batchId: string, line: number, custom_id: string): VNode => (
  <a
    class="row-link mono"
    href={href(`/batches/${batchId}/lines/${line}${location.search}`)}
    title={custom_id}
  >
    {custom_id}
  </a>
)

function LineBrowser({ batch, choice }: { batch: BatchObject; choice: VNode | null }): VNode {
  const { query } = useAddress()
  const search = useSettled(query.get('search')) ?? undefined
  const filter = { ...readFilter(query), search }
  const { total, completed, failed } = batch.request_counts
  const pages = useListPages(linesOf(batch.id, filter, total))
  const done = completed + failed
  const seen = useRef(done)
  useEffect(() => {
    if (seen.current === done) return
    // Refreshed at most every two seconds while lines finish, and once after the last.
    return later(ended(batch) ? 0 : REFRESH_MS, () => {
      seen.current = done
      pages.refresh()
    })
  }, [ended(batch) || Math.floor(done / Math.max(1, total / 100)), pages])
  const cost = usdColumn(pages.inSight.map((line) => line?.cost_usd ?? 0))
  const retried = retriable(filter)
  const known = pages.rows.length
  return (
    <Section
      title={t('lines.title')}
      id="lines"
      aside={
        <div class="row">
          {t(pages.hasMore ? 'lines.atLeast' : 'lines.count', { n: known })}
          {choice}
        </div>
      }
    >
      <Filters
        filter={filter}
        retry={
          retried && failed > 0 && known > 0 ? (
            <RetryButton batch={batch} which={retried} lines={pages.hasMore ? undefined : known} />
          ) : null
        }
      />
      <PagedTable<LineSummary>
        pages={pages}
        label={t('lines.title')}
        columns={columnsOf(batch.id, cost)}
        none={t('lines.noneMatch')}
      />
    </Section>
  )
}

/** Single requests, the newest batch first. */
export function Requests(): VNode {
  const filter = readFilter(useAddress().query)
  const { search, status, entity, conversation } = filter
  const pages = usePages<FoundLine>('/v1/lines', { kind: 'requests', search, status, entity, conversation })
  return (
    <Page title={t('requests')} parent={{ href: href('/batches'), title: t('nav.batches') }}>
      <Filters filter={filter} retry={null} />
      <PagedTable<FoundLine> pages={pages} label={t('requests')} columns={columnsOf('', usdExact).slice(1)} />
    </Page>
  )
}

/** The source of lines: numbered without a filter, page after page with one. */
function linesOf(batchId: string, filter: LineFilter, total: number): ListSource<LineSummary> {
  const path = `/v1/batches/${encodeURIComponent(batchId)}/lines`
  const isFiltered = Object.values(filter).some((value) => value !== undefined && value !== '')
  return {
    name: pathWith(path, { ...filter, total }),
    ...(isFiltered ? {} : { numbered: { total, page: PAGE } }),
    read: async (cursor, signal) => {
      const rows: LineSummary[] = []
      let next: string | null = cursor ?? '0'
      // A page of the service may be short although the list continues.
      while (next !== null && rows.length < PAGE) {
        const page: Query = { ...filter, after: next, limit: PAGE - rows.length }
        const { data, next_cursor }: List<LineSummary> = await get(path, page, { signal })
        rows.push(...data)
        next = next_cursor
      }
      return { rows, next }
    },
  }
}

/** Reads the filter of lines from the address. */
export function readFilter(query: URLSearchParams): LineFilter {
  const given = Object.fromEntries(FIELDS.map((name) => [name, query.get(name) ?? undefined]))
  return { ...given, status: LINE_STATUSES.find((status) => status === given.status) }
}

/** The retry of exactly the shown failed lines; null where others are shown, or all failed ones. */
function retriable({ status, code, ...filter }: LineFilter): FailedLines | null {
  const which = { ...(code ? { codes: [code] } : {}), ...filter }
  const isFiltered = Object.values(which).some((value) => value !== undefined && value !== '')
  const onlyFailed = status === 'failed' || (status === undefined && (code || filter.message))
  return isFiltered && onlyFailed && mayRetryCode(code ?? '') ? which : null
}

function Filters({ filter, retry }: { filter: LineFilter; retry: VNode | null }): VNode {
  const chips = (['code', 'message', 'model'] as const).filter((name) => filter[name])
  return (
    <div class="stack tight">
      <FilterBar
        filters={[
          { name: 'search', label: 'custom_id', placeholder: t('lines.searchHint') },
          {
            name: 'status',
            label: t('batch.status'),
            options: anyOf(optionsOf('line', LINE_STATUSES)),
            clears: ['code', 'message'],
          },
          { name: 'entity', label: t('line.entity') },
          { name: 'conversation', label: t('line.conversation') },
        ]}
      >
        {retry}
      </FilterBar>
      {chips.length === 0 ? null : (
        <div class="row">
          {chips.map((name) => (
            <FilterChip
              name={name}
              title={t(`line.${name}` satisfies MessageKey)}
              value={filter[name] ?? ''}
              key={name}
            />
          ))}
        </div>
      )}
    </div>
  )
}

type AnyLine = LineSummary & Partial<FoundLine>

const columnsOf = (batchId: string, costText: typeof usdExact): Column<AnyLine>[] => [
  { title: '#', width: '4rem', minor: true, cell: ({ line }) => <span class="muted">{count(line)}</span> },
  {
    title: 'custom_id',
    main: true,
    grow: 1.1,
    cell: ({ line, custom_id, batch_id = batchId }) => lineLink(batch_id, line, custom_id),
  },
  { title: t('batch.status'), width: 'max(10.5rem, 11%)', cell: (line) => <LineBadge line={line} /> },
  {
    title: t('line.model'),
    grow: 0.8,
    wide: true,
    cell: ({ model }) => <span title={model ?? ''}>{model}</span>,
  },
  { title: t('line.result'), grow: 2.2, cell: (line) => <Result line={line} /> },
  {
    title: t('line.duration'),
    width: '7.5rem',
    minor: true,
    align: 'end',
    cell: (line) => <Took line={line} />,
  },
  {
    title: t('batch.cost'),
    width: '7.5rem',
    wide: true,
    align: 'end',
    cell: ({ cost_usd }) =>
      cost_usd === 0 ? null : <span title={usdExact(cost_usd)}>{costText(cost_usd)}</span>,
  },
]

function Result({ line: { error, usage } }: { line: LineSummary }): VNode | null {
  if (error)
    return (
      <span title={error.message}>
        <code class="code">{error.code}</code> <span class="muted">{error.message}</span>
      </span>
    )
  if (!usage) return null
  const { prompt_tokens, completion_tokens } = usage
  const values = { prompt: compact(prompt_tokens), completion: compact(completion_tokens) }
  return <span class="muted">{t('line.tokens', values)}</span>
}

function Took({ line: { duration_ms, attempts } }: { line: LineSummary }): VNode | null {
  if (duration_ms === null) return null
  return (
    <>
      {duration(duration_ms)}
      {attempts > 1 ? (
        <span class="warn-text" title={t('line.lastOf', { n: attempts })}>
          {` ×${attempts}`}
        </span>
      ) : null}
    </>
  )
}
