// The audit: any request ID looked up, and the latest calls.
import { useEffect, useState } from 'preact/hooks'
import type { List } from '../../wire/list.ts'
import type { HttpRequestRecord } from '../../wire/request-record.ts'
import { fetchApi, getPage } from '../api.ts'
import { later } from '../browser-clock.ts'
import { parseExact, print } from '../exact-json.ts'
import { duration } from '../format.ts'
import { h, type View } from '../h.ts'
import { type MessageKey, t } from '../i18n.ts'
import { Button } from '../parts/button.ts'
import { SelectField, TextField } from '../parts/field.ts'
import { Facts } from '../parts/figures.ts'
import { Empty, FailureNotice, Loading } from '../parts/notice.ts'
import { Page, Section } from '../parts/page.ts'
import { Badge } from '../parts/status.ts'
import { type Column, Table } from '../parts/table.ts'
import { CodeBlock, visibleText } from '../parts/text.ts'
import { Time } from '../parts/time.ts'
import { useAction, useResource } from '../resource.ts'
import type { PageParams } from '../router.ts'
import { href, navigate, replaceQuery, useAddress } from '../router.ts'

const STATUSES = ['2xx', '4xx', '5xx'] as const
const TYPING_MS = 250

export function Audit(): View {
  const [id, setId] = useState('')
  const { query } = useAddress()
  const filter = {
    method: query.get('method') ?? '',
    status: query.get('status') ?? '',
    path: query.get('path') ?? '',
    api_key_id: query.get('api_key_id') ?? '',
  }
  const name = JSON.stringify(filter)
  const [path, setPath] = useState(filter.path)
  useEffect(() => (path === filter.path ? undefined : later(TYPING_MS, () => replaceQuery({ path }))), [path])
  const [more, setMore] = useState<{ name: string; pages: readonly List<HttpRequestRecord>[] }>({
    name,
    pages: [],
  })
  const calls = useResource(
    (signal) => getPage<HttpRequestRecord>('/v1/requests', { limit: 50, ...filter }, { signal }),
    [filter],
  )
  const pages = [...(calls.data ? [calls.data] : []), ...(more.name === name ? more.pages : [])]
  const next = pages.at(-1)?.next_cursor
  const loading = useAction()
  const load = (): void =>
    void loading.run(async () => {
      const page = await getPage<HttpRequestRecord>('/v1/requests', {
        limit: 100,
        ...filter,
        starting_after: next,
      })
      setMore({ name, pages: [...(more.name === name ? more.pages : []), page] })
    })
  const rows = pages.flatMap(({ data }) => data)
  return h(Page, { title: t('audit.title'), lead: t('audit.lead') }, [
    h(
      'form',
      {
        class: 'filters',
        role: 'search',
        onSubmit: (event) => {
          event.preventDefault()
          if (id.trim() !== '') navigate(`/audit/${encodeURIComponent(id.trim())}`)
        },
      },
      [
        h(TextField, { label: t('audit.id'), value: id, onInput: setId, placeholder: 'req_…', mono: true }),
        h(Button, { label: t('audit.find'), submit: true }),
      ],
    ),
    h(Section, { title: t('audit.calls') }, [
      h('div', { class: 'filters' }, [
        h(TextField, {
          label: t('audit.path'),
          value: path,
          onInput: setPath,
          placeholder: '/v1/batches',
        }),
        h(SelectField, {
          label: t('audit.method'),
          value: filter.method,
          options: [['', t('all')], ...['GET', 'POST', 'DELETE'].map((method) => [method, method] as const)],
          onInput: (method) => replaceQuery({ method }),
        }),
        h(SelectField, {
          label: t('batch.status'),
          value: filter.status,
          options: [
            ['', t('all')],
            ...STATUSES.map((one) => [one, t(`audit.${one}` satisfies MessageKey)] as const),
          ],
          onInput: (status) => replaceQuery({ status }),
        }),
      ]),
      filter.api_key_id === ''
        ? null
        : h(
            'div',
            { class: 'row' },
            h(
              'button',
              {
                type: 'button',
                class: 'chip',
                title: t('lines.removeFilter'),
                onClick: () => replaceQuery({ api_key_id: null }),
              },
              [
                h('span', { class: 'muted' }, t('audit.key')),
                h('span', { class: 'mono' }, filter.api_key_id),
                h('span', { 'aria-hidden': 'true' }, '×'),
              ],
            ),
          ),
      h(FailureNotice, { failure: calls.failure ?? loading.failure, retry: calls.reload }),
      !calls.data
        ? calls.failure
          ? null
          : h(Loading, {})
        : rows.length === 0
          ? h(Empty, { title: t('nothingFound') })
          : h(Table<HttpRequestRecord>, {
              label: t('audit.calls'),
              columns: COLUMNS(),
              rows,
              keyOf: ({ id }) => id,
            }),
      next
        ? h('div', { class: 'more' }, h(Button, { label: t('showMore'), busy: loading.busy, onClick: load }))
        : null,
    ]),
  ])
}

