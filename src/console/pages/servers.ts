// For operators: workers and model servers, the stores, and what waits for what.
import { useEffect } from 'preact/hooks'
import type { ServiceStatus, UpstreamStatus, WorkerStatus } from '../../wire/status.ts'
import { get } from '../api.ts'
import { every } from '../browser-clock.ts'
import { count, duration, percent, perSecond } from '../format.ts'
import { h, type View } from '../h.ts'
import { type MessageKey, t } from '../i18n.ts'
import { Figures } from '../parts/figures.ts'
import { FailureNotice, Loading, Notice } from '../parts/notice.ts'
import { Page, Section } from '../parts/page.ts'
import { Badge } from '../parts/status.ts'
import { type Column, Table } from '../parts/table.ts'
import { visibleText } from '../parts/text.ts'
import { Time } from '../parts/time.ts'
import { useResource } from '../resource.ts'
import { href } from '../router.ts'

const POLL_MS = 2_000

export function Servers(): View {
  const status = useResource((signal) => get<ServiceStatus>('/v1/status', {}, { signal }), [])
  useEffect(() => every(POLL_MS, status.reload), [])
  const data = status.data
  return h(Page, { title: t('servers.title'), lead: t('servers.lead') }, [
    h(FailureNotice, { failure: status.failure, retry: status.reload }),
    data ? h(Whole, { status: data }) : status.failure ? null : h(Loading, {}),
  ])
}

function Whole({ status }: { status: ServiceStatus }): View {
  const { service, waiting, workers_alive } = status
  return h('div', { class: 'stack wide' }, [
    workers_alive ? null : h(Notice, { tone: 'bad', title: t('waiting.no_worker') }, t('servers.noWorker')),
    waiting.length > 0
      ? h(
          Section,
          { title: t('servers.waiting') },
          waiting.map(({ code, message, model, batches, example }) =>
            h(Notice, { tone: 'warn', title: t(`waiting.${code}` as MessageKey) || code }, [
              visibleText(message),
              model ? [' ', h('code', { class: 'code' }, visibleText(model))] : null,
              ' ',
              h('a', { href: href(`/batches/${example}`) }, t('servers.batches', { n: batches })),
            ]),
          ),
        )
      : null,
    service ? h(Service, { service }) : null,
  ])
}

function Service({ service }: { service: NonNullable<ServiceStatus['service']> }): View {
  const { workers, models, stores, queue } = service
  const upstreams = workers.flatMap((worker) =>
    worker.upstreams.map((upstream) => ({ ...upstream, worker: worker.id })),
  )
  const sum = (of: (upstream: UpstreamStatus) => number): number =>
    upstreams.reduce((total, upstream) => total + of(upstream), 0)
  const openBatches = queue.batches.reduce((total, { count }) => total + count, 0)
  return h('div', { class: 'stack wide' }, [
    h('div', { class: 'card' }, [
      h(Figures, {
        figures: [
          {
            title: t('servers.throughput'),
            value: perSecond(sum(({ lines_per_s }) => lines_per_s)),
            note: t('servers.errorsRate', { rate: perSecond(sum(({ errors_per_s }) => errors_per_s)) }),
          },
          {
            title: t('servers.inFlight'),
            value: count(sum(({ in_flight }) => in_flight)),
            note: t('servers.ofConcurrency', { n: sum(({ concurrency }) => concurrency) }),
          },
          {
            title: t('servers.open'),
            value: count(openBatches),
            note: t('servers.chunks', {
              ready: queue.chunks.ready,
              leased: queue.chunks.leased,
              parked: queue.chunks.parked,
            }),
          },
          { title: t('servers.workers'), value: count(workers.length) },
        ],
      }),
    ]),
    models.map(({ model, state, since, error }) =>
      h(Notice, { tone: 'bad', title: `${model}: ${state}` }, [
        error ? visibleText(error) : null,
        ' ',
        h(Time, { at: since, short: true }),
      ]),
    ),
    h(
      Section,
      { title: t('servers.upstreams') },
      h(Table<UpstreamStatus & { worker: string }>, {
        label: t('servers.upstreams'),
        columns: UPSTREAMS(),
        rows: upstreams,
        keyOf: ({ worker, model, upstream }) => `${worker} ${model} ${upstream}`,
      }),
    ),
    h(
      Section,
      { title: t('servers.workers') },
      h(Table<WorkerStatus>, {
        label: t('servers.workers'),
        columns: WORKERS(),
        rows: workers,
        keyOf: ({ id }) => id,
      }),
    ),
    h(Section, { title: t('servers.stores') }, [
      h(
        'div',
        { class: 'columns' },
        stores.map(({ name, kind, ok, latency_ms, error }) =>
          h('div', { class: 'card stack tight' }, [
            h('div', { class: 'section-head' }, [
              h('h3', null, t(`servers.${name}` satisfies MessageKey)),
              h(Badge, { tone: ok ? 'good' : 'bad', text: t(ok ? 'servers.ok' : 'servers.failing') }),
            ]),
            h('div', { class: 'muted' }, [kind, latency_ms === null ? '' : ` · ${duration(latency_ms)}`]),
            error ? h('div', { class: 'bad-text' }, visibleText(error)) : null,
          ]),
        ),
      ),
    ]),
  ])
}

