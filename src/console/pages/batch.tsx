// The page of one batch shows its progress, its waiting reason, its errors with advice, its cost, and its lines.
import type { VNode } from 'preact'
import { useEffect } from 'preact/hooks'
import { endedAt } from '../../domain/batch.ts'
import type { BatchEstimate, BatchObject, CreateBatch } from '../../wire/batch.ts'
import type { BatchErrors } from '../../wire/batch-line.ts'
import type { WebhookObject } from '../../wire/event.ts'
import type { List } from '../../wire/shape.ts'
import { getPage } from '../api.ts'
import { now } from '../browser-clock.ts'
import { between, count, duration, percent, perSecond, shortId, usd, usdExact } from '../format.ts'
import { type MessageKey, t } from '../i18n.ts'
import { ended, latest, speedOf, useLive, useMissedEnds } from '../live.ts'
import { CopyButton, Entity } from '../parts/button.tsx'
import { Loaded, Notice } from '../parts/notice.tsx'
import {
  amountFigure,
  costFigure,
  type Fact,
  Facts,
  type FigureProps,
  Figures,
  Page,
  Section,
  Time,
} from '../parts/page.tsx'
import { BatchStatus, lineCounts, ProgressBar } from '../parts/status.tsx'
import { reaskText, WaitingReason, Words } from '../parts/text.tsx'
import { isBroken } from '../problems.ts'
import { type Resource, useGet, useResource } from '../resource.ts'
import { href, type PageParams } from '../router.ts'
import { may } from '../session.ts'
import { BatchActions, useEstimate } from './batch-actions.tsx'
import { ErrorGroups, useErrors } from './batch-errors.tsx'
import { Timeline } from './batch-timeline.tsx'
import { Lines } from './line-browser.tsx'

/** The interval in ms at which a batch is read while its results are written to a bucket. */
const WRITTEN_POLL_MS = 5_000

export function Batch({ id }: PageParams): VNode {
  const read = useGet<BatchObject>(`/v1/batches/${encodeURIComponent(id)}`, {}, (data) =>
    data && ended(data) && data.output_url_status === 'pending' ? WRITTEN_POLL_MS : null,
  )
  const { batches: pushed, state } = useLive()
  const batch = read.data && latest(read.data, pushed)
  useMissedEnds(batch ? [batch] : [], read.reload)
  const errors = useErrors(batch)
  const estimate = useEstimate(batch)
  const hasEnded = batch !== null && ended(batch)
  // A batch names the files of its results once it has ended.
  useEffect(() => {
    if (hasEnded && read.data && !ended(read.data)) read.reload()
  }, [hasEnded])
  return (
    <Page
      title={batch?.name ?? shortId(id)}
      parent={{ href: href('/batches'), title: t('nav.batches') }}
      lead={batch ? <Headline batch={batch} live={state === 'live'} /> : null}
      actions={batch ? <BatchActions batch={batch} errors={errors.data} reload={read.reload} /> : null}
    >
      <Loaded resource={read} rows={6}>
        {(data) => <Whole batch={batch ?? data} errors={errors} estimate={estimate} />}
      </Loaded>
    </Page>
  )
}

function Headline({ batch, live }: { batch: BatchObject; live: boolean }): VNode {
  return (
    <div class="row">
      <BatchStatus batch={batch} />
      {ended(batch) ? null : (
        <span class={live ? 'pulse' : 'pulse off'} title={t(live ? 'live.on' : 'live.off')} />
      )}
      <span>
        {t('batch.created')} <Time at={batch.created} short />
      </span>
      <span class="mono" title={batch.id}>
        {shortId(batch.id)}
      </span>
      <CopyButton text={batch.id} />
    </div>
  )
}

type WholeProps = { batch: BatchObject; errors: Resource<BatchErrors | null>; estimate: BatchEstimate | null }

