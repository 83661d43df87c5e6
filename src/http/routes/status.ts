// Tells how the service does. GET /v1/status: which batches of the project wait and why; for operators also
// workers, model servers and stores, and the settings in force. GET /healthz: whether the process answers. GET /readyz:
// whether the service can do its work. GET /metrics.
import { Type } from 'typebox'
import { secondsOrNull, unixSeconds } from '../../domain/clock.ts'
import { DAY_MS, HOUR_MS } from '../../domain/days.ts'
import { ApiError } from '../../domain/errors.ts'
import { sumOf } from '../../domain/money.ts'
import { MetricsText } from '../../metrics/metrics-text.ts'
import { readBatchProgress } from '../../progress/waiting-reason.ts'
import { listOpenBatches } from '../../store/batches.ts'
import { type HourOfDemand, listDemand } from '../../store/ledger.ts'
import type { ServerHourRow } from '../../store/schema.ts'
import {
  hasWorker,
  listLaneReports,
  listLiveWorkers,
  listServerHours,
  readWorkCounts,
} from '../../store/workers.ts'
import { between, oneOf, orNull, text } from '../../wire/shape.ts'
import { Demand, ServiceStatus, Settings } from '../../wire/status.ts'
import { type App, publicRoute, type RouteDependencies, route } from '../route.ts'

/** The most unfinished batches in the status, the newest ones. */
const BATCHES_MAX = 1000

type Waiting = ServiceStatus['waiting'][number]
type Service = NonNullable<ServiceStatus['service']>

export function statusRoutes(
  app: App,
  { store, clock, region, version, models, storeHealth, settings }: RouteDependencies,
): void {
  route(app, 'GET /v1/demand', {
    access: ['operator'],
    operation: 'getDemand',
    summary: 'Read what models are needed for',
    description:
      'For autoscalers of model servers: by model, the lines of open batches of all projects, and the rate that their deadlines need. With `tokens_per_s`, what one server answers, also how many servers that is.',
    answer: Demand,
    query: {
      tokens_per_s: Type.Optional(between(1, 10 ** 9, 'Tokens per second of one server, prompts included.')),
    },
    async handler({ query: { tokens_per_s: ofOne } }) {
      const now = clock.now()
      const byModel = Map.groupBy(await listDemand(store.read, now, now + DAY_MS), ({ model }) => model)
      const servers = (await listLiveWorkers(store.read)).flatMap(({ report }) => report?.upstreams ?? [])
      // During a rollout, workers may know a model that this process does not know yet.
      const known = new Set([...models.keys(), ...servers.map(({ model }) => model)])
      const data = [...known].map((model) => {
        const lines_per_s = servers.reduce((sum, one) => sum + (one.model === model ? one.lines_per_s : 0), 0)
        return showDemand(model, byModel.get(model) ?? [], { ofOne, lines_per_s }, now)
      })
      return { object: 'list' as const, data }
    },
  })

  route(app, 'GET /v1/status', {
    access: ['batches:read', 'operator'],
    operation: 'getStatus',
    summary: 'How the service does',
    description: `Of the project: its unfinished batches and what they wait for (the newest ${BATCHES_MAX}). With the scope \`operator\` also \`service\`: workers, model servers, stores and the queue.`,
    answer: ServiceStatus,
    query: {
      history: Type.Optional(
        oneOf(['true', 'false'], 'With `true`, `service` has what each model server did by hour.', 'false'),
      ),
    },
    async handler({ query: { history } }, { project_id, scopes }) {
      const now = clock.now()
      const open = await listOpenBatches(store.read, project_id, BATCHES_MAX)
      const byStatus = Map.groupBy(open, ({ status }) => status)
      const progress = await readBatchProgress(store, open, now, models)
      const waiting = new Map<string, Waiting>()
      for (const { id } of open) {
        const reason = progress.get(id)?.waiting_reason
        if (!reason) continue
        const { code, message, text, model } = reason
        const key = `${code} ${model ?? ''}`
        const known = waiting.get(key) ?? { code, message, text, model, batches: 0, example: id }
        waiting.set(key, { ...known, batches: known.batches + 1 })
      }
      return {
        object: 'status' as const,
        at: unixSeconds(now),
        version,
        region,
        workers_alive: await hasWorker(store.read),
        batches: [...byStatus].map(([status, { length: count }]) => ({ status, count })),
        waiting: [...waiting.values()].sort((a, b) => b.batches - a.batches),
        ...(scopes.has('operator') ? { service: await readService(now, history === 'true') } : {}),
      }
    },
  })

  async function readService(now: number, isHistory: boolean): Promise<Service> {
    const [workers, reports, stores, counts, hours] = await Promise.all([
      listLiveWorkers(store.read),
      listLaneReports(store.read),
      storeHealth(),
      readWorkCounts(store.read, now),
      isHistory ? listServerHours(store.read, now) : null,
    ])
    return {
      workers: workers.map(({ id, started, reported_at, report }) => ({
        id,
        started: unixSeconds(started),
        reported_at: secondsOrNull(reported_at),
        open_chunks: report?.open_chunks ?? 0,
        stores_failing: report?.stores_failing ?? false,
        upstreams: report?.upstreams ?? [],
      })),
      models: reports.map(({ model, state, since, last_error, reason }) => ({
        model,
        state,
        since: unixSeconds(since),
        error: last_error ?? reason,
      })),
      stores,
      ...(hours && { history: hours.map((hour) => showHour(hour, now)) }),
      queue: {
        batches: [...counts.batches].map(([status, count]) => ({ status, count })),
        chunks: counts.chunks,
        tasks_due: [...counts.tasks_due].map(([kind, count]) => ({ kind, count })),
        blobs_pending_deletion: counts.blobs_pending_deletion,
      },
    }
  }

  route(app, 'GET /v1/settings', {
    access: ['operator'],
    operation: 'getSettings',
    summary: 'Read the configuration in force',
    description: 'With defaults, durations in ms and sizes in bytes; secrets are hidden.',
    answer: Settings,
    handler: async () => ({ object: 'settings' as const, version, configuration: settings() }),
  })
}

