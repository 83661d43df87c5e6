// One batch: how far it is, why it waits, why lines failed and what to do, what it costs, and every line of it.
import { useEffect } from 'preact/hooks'
import type { BatchEstimate, BatchObject } from '../../wire/batch.ts'
import { get, post } from '../api.ts'
import { now } from '../browser-clock.ts'
import { count, duration, percent, perSecond, shortId, usd, usdExact } from '../format.ts'
import { h, type View } from '../h.ts'
import { t } from '../i18n.ts'
import { ended, endedAt, latest, useLive, useMissedEnds } from '../live.ts'
import { CopyButton } from '../parts/button.ts'
import { Facts, Figures } from '../parts/figures.ts'
import { FailureNotice, Loading, Notice } from '../parts/notice.ts'
import { Page, Section } from '../parts/page.ts'
import { BatchStatus, ProgressBar } from '../parts/status.ts'
import { Time } from '../parts/time.ts'
import { useResource } from '../resource.ts'
import type { PageParams } from '../router.ts'
import { href } from '../router.ts'
import { may } from '../session.ts'
import { BatchActions } from './batch-actions.ts'
import { ErrorGroups } from './batch-errors.ts'
import { Timeline } from './batch-timeline.ts'
import { Lines } from './line-browser.ts'

export function Batch({ id }: PageParams): View {
  const read = useResource(
    (signal) => get<BatchObject>(`/v1/batches/${encodeURIComponent(id)}`, {}, { signal }),
    [id],
  )
  const { batches: pushed, state } = useLive()
  const batch = read.data && latest(read.data, pushed)
  useMissedEnds(batch ? [batch] : [], read.reload)
  const hasEnded = batch !== null && ended(batch)
  // The files of results are named once it has ended.
  useEffect(() => {
    if (hasEnded && read.data && !ended(read.data)) read.reload()
  }, [hasEnded])
  return h(
    Page,
    {
      title: shortId(id),
      mono: true,
      parent: { href: href('/batches'), title: t('batches.title') },
      lead: batch ? h(Headline, { batch, live: state === 'live' }) : null,
      actions: batch ? h(BatchActions, { batch, reload: read.reload }) : null,
    },
    [
      h(FailureNotice, { failure: read.failure, retry: read.reload }),
      batch ? h(Whole, { batch }) : read.failure ? null : h(Loading, { rows: 6 }),
    ],
  )
}

function Headline({ batch, live }: { batch: BatchObject; live: boolean }): View {
  return h('div', { class: 'row' }, [
    h(BatchStatus, { batch }),
    ended(batch)
      ? null
      : h('span', { class: live ? 'pulse' : 'pulse off', title: t(live ? 'live.on' : 'live.off') }),
    h('span', null, [t('batch.created'), ' ', h(Time, { at: batch.created, short: true })]),
    h(CopyButton, { text: batch.id }),
  ])
}

function Whole({ batch }: { batch: BatchObject }): View {
  const { failed } = batch.request_counts
  const waiting = batch.waiting_reason
  return h('div', { class: 'stack wide' }, [
    waiting
      ? h(Notice, { tone: 'warn', title: t('batch.waiting') }, [
          waiting.message,
          waiting.model ? [' ', h('code', { class: 'code' }, waiting.model)] : null,
        ])
      : null,
    batch.progress?.at_risk
      ? h(Notice, { tone: 'warn', title: t('batch.atRisk') }, [
          t('batch.atRiskText'),
          ' ',
          h(Time, { at: batch.expires_at }),
        ])
      : null,
    h('div', { class: 'card stack' }, [
      h(ProgressBar, { counts: batch.request_counts }),
      h(Summary, { batch }),
    ]),
    failed > 0 ? h(ErrorGroups, { batch }) : null,
    h(Timeline, { batch }),
    h(Lines, { batch }),
    h(Section, { title: t('batch.details') }, h(Details, { batch })),
  ])
}

function Summary({ batch }: { batch: BatchObject }): View {
  const { total, completed, failed } = batch.request_counts
  const done = completed + failed
  const { lines_per_s = null, estimated_completion = null } = batch.progress ?? {}
  const end = endedAt(batch)
  const from = batch.in_progress_at ?? batch.created
  const took = end === undefined ? null : Math.max(end - from, 0)
  return h(Figures, {
    figures: [
      {
        title: t('batch.finished'),
        value: count(done),
        note: t('batch.ofTotal', { total, share: percent(done, total) }),
      },
      {
        title: t('batch.failedLines'),
        value:
          failed === 0
            ? '0'
            : h(
                'a',
                { class: 'bad-text', href: `${href(`/batches/${batch.id}`)}?status=failed#lines` },
                count(failed),
              ),
        note: done === 0 ? null : t('batch.failedShare', { share: percent(failed, done) }),
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
            value: duration(took * 1000),
            note: took > 0 ? t('batch.mean', { rate: perSecond(done / took) }) : null,
          },
      {
        title: t('batch.cost'),
        value: usd(batch.cost_usd),
        exact: usdExact(batch.cost_usd),
        note: h(AgainstEstimate, { batch }),
      },
      ended(batch)
        ? null
        : {
            title: t('batch.window'),
            value: batch.completion_window,
            note: [t('batch.ends'), ' ', h(Time, { at: batch.expires_at, short: true })],
          },
    ],
  })
}

/** What the whole batch may cost at most, next to what it has cost. */
function AgainstEstimate({ batch }: { batch: BatchObject }): View | null {
  const estimate = useResource(async () => {
    if (!may('batches:write')) return null
    const { input_file_id, endpoint, completion_window, metadata } = batch
    return await post<BatchEstimate>('/v1/batches?dry_run=true', {
      input_file_id,
      endpoint,
      completion_window,
      ...(metadata ? { metadata } : {}),
    })
  }, [batch.id])
  const most = estimate.data?.cost_usd
  if (most === undefined || most === 0) return null
  return h(
    'span',
    { title: usdExact(most) },
    batch.cost_usd > most
      ? t('batch.estimated', { most: usd(most) })
      : t('batch.ofEstimate', { share: percent(batch.cost_usd, most), most: usd(most) }),
  )
}

function Details({ batch }: { batch: BatchObject }): View {
  const file = (id: string | null | undefined): View | null => (id ? h('span', { class: 'mono' }, id) : null)
  return h('div', { class: 'card' }, [
    h(Facts, {
      facts: [
        ['ID', h('span', { class: 'mono' }, batch.id)],
        [t('batch.inputFile'), file(batch.input_file_id)],
        [t('batch.outputFile'), file(batch.output_file_id)],
        [t('batch.errorFile'), file(batch.error_file_id)],
        [t('batch.endpoint'), h('code', { class: 'code' }, batch.endpoint)],
        [t('batch.window'), batch.completion_window],
        [t('batch.ends'), h(Time, { at: batch.expires_at })],
        [t('region'), batch.region],
        ...Object.entries(batch.metadata ?? {}).map(([name, value]) => [name, value] as const),
      ],
    }),
  ])
}
