// GET /metrics, in the text format of Prometheus.
import type { Registry } from 'prom-client'
import { Type } from 'typebox'
import { route } from '../../route.ts'
import type { App } from '../../type-provider.ts'

export function metricsRoute(app: App, registry: Registry): void {
  route(app, {
    method: 'GET',
    url: '/metrics',
    access: 'public',
    doc: {
      operation: 'getMetrics',
      summary: 'Metrics in the text format of Prometheus',
      answer: Type.String(),
      content_type: 'text/plain',
    },
    accepts: {},
    handler: async (_request, reply) => reply.type(registry.contentType).send(await registry.metrics()),
  })
}
