// GET /healthz: whether the process answers. GET /readyz: whether the service can do its work.
import type { Registry } from 'prom-client'
import { Type } from 'typebox'
import { type Clock, secondsOrNull } from '../../domain/clock.ts'
import { ApiError } from '../../domain/errors.ts'
import { MetricsText } from '../../metrics/metrics-text.ts'
import { orNull } from '../../wire/shape.ts'
import { type App, type RouteDependencies, route } from '../route.ts'

const RETRY_S = 5

export function healthRoutes(
  app: App,
  { ready, noWorkerSince }: Pick<RouteDependencies, 'ready' | 'noWorkerSince'>,
): void {
  route(app, {
    method: 'GET',
    url: '/healthz',
    access: 'public',
    doc: {
      operation: 'getHealth',
      summary: 'Whether the process answers',
      answer: Type.Object({ status: Type.Literal('ok') }),
    },
    handler: async () => ({ status: 'ok' }),
  })
  route(app, {
    method: 'GET',
    url: '/readyz',
    access: 'public',
    doc: {
      operation: 'getReadiness',
      summary: 'Whether the service can do its work',
      answer: Type.Object({
        status: Type.Literal('ready'),
        no_worker_since: orNull(
          Type.Integer(),
          'When the last worker stopped (Unix seconds), if that was a minute ago or longer. Meanwhile batches wait; cancelled and expired ones still end.',
        ),
      }),
      errors: ['service_unavailable'],
    },
    async handler() {
      if (!(await ready())) throw new ApiError('service_unavailable', undefined, {}, RETRY_S)
      const since = noWorkerSince?.() ?? null
      return { status: 'ready', no_worker_since: secondsOrNull(since) }
    },
  })
}

/** GET /metrics, in the text format of Prometheus: for operators, since it names servers and amounts. */
export function metricsRoute(app: App, registry: Registry, clock: Clock): void {
  const metrics = new MetricsText(registry, clock)
  route(app, {
    method: 'GET',
    url: '/metrics',
    access: ['operator'],
    doc: {
      operation: 'getMetrics',
      summary: 'Metrics in the text format of Prometheus',
      description: 'At most a second old. `metrics.port` shows them on another port, without a key.',
      answer: Type.String(),
      content_type: 'text/plain',
    },
    handler: async (_request, reply) => reply.type(metrics.contentType).send(await metrics.read()),
  })
}
