// The page for operators shows workers, model servers, stores and waiting reasons.
import type { VNode } from 'preact'
import { useState } from 'preact/hooks'
import { heldBackBy, type ServerState, serversOf } from '../../domain/server-state.ts'
import type { LaneReportRow } from '../../store/schema.ts'
import type { BatchObject } from '../../wire/batch.ts'
import type { ServiceStatus, UpstreamStatus, WorkerStatus } from '../../wire/status.ts'
import { Chart } from '../chart.tsx'
import { count, duration, percent, perSecond } from '../format.ts'
import { type MessageKey, t } from '../i18n.ts'
import { speedOf, useLive } from '../live.ts'
import { Choice } from '../parts/button.tsx'
import { Loaded, Notice } from '../parts/notice.tsx'
import { Figures, Page, Section, Time } from '../parts/page.tsx'
import { Badge } from '../parts/status.tsx'
import { type Column, Table } from '../parts/table.tsx'
import { waitingWords } from '../parts/text.tsx'
import { isBroken } from '../problems.ts'
import { useGet } from '../resource.ts'
import { href } from '../router.ts'

export function Servers(): VNode {
  const status = useGet<ServiceStatus>('/v1/status', { history: true })
  return (
    <Page title={t('nav.servers')} lead={t('servers.lead')}>
      <Loaded resource={status}>{(data) => <Shown status={data} />}</Loaded>
    </Page>
  )
}

function Shown({ status }: { status: ServiceStatus }): VNode {
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
            <Notice tone={isBroken(code) ? 'bad' : 'info'} title={t(`waiting.${code}` as MessageKey)}>
              {waitingWords({ message, text })}{' '}
              <a href={href(`/batches/${example}`)}>{t('servers.batches', { n: batches })}</a>
            </Notice>
          ))}
        </Section>
      ) : null}
      {service ? <Whole service={service} waiting={waiting} /> : null}
    </div>
  )
}

type WholeProps = { service: NonNullable<ServiceStatus['service']>; waiting: ServiceStatus['waiting'] }

function Whole({ service, waiting }: WholeProps): VNode {
  const { workers, stores, queue } = service
  const upstreams = serversOf(service).map((server) => {
    const hours = service.history?.filter(
      ({ model, upstream: name }) => model === server.model && name === server.upstream,
    )
    return { ...server, latency_ms: server.latency_ms ?? hours?.at(-1)?.latency_ms ?? null }
  })
  // Outages of waiting batches are shown above, and a 429 is no outage.
  const isTold = new Set(waiting.map(({ model }) => model))
  const models = service.models.filter(
    ({ model, error }) => !isTold.has(model) && !/^429\b/.test(error ?? ''),
  )
  const sum = (of: (upstream: Server) => number): number =>
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
        <Notice
          tone="bad"
          key={model}
          title={`${model}: ${t(MODEL_STATES[state] ?? 'servers.state.unknown')}`}
        >
          {error ? `${error} · ` : null}
          <Time at={since} short />
        </Notice>
      ))}
      <Demand servers={upstreams} models={service.models} />
      <Section title={t('servers.upstreams')}>
        <Table label={t('servers.upstreams')} columns={UPSTREAMS()} rows={upstreams} />
      </Section>
      <History hours={service.history ?? []} />
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

type Models = NonNullable<ServiceStatus['service']>['models']
/** The waiting lines of a model. `why`: the reason for which none of its servers answers. */
type Waits = {
  model: string | null
  lines: number
  rate: number
  servers: readonly Server[]
  why?: MessageKey
}

/** The models of waiting lines, the slowest first, and the limits of their servers. */
function Demand({ servers, models }: { servers: readonly Server[]; models: Models }): VNode | null {
  const due = ({ paused_at, waiting_reason: why }: BatchObject): boolean =>
    !paused_at && why?.code !== 'not_before'
  const open = (useLive().open ?? []).filter(due)
  const rows = [...Map.groupBy(open, ({ model = null }) => model)].map(([model, batches]): Waits => {
    const own = servers.filter((server) => server.model === model)
    const lines = batches.reduce((sum, { request_counts: n }) => sum + n.total - n.completed - n.failed, 0)
    // A slow server has answered no line in most reports.
    const rate = batches.reduce((sum, batch) => sum + (speedOf(batch).lines_per_s ?? 0), 0)
    const state = models.find((one) => one.model === model)?.state ?? ''
    return { model, lines, rate, servers: own, why: MODEL_STATES[state] }
  })
  const waits = rows.filter(({ lines }) => lines > 0).sort((a, b) => a.rate / a.lines - b.rate / b.lines)
  if (waits.length === 0) return null
  return (
    <Section title={t('servers.demand')}>
      <Table label={t('servers.demand')} columns={DEMAND()} rows={waits} />
    </Section>
  )
}

