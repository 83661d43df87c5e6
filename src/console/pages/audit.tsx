// The audit page looks up a request ID, and lists the latest calls.
import type { VNode } from 'preact'
import { useMemo, useState } from 'preact/hooks'
import type { ApiKeyObject } from '../../wire/project.ts'
import type { HttpRequestRecord, LineRecord } from '../../wire/request-record.ts'
import { fetchApi } from '../api.ts'
import { duration, shortId } from '../format.ts'
import { t } from '../i18n.ts'
import { parseExact, print } from '../json.ts'
import { Button, Entity, TextButton } from '../parts/button.tsx'
import { optionsOf, TextField } from '../parts/field.tsx'
import { anyOf, dayStart, days, FilterBar, FilterChip } from '../parts/filters.tsx'
import { PagedTable } from '../parts/long-table.tsx'
import { Loaded } from '../parts/notice.tsx'
import { Facts, Page, Section, Time } from '../parts/page.tsx'
import { Badge } from '../parts/status.tsx'
import type { Column } from '../parts/table.tsx'
import { CodeBlock } from '../parts/text.tsx'
import { useAll, usePages, useResource } from '../resource.ts'
import { href, navigate, type PageParams, replaceQuery, useAddress } from '../router.ts'
import { may } from '../session.ts'

const STATUSES = ['2xx', '4xx', '5xx'] as const

export function Audit(): VNode {
  const [id, setId] = useState('')
  const { query } = useAddress()
  const method = query.get('method') ?? ''
  const filter = {
    ...(method === '' ? { reads: false } : { method: method === 'all' ? '' : method }),
    since: dayStart(query.get('since')),
    until: dayStart(query.get('until'), 1),
    status: query.get('status') ?? '',
    path: query.get('path') ?? '',
    api_key_id: query.get('api_key_id') ?? '',
  }
  const keys = useAll<ApiKeyObject>(may('keys:read') ? '/v1/keys' : null)
  const known = (keys.data ?? []).map(({ id, name }) => [id, name ?? shortId(id)] as const)
  const isKnown = known.some(([id]) => id === filter.api_key_id)
  const pages = usePages<HttpRequestRecord>('/v1/requests', filter)
  const columns = useMemo(COLUMNS, [])
  return (
    <Page title={t('nav.audit')} lead={t('audit.lead')}>
      <form
        class="filters"
        role="search"
        aria-label={t('audit.find')}
        onSubmit={(event) => {
          event.preventDefault()
          if (id.trim() !== '') navigate(`/audit/${encodeURIComponent(id.trim())}`)
        }}
      >
        <TextField label={t('audit.id')} value={id} onInput={setId} placeholder="req_…" mono />
        <Button label={t('audit.find')} submit />
      </form>
      <Section title={t('audit.calls')}>
        <FilterBar
          filters={[
            { name: 'path', label: t('audit.path'), placeholder: '/v1/batches' },
            {
              name: 'method',
              label: t('audit.method'),
              options: [
                ['', t('audit.changes')],
                ['all', t('all')],
                ...['GET', 'POST', 'DELETE'].map((method) => [method, method] as const),
              ],
            },
            {
              name: 'status',
              label: t('batch.status'),
              options: anyOf(optionsOf('audit', STATUSES)),
            },
            known.length === 0 ? null : { name: 'api_key_id', label: t('audit.key'), options: anyOf(known) },
            ...days(),
          ]}
        />
        {filter.api_key_id === '' || isKnown ? null : (
          <div class="row">
            <FilterChip name="api_key_id" title={t('audit.key')} value={filter.api_key_id} />
          </div>
        )}
        <PagedTable<HttpRequestRecord> pages={pages} label={t('audit.calls')} columns={columns} cards />
      </Section>
    </Page>
  )
}

const COLUMNS = (): Column<HttpRequestRecord>[] => [
  {
    title: t('audit.call'),
    main: true,
    grow: 3,
    cell: ({ id, method, path }) => [
      <a class="row-link mono" href={href(`/audit/${id}`)} title={path}>
        {`${method} `}
        {path}
      </a>,
      <div class="muted small mono minor">{id}</div>,
    ],
  },
  {
    title: t('batch.status'),
    cell: ({ status_code }) => <Answered status={status_code} />,
  },
  {
    title: t('audit.key'),
    minor: true,
    cell: ({ api_key_id, person }) =>
      api_key_id ? (
        <TextButton
          label={<span class="mono small">{person ?? `…${api_key_id.slice(-8)}`}</span>}
          title={t('audit.onlyKey', { id: api_key_id })}
          onClick={() => replaceQuery({ api_key_id })}
        />
      ) : (
        '–'
      ),
  },
  { title: t('line.duration'), minor: true, align: 'end', cell: ({ duration_ms }) => duration(duration_ms) },
  { title: t('audit.when'), align: 'end', cell: ({ created }) => <Time at={created} short /> },
]

function Answered({ status }: { status: number }): VNode {
  return <Badge tone={status < 400 ? 'good' : 'bad'} text={String(status)} />
}

/** Of a call or of a line. */
type AnyRecord = Partial<Omit<HttpRequestRecord, 'kind'> & Omit<LineRecord, 'kind'>> & { created: number }

export function AuditRecord({ id }: PageParams): VNode {
  const record = useResource(
    async (signal) => {
      const text = await (
        await fetchApi('GET', `/v1/requests/${encodeURIComponent(id)}`, undefined, { signal })
      ).text()
      return { shown: JSON.parse(text) as AnyRecord, text: print(parseExact(text)) }
    },
    [id],
  )
  return (
    <Page title={id} mono parent={{ href: href('/audit'), title: t('nav.audit') }}>
      <Loaded resource={record}>
        {({ shown, text }) => (
          <>
            <div class="card">
              <Facts
                facts={[
                  [
                    t('audit.call'),
                    shown.method ? (
                      <span class="mono">
                        {`${shown.method} `}
                        {shown.path ?? ''}
                      </span>
                    ) : null,
                  ],
                  [
                    t('batch'),
                    shown.batch_id ? (
                      <a class="mono" href={href(`/batches/${shown.batch_id}`)}>
                        {shown.batch_id}
                      </a>
                    ) : null,
                  ],
                  [
                    t('audit.line'),
                    shown.line ? (
                      <a href={href(`/batches/${shown.batch_id}/lines/${shown.line}`)}>
                        {String(shown.line)}
                        {' · '}
                        {shown.custom_id ?? ''}
                      </a>
                    ) : null,
                  ],
                  [
                    t('batch.status'),
                    shown.status_code == null ? null : <Answered status={shown.status_code} />,
                  ],
                  [t('audit.key'), shown.api_key_id ? <span class="mono">{shown.api_key_id}</span> : null],
                  [t('line.entity'), shown.entity ? <Entity name={shown.entity} /> : null],
                  [t('line.duration'), shown.duration_ms === undefined ? null : duration(shown.duration_ms)],
                  [t('audit.when'), <Time at={shown.created} />],
                ]}
              />
            </div>
            <CodeBlock text={text} label={t('audit.record')} />
          </>
        )}
      </Loaded>
    </Page>
  )
}
