// The audit page looks up a request ID, and lists the latest calls.
import type { VNode } from 'preact'
import { useMemo, useState } from 'preact/hooks'
import type { BatchObject } from '../../wire/batch.ts'
import type { ApiKeyObject } from '../../wire/project.ts'
import type { HttpRequestRecord, LineRecord } from '../../wire/request-record.ts'
import type { List } from '../../wire/shape.ts'
import { fetchApi, pathWith } from '../api.ts'
import { duration, shortId } from '../format.ts'
import { type MessageKey, t } from '../i18n.ts'
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
import { useAll, useGet, usePages, useResource } from '../resource.ts'
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
  const names = new Map<string, string>(known)
  const batches = useGet<List<BatchObject>>(may('batches:read') ? '/v1/batches' : null, { limit: 100 })
  for (const { id, name } of batches.data?.data ?? []) names.set(id, name)
  const isKnown = known.some(([id]) => id === filter.api_key_id)
  const pages = usePages<HttpRequestRecord>('/v1/requests', filter)
  const columns = useMemo(() => columnsOf(names), [names.size])
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
            { name: 'status', label: t('batch.status'), options: anyOf(optionsOf('audit', STATUSES)) },
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

/** The pages that show objects of the API, by kind. */
const PLACES: Readonly<Record<string, { noun: MessageKey; to: (id: string) => string | null }>> = {
  batches: { noun: 'batch', to: (id) => `/batches/${id}` },
  files: { noun: 'new.file', to: (id) => pathWith('/files', { q: id }) },
  limits: { noun: 'new.limit', to: (id) => pathWith('/limits', { change: id }) },
  webhooks: { noun: 'new.webhook', to: () => '/webhooks' },
  keys: { noun: 'audit.key', to: () => '/keys' },
  projects: { noun: 'limits.project', to: () => '/keys' },
  session: { noun: 'settings.session', to: () => null },
  requests: { noun: 'audit.record', to: (id) => `/audit/${id}` },
}

const VERBS: Readonly<Record<string, MessageKey>> = {
  cancel: 'cancel.batch',
  pause: 'pause.pause',
  resume: 'pause.resume',
  retry: 'retry.run',
  export: 'export.title',
  test: 'webhooks.test',
  replay: 'webhooks.replay',
  rotate_secret: 'webhooks.rotate',
}

/** The effect of a call in words: a verb, and the object, with its name where it is known. */
function What({ call, names }: { call: HttpRequestRecord; names: ReadonlyMap<string, string> }): VNode {
  const { method, path } = call
  const [, , kind = '', id, action] = path.split(/[/?]/)
  const isDryRun = path.endsWith('?dry_run=true')
  const place = PLACES[kind]
  const verb = isDryRun
    ? 'audit.estimated'
    : method === 'GET'
      ? 'audit.read'
      : method === 'DELETE'
        ? 'remove'
        : (VERBS[action ?? ''] ?? (id === undefined ? 'audit.create' : 'change'))
  const named = id !== undefined && !isDryRun ? (names.get(id) ?? shortId(id)) : null
  const to = named === null || method === 'DELETE' ? null : place?.to(id ?? '')
  return (
    <>
      {`${t(verb)}: ${place ? t(place.noun) : kind} `}
      {to ? <a href={href(to)}>{named}</a> : named}
    </>
  )
}

const columnsOf = (names: ReadonlyMap<string, string>): Column<HttpRequestRecord>[] => [
  {
    title: t('audit.call'),
    main: true,
    grow: 2,
    cell: (call) => [
      <div>
        <What call={call} names={names} />
      </div>,
      <a class="row-link small mono" href={href(`/audit/${call.id}`)} title={call.path}>
        {`${call.method} ${call.path}`}
      </a>,
    ],
  },
  {
    title: t('audit.who'),
    cell: ({ api_key_id, person }) =>
      api_key_id ? (
        <TextButton
          label={person ?? names.get(api_key_id) ?? `…${api_key_id.slice(-8)}`}
          title={t('audit.onlyKey', { id: api_key_id })}
          onClick={() => replaceQuery({ api_key_id })}
        />
      ) : (
        '–'
      ),
  },
  { title: t('batch.status'), width: '7rem', cell: ({ status_code }) => <Answered status={status_code} /> },
  {
    title: t('line.duration'),
    width: '7rem',
    minor: true,
    align: 'end',
    cell: ({ duration_ms }) => duration(duration_ms),
  },
  { title: t('audit.when'), width: '9rem', align: 'end', cell: ({ created }) => <Time at={created} short /> },
]

function Answered({ status }: { status: number }): VNode {
  return <Badge tone={status < 400 ? 'good' : 'bad'} text={String(status)} />
}

/** The fields of an audit record, of a call or of a line. */
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
                    shown.method ? <span class="mono">{`${shown.method} ${shown.path ?? ''}`}</span> : null,
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
                        {`${shown.line} · ${shown.custom_id ?? ''}`}
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