const RETRY_S = 5

export function healthRoutes(app: App, { ready, noWorkerSince, version }: RouteDependencies): void {
  publicRoute(app, 'GET /healthz', {
    doc: {
      operation: 'getHealth',
      summary: 'Whether the process answers',
      answer: Type.Object({ status: Type.Literal('ok') }),
    },
    handler: async () => ({ status: 'ok' }),
  })
  publicRoute(app, 'GET /readyz', {
    doc: {
      operation: 'getReadiness',
      summary: 'Whether the service can do its work',
      answer: Type.Object({
        status: Type.Literal('ready'),
        version: text('Of the service.'),
        no_worker_since: orNull(
          Type.Integer(),
          'When the last worker stopped (Unix seconds), if that was a minute ago or longer. Meanwhile batches wait; cancelled and expired ones still end.',
        ),
      }),
      errors: ['service_unavailable'],
    },
    async handler({ headers }) {
      // The command line's call only reads the version.
      if (!(await ready(!headers['user-agent']?.startsWith('offpeak/'))))
        throw new ApiError('service_unavailable', undefined, {}, RETRY_S)
      const since = noWorkerSince?.() ?? null
      return { status: 'ready', version, no_worker_since: secondsOrNull(since) }
    },
  })
}

/** Adds GET /metrics, in Prometheus' text format: for operators, since it names servers and amounts. */
export function metricsRoute(
  app: App,
  { metrics: registry, metrics_elsewhere, clock }: RouteDependencies,
): void {
  if (!registry || metrics_elsewhere) return
  const metrics = new MetricsText(registry, clock)
  route(app, 'GET /metrics', {
    access: ['operator'],
    operation: 'getMetrics',
    summary: 'Metrics in the text format of Prometheus',
    description: 'At most a second old. `metrics.port` shows them on another port, without a key.',
    answer: Type.String(),
    content_type: 'text/plain',
    handler: async (_request, _caller, reply) => reply.type(metrics.contentType).send(await metrics.read()),
  })
}

function showHour(
  { model, upstream, hour, answered, answered_ms, missed, missed_ms }: ServerHourRow,
  now: number,
): NonNullable<Service['history']>[number] {
  return {
    ...{ model, upstream, at: unixSeconds(hour), answered, missed },
    latency_ms: answered === 0 ? null : Math.round(answered_ms / answered),
    concurrency: (answered_ms + missed_ms) / Math.max(1_000, Math.min(HOUR_MS, now - hour)),
  }
}

/** The shortest time to a deadline in seconds, so that the rate is one that servers can have. */
const DEADLINE_S_MIN = 60

/** Shows the demand of a model by hour. `ofOne`: tokens per second of one server; `lines_per_s`: the current rate. */
function showDemand(
  model: string,
  hours: readonly HourOfDemand[],
  { ofOne, lines_per_s }: { ofOne: number | undefined; lines_per_s: number },
  now: number,
): Demand['data'][number] {
  const begun = hours.filter(({ begins }) => begins <= now)
  const lines = begun.reduce((sum, hour) => sum + hour.lines, 0)
  const tokens = begun.reduce((sum, hour) => sumOf(sum, hour.tokens), 0)
  const tokens_per_s = rateNeeded(begun, now)
  const within = (ms: number): number =>
    rateNeeded(
      hours.filter(({ begins }) => begins <= now + ms),
      now,
    )
  return {
    ...{ object: 'demand' as const, model, lines, tokens, tokens_per_s },
    tokens_per_s_next_hour: within(HOUR_MS),
    tokens_per_s_next_day: within(DAY_MS),
    answered_tokens_per_s: lines === 0 ? 0 : (lines_per_s * tokens) / lines,
    ...(ofOne !== undefined && { replicas: lines === 0 ? 0 : Math.max(1, Math.ceil(tokens_per_s / ofOne)) }),
    by_deadline: begun.map((hour) => ({
      ...{ deadline: unixSeconds(hour.deadline), lines: hour.lines, tokens: hour.tokens },
    })),
  }
}

/** The least tokens per second that meet all deadlines: the highest rate of work between two times. */
function rateNeeded(hours: readonly HourOfDemand[], now: number): number {
  let rate = 0
  for (const from of new Set([now, ...hours.map(({ begins }) => begins)])) {
    let tokens = 0
    for (const hour of hours) {
      if (hour.begins < from) continue
      tokens = sumOf(tokens, hour.tokens)
      rate = Math.max(rate, tokens / Math.max(DEADLINE_S_MIN, (hour.deadline - from) / 1000))
    }
  }
  return rate
}