function Whole({ batch, errors, estimate }: WholeProps): VNode {
  const { failed } = batch.request_counts
  const waiting = batch.waiting_reason
  return (
    <div class="stack wide">
      <a class="skip" href="#lines">
        {t('skip.lines')}
      </a>
      <Problems batch={batch} />
      {waiting ? (
        <Notice tone={isBroken(waiting.code) ? 'bad' : 'warn'} title={t(`waiting.${waiting.code}`)}>
          <WaitingReason reason={waiting} />
        </Notice>
      ) : null}
      {batch.progress?.at_risk && !(waiting && isBroken(waiting.code)) ? (
        <Notice tone="warn" title={t('batch.atRisk')}>
          {t('batch.atRiskText')} <Time at={batch.expires_at} />
        </Notice>
      ) : null}
      <div class="card stack">
        <ProgressBar batch={batch} />
        <Summary batch={batch} estimate={estimate} />
      </div>
      {failed > 0 && ended(batch) ? <Retries id={batch.id} /> : null}
      {failed > 0 ? <ErrorGroups batch={batch} errors={errors} /> : null}
      <Timeline batch={batch} />
      <Section title={t('batch.details')}>
        <Details batch={batch} />
      </Section>
      <Lines batch={batch} />
    </div>
  )
}

/** The problems for which a batch failed or expired as a whole; errors show those of single lines. */
function Problems({ batch: { status, errors, request_counts } }: { batch: BatchObject }): VNode | null {
  const problems = (errors?.data ?? []).filter(({ line }) => line === null || request_counts.failed === 0)
  if (problems.length === 0) return null
  return (
    <Notice tone="bad" title={t(`status.${status}` satisfies MessageKey)}>
      <ul class="stack tight">
        {problems.map(({ code, line, message }) => (
          <li>
            <code class="code">{code}</code> {line === null ? null : `${t('line.number', { n: line })}: `}
            <Words text={message} />
          </li>
        ))}
      </ul>
    </Notice>
  )
}

function Summary({ batch, estimate }: { batch: BatchObject; estimate: BatchEstimate | null }): VNode {
  const { total, failed, notRun, done } = lineCounts(batch)
  const { lines_per_s, estimated_completion } = speedOf(batch)
  const end = endedAt(batch)
  const from = batch.in_progress_at ?? batch.created
  const took = end === undefined ? null : Math.max(end - from, 0)
  return (
    <Figures
      figures={[
        {
          title: t('batch.finished'),
          value: count(done),
          note: t('batch.ofTotal', { total, share: percent(done, total) }),
        },
        {
          title: t('batch.failedLines'),
          value:
            failed === 0 ? (
              '0'
            ) : (
              <a class="bad-text" href={`${href(`/batches/${batch.id}`)}?status=failed#lines`}>
                {count(failed)}
              </a>
            ),
          note: done === 0 ? null : t('batch.failedShare', { share: percent(failed, done) }),
        },
        notRun === 0
          ? null
          : {
              title: t('line.notRun'),
              value: count(notRun),
              note: t('batch.ofTotal', { total, share: percent(notRun, total) }),
            },
        took === null
          ? {
              title: t('batch.speed'),
              value: lines_per_s === null ? '–' : perSecond(lines_per_s),
              note:
                estimated_completion === null
                  ? null
                  : t('batch.left', { time: duration(Math.max(0, estimated_completion * 1000 - now())) }),
            }
          : {
              title: t('batch.took'),
              value: between(0, took),
              note: took > 0 ? t('batch.mean', { rate: perSecond(done / took) }) : null,
            },
        costFigure(t('batch.cost'), batch.cost_usd, <AgainstEstimate batch={batch} estimate={estimate} />),
        promptFigure(batch),
        batch.reask_counts
          ? {
              title: t('batch.reasked'),
              value: count(batch.reask_counts.asked),
              note: t('batch.stillMiss', { n: batch.reask_counts.missed }),
            }
          : null,
        ended(batch)
          ? null
          : {
              title: t('batch.window'),
              value: batch.completion_window,
              note: [t('batch.ends'), ' ', <Time at={batch.expires_at} short />],
            },
      ]}
    />
  )
}

