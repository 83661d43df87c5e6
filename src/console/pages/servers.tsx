// The page for operators shows workers, model servers, stores and waiting reasons.
import type { VNode } from 'preact'
import type { ServiceStatus, UpstreamStatus, WorkerStatus } from '../../wire/status.ts'
import { count, duration, percent, perSecond } from '../format.ts'
import { type MessageKey, t } from '../i18n.ts'
import { Loaded, Notice } from '../parts/notice.tsx'
import { Figures, Page, Section, Time } from '../parts/page.tsx'
import { Badge } from '../parts/status.tsx'
import { type Column, Table } from '../parts/table.tsx'
import { waitingWords } from '../parts/text.tsx'
import { useGet } from '../resource.ts'
import { href } from '../router.ts'
import { type ServerState, serverState } from '../server-state.ts'

const POLL_MS = 2_000

export function Servers(): VNode {
  const status = useGet<ServiceStatus>('/v1/status', {}, () => POLL_MS)
  return (
    <Page title={t('nav.servers')} lead={t('servers.lead')}>
      <Loaded resource={status}>{(data) => <Whole status={data} />}</Loaded>
    </Page>
  )
}

function Whole({ status }: { status: ServiceStatus }): VNode {
  const { service, waiting, workers_alive } = status
  return (
    <div class="stack wide">
      {workers_alive ? null : (
        <Notice tone="bad" title={t('waiting.no_worker')}>
          {t('servers.noWorker')}
        </Notice>
      )}
      {waiting.length > 0 ? (
        <Section title={t('servers.waiting')}>
          {waiting.map(({ code, message, text, batches, example }) => (
            <Notice tone="warn" title={t(`waiting.${code}` as MessageKey)}>
              {waitingWords({ message, text })}{' '}
              <a href={href(`/batches/${example}`)}>{t('servers.batches', { n: batches })}</a>
            </Notice>
          ))}
        </Section>
      ) : null}
      {service ? <Service service={service} /> : null}
    </div>
  )
}

type ServiceState = NonNullable<ServiceStatus['service']>

function upstreamsOf({ workers, models }: ServiceState): Upstream[] {
  return workers.flatMap((worker) =>
    worker.upstreams.map((upstream) => ({
      ...upstream,
      worker: worker.id,
      isStarting: models.some(({ model, state }) => model === upstream.model && state === 'starting'),
    })),
  )
}

/** Each server once, however many workers report it. */
export function serversDown(service: ServiceState): Upstream[] {
  const down = upstreamsOf(service).filter((one) => serverState(one, one.isStarting) === 'down')
  return [...new Map(down.map((one) => [`${one.model} ${one.upstream}`, one])).values()]
}

