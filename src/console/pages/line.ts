// One line: what was asked beside what was answered, every attempt, and what it cost.
import type { BatchErrors, BatchLine } from '../../wire/batch-line.ts'
import { fetchApi, get } from '../api.ts'
import { isObject, parseExact, print } from '../exact-json.ts'
import { count, duration, shortId, usd, usdExact } from '../format.ts'
import { h, type View } from '../h.ts'
import { type MessageKey, t } from '../i18n.ts'
import { CopyButton, LinkButton } from '../parts/button.ts'
import { Figures } from '../parts/figures.ts'
import { Answer, Messages } from '../parts/messages.ts'
import { FailureNotice, Loading, Notice } from '../parts/notice.ts'
import { Page, Section } from '../parts/page.ts'
import { Badge } from '../parts/status.ts'
import { type Column, Table } from '../parts/table.ts'
import { CodeBlock, visibleText } from '../parts/text.ts'
import { Time } from '../parts/time.ts'
import { useResource } from '../resource.ts'
import type { PageParams } from '../router.ts'
import { href } from '../router.ts'

interface Loaded {
  line: BatchLine
  /** With every number as it was sent. */
  exact: Record<string, unknown>
}

const TONES = { completed: 'good', failed: 'bad', pending: 'idle' } as const

export function Line({ id, line: number }: PageParams): View {
  const path = `/v1/batches/${encodeURIComponent(id)}/lines/${encodeURIComponent(number)}`
  const read = useResource(
    async (signal): Promise<Loaded> => {
      const text = await (await fetchApi('GET', path, undefined, { signal })).text()
      const exact = parseExact(text)
      return { line: JSON.parse(text) as BatchLine, exact: isObject(exact) ? exact : {} }
    },
    [path],
  )
  const loaded = read.data
  const at = Number(number)
  const neighbour = (n: number, title: MessageKey): View | null =>
    n < 1 ? null : h(LinkButton, { label: t(title), href: href(`/batches/${id}/lines/${n}`) })
  return h(
    Page,
    {
      title: loaded ? loaded.line.custom_id : t('line.number', { n: at }),
      mono: true,
      parent: { href: href(`/batches/${id}`), title: shortId(id) },
      lead: loaded ? h(Headline, { line: loaded.line }) : null,
      actions: [neighbour(at - 1, 'line.previous'), neighbour(at + 1, 'line.next')],
    },
    [
      h(FailureNotice, { failure: read.failure, retry: read.reload }),
      loaded ? h(Whole, { loaded }) : read.failure ? null : h(Loading, { rows: 5 }),
    ],
  )
}

function Headline({ line }: { line: BatchLine }): View {
  return h('div', { class: 'row' }, [
    h(Badge, { tone: TONES[line.status], text: t(`line.${line.status}` satisfies MessageKey) }),
    h('span', null, t('line.number', { n: line.line })),
    line.model ? h('span', { class: 'mono' }, visibleText(line.model)) : null,
    line.entity ? h('span', null, visibleText(line.entity)) : null,
  ])
}

function Whole({ loaded: { line, exact } }: { loaded: Loaded }): View {
  const input = isObject(exact.input) ? exact.input : null
  const body = isObject(input?.body) ? input.body : null
  const result = isObject(exact.result) ? exact.result : null
  const response = isObject(result?.response) ? result.response : null
  return h('div', { class: 'stack wide' }, [
    line.error ? h(WhyFailed, { line }) : null,
    h('div', { class: 'card' }, [
      h(Figures, {
        figures: [
          { title: t('batch.cost'), value: usd(line.cost_usd), exact: usdExact(line.cost_usd) },
          line.usage
            ? {
                title: t('line.usage'),
                value: count(line.usage.total_tokens),
                note: t('line.tokens', {
                  prompt: count(line.usage.prompt_tokens),
                  completion: count(line.usage.completion_tokens),
                }),
              }
            : null,
          line.duration_ms === null ? null : { title: t('line.duration'), value: duration(line.duration_ms) },
          { title: t('line.attempts'), value: count(line.attempts) },
        ],
      }),
    ]),
    h('div', { class: 'columns' }, [
      h(
        Section,
        {
          title: t('line.prompt'),
          aside: input ? h(CopyButton, { text: curlOf(body ?? input), label: t('line.curl') }) : null,
        },
        [body ? h(Messages, { body }) : h(Notice, {}, t('line.noInput'))],
      ),
      h(Section, { title: t('line.answer') }, [
        response
          ? h(Answer, { body: response.body, asked: body })
          : line.error
            ? null
            : h(Notice, {}, line.status === 'pending' ? t('line.pendingText') : t('line.noResult')),
      ]),
    ]),
    h(Attempts, { line }),
    h('details', { class: 'raw' }, [
      h('summary', null, t('line.raw')),
      h('div', { class: 'columns' }, [
        input ? h(CodeBlock, { text: print(input), label: t('line.prompt') }) : null,
        result ? h(CodeBlock, { text: print(result), label: t('line.answer') }) : null,
      ]),
    ]),
    h('p', { class: 'muted small' }, [
      t('line.record'),
      ' ',
      h('a', { class: 'mono', href: href(`/audit/${line.id}`) }, line.id),
    ]),
  ])
}

function WhyFailed({ line }: { line: BatchLine }): View {
  const batchId = isObject(line.record) ? String(line.record.batch_id) : ''
  const groups = useResource(
    async () => (batchId === '' ? null : await get<BatchErrors>(`/v1/batches/${batchId}/errors`)),
    [batchId],
  )
  const advice = groups.data?.groups.find(({ code }) => code === line.error?.code)?.advice
  return h(Notice, { tone: 'bad', title: line.error?.code }, [
    visibleText(line.error?.message ?? ''),
    advice ? h('div', { class: 'muted' }, advice) : null,
  ])
}

interface Attempt {
  at: number
  upstream: string
  status: number | null
  duration_ms: number
  reason?: string
}

function Attempts({ line }: { line: BatchLine }): View | null {
  const attempts = (line.record?.attempts ?? []) as Attempt[]
  if (attempts.length === 0) return null
  const columns: Column<Attempt>[] = [
    { title: t('line.sent'), main: true, cell: ({ at }) => h(Time, { at }) },
    { title: t('line.server'), cell: ({ upstream }) => visibleText(upstream) },
    {
      title: t('batch.status'),
      cell: ({ status, reason }) => [
        h(Badge, {
          tone: reason ? 'bad' : 'good',
          text: status === null ? t('line.noAnswer') : String(status),
        }),
        reason ? h('div', { class: 'muted small' }, visibleText(reason)) : null,
      ],
    },
    { title: t('line.duration'), align: 'end', cell: ({ duration_ms }) => duration(duration_ms) },
  ]
  return h(
    Section,
    { title: t('line.attempts') },
    h(Table<Attempt>, {
      label: t('line.attempts'),
      columns,
      rows: attempts,
      keyOf: ({ at, upstream }) => `${at} ${upstream}`,
    }),
  )
}

/** To be sent to the model's own server: batches alone are served here. */
function curlOf(body: Record<string, unknown>): string {
  const text = print(body).replaceAll("'", String.raw`'\''`)
  return `curl "$MODEL_SERVER/v1/chat/completions" -H 'Content-Type: application/json' -d '${text}'\n`
}