const DEMAND = (): Column<Waits>[] => [
  { title: t('line.model'), main: true, cell: ({ model }) => model ?? t('servers.severalModels') },
  { title: t('overview.linesLeft'), align: 'end', cell: ({ lines }) => count(lines) },
  { title: t('batch.speed'), align: 'end', cell: ({ rate }) => perSecond(rate) },
  {
    title: t('overview.doneIn'),
    align: 'end',
    cell: ({ lines, rate }) => (rate > 0 ? duration((lines / rate) * 1000) : '–'),
  },
  {
    title: t('servers.heldBack'),
    cell: ({ servers, why }) =>
      why
        ? t(why)
        : servers.map((server) => (
            <div>
              {server.upstream}
              {': '}
              <span class="muted">{heldBackText(server, servers)}</span>
            </div>
          )),
  },
]

type Hour = NonNullable<NonNullable<ServiceStatus['service']>['history']>[number]

const HOUR_S = 3_600
const COLOURS = ['--series-1', '--series-2', '--series-3', '--series-4', '--series-5', '--series-6']

/** The measures by which the chart shows each hour of a server. */
const MEASURES = {
  requests: { of: ({ answered }: Hour) => answered, show: count },
  errors: { of: ({ missed }: Hour) => missed, show: count },
  latency: { of: ({ latency_ms }: Hour) => latency_ms, show: duration },
  inFlight: { of: ({ concurrency }: Hour) => concurrency, show: (n: number) => count(Number(n.toFixed(1))) },
}
const MEASURE_NAMES = ['requests', 'errors', 'latency', 'inFlight'] as const

/** The chart of the last day for the servers with the most requests. */
function History({ hours }: { hours: readonly Hour[] }): VNode | null {
  const [measure, setMeasure] = useState<(typeof MEASURE_NAMES)[number]>('requests')
  if (hours.length === 0) return null
  const { of, show } = MEASURES[measure]
  const servers = [...Map.groupBy(hours, ({ model, upstream }) => `${model} · ${upstream}`)]
  const sum = (some: readonly Hour[]): number => some.reduce((all, one) => all + one.answered + one.missed, 0)
  const most = servers.sort(([, a], [, b]) => sum(b) - sum(a)).slice(0, COLOURS.length)
  const end = Math.max(...hours.map(({ at }) => at))
  const times = Array.from({ length: 24 }, (_, i) => end - (23 - i) * HOUR_S)
  const options = MEASURE_NAMES.map((name) => [name, t(`servers.${name}`)] as const)
  const label = t(`servers.${measure}`)
  return (
    <Section
      title={t('overview.lastDay')}
      aside={<Choice label={t('timeline.measure')} options={options} value={measure} choose={setMeasure} />}
    >
      <div class="card stack">
        <Chart
          label={label}
          times={times}
          series={most.map(([title, some], i) => ({
            title,
            color: COLOURS[i] ?? '',
            values: times.map((time) => {
              const hour = some.find(({ at }) => at === time)
              return hour ? of(hour) : measure === 'latency' ? null : 0
            }),
          }))}
          show={show}
          height={160}
          barS={most.length === 1 ? HOUR_S : undefined}
        />
      </div>
    </Section>
  )
}

type Server = UpstreamStatus & { state: ServerState }

function heldBackText(server: Server, others: readonly Server[]): string {
  const why = heldBackBy(server, others)
  const n = why === 'configured' ? server.concurrency_max : server.concurrency
  if (why === null) return t('servers.room', { n: server.concurrency - server.in_flight })
  return why === 'configured' || why === 'found' || why === 'slow'
    ? t(`servers.full.${why}`, { n, latency: server.latency_ms === null ? '' : duration(server.latency_ms) })
    : t(`servers.state.${why}` satisfies MessageKey)
}

/** The lines that a server with live traffic may have now, and its own report. */
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

/** Whether the server's hours allow lines, and until when. */
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

/** The states for which the lines of a model wait. */
const MODEL_STATES: Readonly<Record<string, MessageKey>> = {
  starting: 'waiting.engine_starting',
  unavailable: 'waiting.model_unavailable',
  live_traffic: 'waiting.live_traffic',
  throttled: 'waiting.upstream_throttled',
  failing: 'waiting.lines_failing',
} satisfies Record<LaneReportRow['state'], MessageKey>

const STATE_TONES = {
  healthy: 'good',
  throttled: 'info',
  recovering: 'warn',
  down: 'bad',
  outsideHours: 'idle',
  starting: 'info',
  unknown: 'idle',
} as const satisfies Record<ServerState, string>

const UPSTREAMS = (): Column<Server>[] => [
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
  { title: t('servers.hours'), minor: true, cell: ({ hours }) => <Hours hours={hours ?? null} /> },
  {
    title: t('servers.state'),
    cell: ({ state }) => (
      <Badge tone={STATE_TONES[state]} text={t(`servers.state.${state}` satisfies MessageKey)} />
    ),
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