/** The tokens of prompts, and what caches of servers saved; null before the first. */
function promptFigure({ usage, cache_saved_usd }: BatchObject): FigureProps | null {
  if (!usage || usage.input_tokens === 0) return null
  const cached = usage.input_tokens_details.cached_tokens
  const share = percent(cached, usage.input_tokens)
  const note = cache_saved_usd
    ? t('batch.cachedSaved', { share, saved: usd(cache_saved_usd) })
    : t('batch.cached', { share })
  return amountFigure(t('new.inputTokens'), usage.input_tokens, cached === 0 ? null : note)
}

type AgainstEstimateProps = { batch: BatchObject; estimate: BatchEstimate | null }

/** The cost so far beside the highest cost of the whole batch. */
function AgainstEstimate({ batch, estimate }: AgainstEstimateProps): VNode | null {
  const most = estimate?.cost_usd
  if (most === undefined || most === 0) return null
  return (
    <span title={usdExact(most)}>
      {batch.cost_usd > most
        ? t('batch.estimated', { most: usd(most) })
        : t('batch.ofEstimate', { share: percent(batch.cost_usd, most), most: usd(most) })}
    </span>
  )
}

function Details({ batch }: { batch: BatchObject }): VNode {
  const webhooks = useGet<List<WebhookObject>>(may('webhooks:read') ? '/v1/webhooks' : null, {
    batch_id: batch.id,
  })
  const webhook = webhooks.data?.data.map(({ url }) => url).join(', ')
  const code = (text: string | null | undefined): VNode | null =>
    text ? <span class="mono">{text}</span> : null
  const { dedupe, retention, start_after, metadata: { retry_of, ...metadata } = {} } = batch
  // A field of a new batch that this page does not show does not compile.
  const terms: Record<keyof CreateBatch & keyof BatchObject, Fact | null> = {
    input_file_id: [t('batch.inputFile'), code(batch.input_file_id)],
    input_url: ['input_url', code(batch.input_url)],
    output_url: ['output_url', code(batch.output_url)],
    webhook: ['webhook', code(webhook)],
    reask: [t('new.reask'), batch.reask ? reaskText(batch.reask) : null],
    dedupe: ['dedupe', code(dedupe && String(dedupe))],
    order: ['order', code(batch.order)],
    retention: ['retention', code([retention?.results, retention?.grace].filter(Boolean).join(', '))],
    start_after: ['start_after', start_after ? <Time at={start_after} /> : null],
    endpoint: [t('batch.endpoint'), <code class="code">{batch.endpoint}</code>],
    completion_window: [t('batch.window'), batch.completion_window],
    metadata: null,
  }
  return (
    <div class="card">
      <Facts
        facts={[
          ['ID', code(batch.id)],
          [t('batch.retryOf'), retry_of ? <BatchLink id={retry_of} /> : null],
          ...Object.values(terms).filter((fact) => fact !== null),
          [t('batch.ends'), <Time at={batch.expires_at} />],
          [t('batch.outputFile'), code(batch.output_file_id)],
          [t('batch.errorFile'), code(batch.error_file_id)],
          [
            'output_url_status',
            code([batch.output_url_status, batch.output_url_error].filter(Boolean).join(': ')),
          ],
          [t('region'), batch.region],
          ...Object.entries(metadata).map(
            ([name, value]) => [name, name === 'entity' ? <Entity name={value} /> : value] as const,
          ),
        ]}
      />
    </div>
  )
}

/** The batches that retry failed lines of this batch. */
function Retries({ id }: { id: string }): VNode | null {
  const retries = useResource(
    (signal) => getPage<BatchObject>('/v1/batches', { retry_of: id, limit: 20 }, { signal }),
    [id],
  )
  const found = retries.data?.data ?? []
  if (found.length === 0) return null
  return (
    <Notice title={t('batch.retries')}>
      <ul class="stack tight">
        {found.map((retry) => (
          <li class="row" key={retry.id}>
            <BatchLink id={retry.id} /> <BatchStatus batch={retry} />
          </li>
        ))}
      </ul>
    </Notice>
  )
}

function BatchLink({ id }: { id: string }): VNode {
  return (
    <a class="mono" href={href(`/batches/${encodeURIComponent(id)}`)}>
      {id}
    </a>
  )
}
