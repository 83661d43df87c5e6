// The page of one line shows its request beside its answer, every attempt, and its cost.
import type { VNode } from 'preact'
import { useLayoutEffect, useState } from 'preact/hooks'
import { isRecord } from '../../domain/json-record.ts'
import type { BatchObject } from '../../wire/batch.ts'
import type { BatchErrors, BatchLine, LineSummary } from '../../wire/batch-line.ts'
import type { List } from '../../wire/shape.ts'
import { fetchApi, get, type Query } from '../api.ts'
import { count, duration, shortId } from '../format.ts'
import { adviceOn, type MessageKey, t } from '../i18n.ts'
import { parseExact, print } from '../json.ts'
import { Choice, CopyButton, Entity, LinkButton } from '../parts/button.tsx'
import { Answer, AsWritten, Messages } from '../parts/messages.tsx'
import { Loaded, Notice } from '../parts/notice.tsx'
import { costFigure, Figures, Page, Section, Time } from '../parts/page.tsx'
import { Badge, LineBadge } from '../parts/status.tsx'
import { type Column, Table } from '../parts/table.tsx'
import { CodeBlock, Words } from '../parts/text.tsx'
import { useGet, useResource } from '../resource.ts'
import { href, navigate, type PageParams, useAddress } from '../router.ts'
import { mayRetryCode, RetryButton } from './batch-actions.tsx'
import { type LineFilter, readFilter } from './line-browser.tsx'

interface LineRead {
  line: BatchLine
  /** The request with every number as it was sent. */
  exact: Record<string, unknown>
}

export function Line({ id, line: number }: PageParams): VNode {
  const path = `/v1/batches/${encodeURIComponent(id)}/lines/${encodeURIComponent(number)}`
  const read = useResource(
    async (signal): Promise<LineRead> => {
      const text = await (await fetchApi('GET', path, undefined, { signal })).text()
      const exact = parseExact(text)
      return { line: JSON.parse(text) as BatchLine, exact: isRecord(exact) ? exact : {} }
    },
    [path],
  )
  const loaded = read.data
  const at = Number(number)
  const { query } = useAddress()
  const filter = readFilter(query)
  const neighbours = useResource((signal) => readNeighbours(id, at, filter, signal), [id, at, filter])
  const [previous, next] = neighbours.data ?? []
  const to = (n: number): string => `/batches/${id}/lines/${n}${location.search}`
  // The layout effect runs before neighbours are shown, since keys may be pressed at once.
  useLayoutEffect(() => {
    const press = ({ key, target, ctrlKey, metaKey, altKey }: KeyboardEvent): void => {
      const inField = target instanceof Element && target.closest('input, textarea, select, dialog')
      const line = key === 'j' ? next : key === 'k' ? previous : undefined
      if (line != null && !inField && !ctrlKey && !metaKey && !altKey) navigate(to(line))
    }
    document.addEventListener('keydown', press)
    return () => document.removeEventListener('keydown', press)
  }, [previous, next])
  const neighbour = (n: number | null | undefined, title: MessageKey): VNode | null =>
    n == null ? null : <LinkButton label={t(title)} href={href(to(n))} />
  return (
    <Page
      title={loaded ? loaded.line.custom_id : t('line.number', { n: at })}
      mono
      parent={{ href: href(`/batches/${id}${location.search}`), title: shortId(id) }}
      lead={loaded ? <Headline line={loaded.line} /> : null}
      actions={[
        loaded?.line.status === 'failed' ? <RetryLine batchId={id} line={loaded.line} /> : null,
        neighbour(previous, 'line.previous'),
        neighbour(next, 'line.next'),
      ]}
    >
      <Loaded resource={read} rows={5}>
        {(loaded) => <Whole loaded={loaded} />}
      </Loaded>
    </Page>
  )
}

/** The numbers of the filtered lines before and behind a line; null where there is none. */
async function readNeighbours(
  id: string,
  at: number,
  filter: LineFilter,
  signal: AbortSignal,
): Promise<readonly [number | null, number | null]> {
  const path = `/v1/batches/${encodeURIComponent(id)}/lines`
  /** The first or last line between two lines, both excluded. */
  const within = async (after: number, before: number, end: 'first' | 'last'): Promise<number | null> => {
    let last: number | null = null
    for (let cursor: string | null = String(after); cursor !== null && Number(cursor) < before - 1; ) {
      const query: Query = { ...filter, after: cursor, limit: end === 'first' ? 1 : 500 }
      const { data, next_cursor }: List<LineSummary> = await get(path, query, { signal })
      const lines = data.map(({ line }) => line).filter((line) => line < before)
      last = lines.at(-1) ?? last
      if (last !== null && end === 'first') break
      cursor = lines.length < data.length ? null : next_cursor
    }
    return last
  }
  const previous = async (): Promise<number | null> => {
    for (let before = at, span = 1; before > 1; span *= 16) {
      const after = Math.max(0, before - 1 - span)
      const found = await within(after, before, 'last')
      if (found !== null) return found
      before = after + 1
    }
    return null
  }
  return await Promise.all([previous(), within(at, Number.MAX_SAFE_INTEGER, 'first')])
}