const COLUMNS = (): Column<HttpRequestRecord>[] => [
  {
    title: t('audit.call'),
    main: true,
    cell: ({ id, method, path }) => [
      h('a', { class: 'row-link mono', href: href(`/audit/${id}`) }, [`${method} `, visibleText(path)]),
      h('div', { class: 'muted small mono' }, id),
    ],
  },
  {
    title: t('batch.status'),
    cell: ({ status_code }) =>
      h(Badge, { tone: status_code < 400 ? 'good' : 'bad', text: String(status_code) }),
  },
  {
    title: t('audit.key'),
    cell: ({ api_key_id }) =>
      api_key_id
        ? h(
            'button',
            {
              type: 'button',
              class: 'link mono small',
              title: t('audit.onlyKey', { id: api_key_id }),
              onClick: () => replaceQuery({ api_key_id }),
            },
            `…${api_key_id.slice(-8)}`,
          )
        : '–',
  },
  { title: t('line.duration'), align: 'end', cell: ({ duration_ms }) => duration(duration_ms) },
  { title: t('audit.when'), align: 'end', cell: ({ created }) => h(Time, { at: created, short: true }) },
]

interface AnyRecord {
  kind: string
  method?: string
  path?: string
  status_code?: number | null
  api_key_id?: string | null
  entity?: string | null
  duration_ms?: number
  created: number
  batch_id?: string
  line?: number
  custom_id?: string
}

export function AuditRecord({ id }: PageParams): View {
  const record = useResource(
    async (signal) => {
      const text = await (
        await fetchApi('GET', `/v1/requests/${encodeURIComponent(id)}`, undefined, { signal })
      ).text()
      return { shown: JSON.parse(text) as AnyRecord, text: print(parseExact(text)) }
    },
    [id],
  )
  const shown = record.data?.shown
  return h(Page, { title: id, mono: true, parent: { href: href('/audit'), title: t('audit.title') } }, [
    h(FailureNotice, { failure: record.failure }),
    !record.data || !shown
      ? record.failure
        ? null
        : h(Loading, {})
      : [
          h('div', { class: 'card' }, [
            h(Facts, {
              facts: [
                [
                  t('audit.call'),
                  shown.method
                    ? h('span', { class: 'mono' }, [`${shown.method} `, visibleText(shown.path ?? '')])
                    : null,
                ],
                [
                  t('batch'),
                  shown.batch_id
                    ? h('a', { class: 'mono', href: href(`/batches/${shown.batch_id}`) }, shown.batch_id)
                    : null,
                ],
                [
                  t('audit.line'),
                  shown.line
                    ? h('a', { href: href(`/batches/${shown.batch_id}/lines/${shown.line}`) }, [
                        String(shown.line),
                        ' · ',
                        visibleText(shown.custom_id ?? ''),
                      ])
                    : null,
                ],
                [
                  t('batch.status'),
                  shown.status_code == null
                    ? null
                    : h(Badge, {
                        tone: shown.status_code < 400 ? 'good' : 'bad',
                        text: String(shown.status_code),
                      }),
                ],
                [t('audit.key'), shown.api_key_id ? h('span', { class: 'mono' }, shown.api_key_id) : null],
                [t('line.entity'), shown.entity ? visibleText(shown.entity) : null],
                [t('line.duration'), shown.duration_ms === undefined ? null : duration(shown.duration_ms)],
                [t('audit.when'), h(Time, { at: shown.created })],
              ],
            }),
          ]),
          h(CodeBlock, { text: record.data.text, label: t('audit.record') }),
        ],
  ])
}
