// GET /metrics, in the text format of Prometheus: for operators, since it names servers and amounts.
import type { Registry } from 'prom-client'
import { Type } from 'typebox'
import type { Clock } from '../../../domain/clock.ts'
import { MetricsText } from '../../../metrics/metrics-text.ts'
import { route } from '../../route.ts'
import type { App } from '../../type-provider.ts'

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
    accepts: {},
    handler: async (_request, reply) => reply.type(metrics.contentType).send(await metrics.read()),
  })
}