function Service({ service }: { service: ServiceState }): VNode {
  const { workers, models, stores, queue } = service
  const upstreams = upstreamsOf(service)
  const sum = (of: (upstream: UpstreamStatus) => number): number =>
    upstreams.reduce((total, upstream) => total + of(upstream), 0)
  const openBatches = queue.batches.reduce((total, { count }) => total + count, 0)
  return (
    <div class="stack wide">
      <div class="card">
        <Figures
          figures={[
            {
              title: t('lines.title'),
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
          ]}
        />
      </div>
      {models.map(({ model, state, since, error }) => (
        <Notice tone="bad" title={`${model}: ${t(MODEL_STATES[state] ?? 'servers.state.unknown')}`}>
          {error ? error : null} <Time at={since} short />
        </Notice>
      ))}
      <Section title={t('servers.upstreams')}>
        <Table label={t('servers.upstreams')} columns={UPSTREAMS()} rows={upstreams} />
      </Section>
      <Section title={t('servers.workers')}>
        <Table label={t('servers.workers')} columns={WORKERS()} rows={workers} />
      </Section>
      <Section title={t('servers.stores')}>
        <div class="columns">
          {stores.map(({ name, kind, ok, latency_ms, error }) => (
            <div class="card stack tight">
              <div class="section-head">
                <h3>{t(`servers.${name}` satisfies MessageKey)}</h3>
                <Badge tone={ok ? 'good' : 'bad'} text={t(ok ? 'servers.ok' : 'servers.failing')} />
              </div>
              <div class="muted">
                {kind}
                {latency_ms === null ? '' : ` · ${duration(latency_ms)}`}
              </div>
              {error ? <div class="bad-text">{error}</div> : null}
            </div>
          ))}
        </div>
      </Section>
    </div>
  )
}

/** Of a server that answers others too: how many lines it may have now, and what it says of itself. */
function LiveShare({ live }: { live: NonNullable<UpstreamStatus['live']> }): VNode {
  const { share, running, waiting, cache } = live
  const said = [
    running === null ? null : t('servers.live.running', { n: running }),
    waiting === null ? null : t('servers.live.waiting', { n: waiting }),
    cache === null ? null : t('servers.live.cache', { share: percent(cache, 1) }),
  ].filter((text) => text !== null)
  return (
    <div class="muted small">
      {t('servers.live.share', { n: share })}
      {said.length === 0 ? null : ` · ${said.join(', ')}`}
    </div>
  )
}

/** Whether its hours let it take lines, and until when. */
function Hours({ hours }: { hours: NonNullable<UpstreamStatus['hours']> | null }): VNode {
  if (hours === null) return <span class="muted">{t('servers.hours.always')}</span>
  const { places, until } = hours
  return (
    <div>
      <Badge
        tone={places > 0 ? 'good' : 'idle'}
        text={places > 0 ? t('servers.hours.open', { n: places }) : t('servers.hours.closed')}
      />
      {until === null ? null : (
        <div class="muted small">
          {t('servers.hours.until')} <Time at={until} short />
        </div>
      )}
    </div>
  )
}

/** What the lines of a model wait for. */
const MODEL_STATES: Readonly<Record<string, MessageKey>> = {
  starting: 'waiting.engine_starting',
  unavailable: 'waiting.model_unavailable',
  live_traffic: 'waiting.live_traffic',
  throttled: 'waiting.upstream_throttled',
  failing: 'waiting.lines_failing',
}

const STATE_TONES = {
  healthy: 'good',
  recovering: 'warn',
  down: 'bad',
  outsideHours: 'idle',
  starting: 'info',
  unknown: 'idle',
} as const satisfies Record<ServerState, string>

type Upstream = UpstreamStatus & { worker: string; isStarting: boolean }

const UPSTREAMS = (): Column<Upstream>[] => [
  {
    title: t('servers.upstream'),
    main: true,
    cell: ({ upstream, model, tier }) => [
      <strong>{model}</strong>,
      tier ? <span class="muted small">{` · ${t('servers.tier', { n: tier })}`}</span> : null,
      <div class="muted small mono">{upstream}</div>,
    ],
  },
  {
    title: t('servers.inFlight'),
    width: '22%',
    cell: ({ in_flight, concurrency, concurrency_max, live }) => [
      <div class="progress-line">
        <span>{count(in_flight)}</span>
        <span class="muted">{`\u00a0/ ${count(concurrency)}`}</span>
        <span class="muted push">{t('servers.max', { n: concurrency_max })}</span>
      </div>,
      <div class="progress thin">
        <div
          class="progress-done"
          style={{ width: `${Math.min(1, in_flight / Math.max(concurrency, 1)) * 100}%` }}
        />
      </div>,
      live ? <LiveShare live={live} /> : null,
    ],
  },
  { title: t('lines.title'), align: 'end', cell: ({ lines_per_s }) => perSecond(lines_per_s) },
  {
    title: t('servers.latency'),
    minor: true,
    align: 'end',
    cell: ({ latency_ms }) => (latency_ms === null ? '–' : duration(latency_ms)),
  },
  {
    title: t('servers.errors'),
    minor: true,
    align: 'end',
    cell: ({ errors_per_s, last_error }) => (
      <span class={errors_per_s > 0 ? 'bad-text' : 'muted'} title={last_error ?? undefined}>
        {perSecond(errors_per_s)}
      </span>
    ),
  },
  {
    title: t('servers.hours'),
    minor: true,
    cell: ({ hours }) => <Hours hours={hours ?? null} />,
  },
  {
    title: t('servers.state'),
    cell: (upstream) => {
      const state = serverState(upstream, upstream.isStarting)
      return <Badge tone={STATE_TONES[state]} text={t(`servers.state.${state}` satisfies MessageKey)} />
    },
  },
]

const WORKERS = (): Column<WorkerStatus>[] => [
  { title: t('servers.worker'), main: true, cell: ({ id }) => <span class="mono">{id}</span> },
  { title: t('servers.started'), cell: ({ started }) => <Time at={started} short /> },
  { title: t('servers.openChunks'), align: 'end', cell: ({ open_chunks }) => count(open_chunks) },
  {
    title: t('servers.stores'),
    cell: ({ stores_failing }) => (
      <Badge
        tone={stores_failing ? 'bad' : 'good'}
        text={t(stores_failing ? 'servers.failing' : 'servers.ok')}
      />
    ),
  },
]