/** Offers to retry a line in a batch of its own, once this one has ended. */
function RetryLine({ batchId, line: { line, error } }: { batchId: string; line: BatchLine }): VNode | null {
  const batch = useGet<BatchObject>(`/v1/batches/${batchId}`)
  return batch.data && mayRetryCode(error?.code ?? '') ? (
    <RetryButton batch={batch.data} which={{ line }} lines={1} label={t('line.retry')} />
  ) : null
}

function Headline({ line }: { line: BatchLine }): VNode {
  return (
    <div class="row">
      <LineBadge line={line} />
      <span>{t('line.number', { n: line.line })}</span>
      {line.model ? <span class="mono">{line.model}</span> : null}
      {line.entity ? <Entity name={line.entity} /> : null}
    </div>
  )
}

function Whole({ loaded: { line, exact } }: { loaded: LineRead }): VNode {
  const input = isRecord(exact.input) ? exact.input : null
  const body = isRecord(input?.body) ? input.body : null
  const result = isRecord(exact.result) ? exact.result : null
  const response = isRecord(result?.response) ? result.response : null
  const [asWritten, setAsWritten] = useState(false)
  const choice = (
    <Choice
      label={t('line.form')}
      options={[
        ['formatted', t('line.formatted')],
        ['written', t('line.written')],
      ]}
      value={asWritten ? 'written' : 'formatted'}
      choose={(form) => setAsWritten(form === 'written')}
    />
  )
  return (
    <div class="stack wide">
      {line.error ? <WhyFailed line={line} /> : null}
      <div class="card">
        <Figures
          figures={[
            costFigure(t('batch.cost'), line.cost_usd),
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
            line.duration_ms === null
              ? null
              : {
                  title: t('line.duration'),
                  value: duration(line.duration_ms),
                  note: line.attempts > 1 ? t('line.lastOf', { n: line.attempts }) : null,
                },
            { title: t('line.attempts'), value: count(line.attempts) },
          ]}
        />
      </div>
      <AsWritten.Provider value={asWritten}>
        <div class="columns">
          <Section
            title={t('line.prompt')}
            aside={input ? <CopyButton text={curlOf(input)} label={t('line.curl')} /> : null}
          >
            {body ? <Messages body={body} /> : <Notice>{t('line.noInput')}</Notice>}
          </Section>
          <Section title={t('line.answer')} aside={choice}>
            {response ? (
              <Answer body={response.body} asked={body} />
            ) : line.error ? null : (
              <Notice>{line.status === 'pending' ? t('line.pendingText') : t('line.noResult')}</Notice>
            )}
          </Section>
        </div>
      </AsWritten.Provider>
      <Attempts line={line} />
      <details class="raw">
        <summary>{t('line.raw')}</summary>
        <div class="columns">
          {input ? <CodeBlock text={print(input)} label={t('line.prompt')} /> : null}
          {result ? <CodeBlock text={print(result)} label={t('line.answer')} /> : null}
        </div>
      </details>
      <p class="muted small">
        {t('line.record')}{' '}
        <a class="mono" href={href(`/audit/${line.id}`)}>
          {line.id}
        </a>
      </p>
    </div>
  )
}

function WhyFailed({ line }: { line: BatchLine }): VNode {
  const batchId = isRecord(line.record) ? String(line.record.batch_id) : ''
  const groups = useResource(
    async () => (batchId === '' ? null : await get<BatchErrors>(`/v1/batches/${batchId}/errors`)),
    [batchId],
  )
  const advice = groups.data?.groups.find(({ code }) => code === line.error?.code)?.advice
  return (
    <Notice tone="bad" title={line.error?.code}>
      {line.error?.message ?? ''}
      {advice ? (
        <div class="muted">
          <Words text={adviceOn(line.error?.code ?? '', advice)} />
        </div>
      ) : null}
    </Notice>
  )
}

type Attempt = { at: number; upstream: string; status: number | null; duration_ms: number; reason?: string }

/** The fault of an answer in words, else the server's message. */
function reasonText(reason: string): string {
  return reason === 'not_schema' || reason === 'not_json' || reason === 'cut_off'
    ? t(`line.again.${reason}`)
    : reason
}

function Attempts({ line }: { line: BatchLine }): VNode | null {
  const attempts = (line.record?.attempts ?? []) as Attempt[]
  if (attempts.length === 0) return null
  const columns: Column<Attempt>[] = [
    { title: t('line.sent'), main: true, cell: ({ at }) => <Time at={at} /> },
    { title: t('line.server'), cell: ({ upstream }) => upstream },
    {
      title: t('batch.status'),
      cell: ({ status, reason }) => [
        <Badge tone={reason ? 'bad' : 'good'} text={status === null ? t('line.noAnswer') : String(status)} />,
        reason ? <div class="muted small">{reasonText(reason)}</div> : null,
      ],
    },
    { title: t('line.duration'), align: 'end', cell: ({ duration_ms }) => duration(duration_ms) },
  ]
  return (
    <Section title={t('line.attempts')}>
      <Table label={t('line.attempts')} columns={columns} rows={attempts} />
    </Section>
  )
}

/** A curl command for the model's own server, since this service answers only batches. */
function curlOf({ url, body }: Record<string, unknown>): string {
  const quoted = (text: string): string => `'${text.replaceAll("'", String.raw`'\''`)}'`
  return `curl "$MODEL_SERVER"${quoted(String(url))} -H 'Content-Type: application/json' -d ${quoted(print(body))}\n`
}