/** Of a server that answers others too: how many lines it may have now, and what it says of itself. */
function LiveShare({ live }: { live: NonNullable<UpstreamStatus['live']> }): View {
  const { share, running, waiting, cache } = live
  const said = [
    running === null ? null : t('servers.live.running', { n: running }),
    waiting === null ? null : t('servers.live.waiting', { n: waiting }),
    cache === null ? null : t('servers.live.cache', { share: percent(cache, 1) }),
  ].filter((text) => text !== null)
  return h('div', { class: 'muted small' }, [
    t('servers.live.share', { n: share }),
    said.length === 0 ? null : ` · ${said.join(', ')}`,
  ])
}

/** Whether its hours let it take lines, and until when. */
function Hours({ hours }: { hours: NonNullable<UpstreamStatus['hours']> | null }): View {
  if (hours === null) return h('span', { class: 'muted' }, t('servers.hours.always'))
  const { places, until } = hours
  return h('div', null, [
    h(Badge, {
      tone: places > 0 ? 'good' : 'idle',
      text: places > 0 ? t('servers.hours.open', { n: places }) : t('servers.hours.closed'),
    }),
    until === null
      ? null
      : h('div', { class: 'muted small' }, [
          t('servers.hours.until'),
          ' ',
          h(Time, { at: until, short: true }),
        ]),
  ])
}

const UPSTREAMS = (): Column<UpstreamStatus & { worker: string }>[] => [
  {
    title: t('servers.upstream'),
    main: true,
    cell: ({ upstream, model, tier }) => [
      h('strong', null, visibleText(model)),
      tier ? h('span', { class: 'muted small' }, ` · ${t('servers.tier', { n: tier })}`) : null,
      h('div', { class: 'muted small mono' }, visibleText(upstream)),
    ],
  },
  {
    title: t('servers.inFlight'),
    width: '22%',
    cell: ({ in_flight, concurrency, concurrency_max, live }) => [
      h('div', { class: 'progress-line' }, [
        h('span', null, count(in_flight)),
        h('span', { class: 'muted' }, `\u00a0/ ${count(concurrency)}`),
        h('span', { class: 'muted push' }, t('servers.max', { n: concurrency_max })),
      ]),
      h(
        'div',
        { class: 'progress thin' },
        h('div', {
          class: 'progress-done',
          style: { width: `${Math.min(1, in_flight / Math.max(concurrency, 1)) * 100}%` },
        }),
      ),
      live ? h(LiveShare, { live }) : null,
    ],
  },
  { title: t('servers.throughput'), align: 'end', cell: ({ lines_per_s }) => perSecond(lines_per_s) },
  {
    title: t('servers.latency'),
    align: 'end',
    cell: ({ latency_ms }) => (latency_ms === null ? '–' : duration(latency_ms)),
  },
  {
    title: t('servers.errors'),
    align: 'end',
    cell: ({ errors_per_s, last_error }) =>
      h(
        'span',
        { class: errors_per_s > 0 ? 'bad-text' : 'muted', title: last_error ?? undefined },
        perSecond(errors_per_s),
      ),
  },
  {
    title: t('servers.hours'),
    cell: ({ hours }) => h(Hours, { hours: hours ?? null }),
  },
  {
    title: t('servers.circuit'),
    cell: ({ circuit }) =>
      h(Badge, {
        tone: circuit === 'closed' ? 'good' : 'bad',
        text: t(`servers.circuit.${circuit}` satisfies MessageKey),
      }),
  },
]

const WORKERS = (): Column<WorkerStatus>[] => [
  { title: t('servers.worker'), main: true, cell: ({ id }) => h('span', { class: 'mono' }, id) },
  { title: t('servers.started'), cell: ({ started }) => h(Time, { at: started, short: true }) },
  { title: t('servers.openChunks'), align: 'end', cell: ({ open_chunks }) => count(open_chunks) },
  {
    title: t('servers.stores'),
    cell: ({ stores_failing }) =>
      h(Badge, {
        tone: stores_failing ? 'bad' : 'good',
        text: t(stores_failing ? 'servers.failing' : 'servers.ok'),
      }),
  },
]
