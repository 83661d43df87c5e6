// Reads the trace context of each call, and gives the calls of endpoints with a key a span.
import type { FastifyRequest } from 'fastify'
import type { Clock } from '../../domain/clock.ts'
import { parseTraceparent, type Span, type Tracing } from '../../domain/tracing.ts'
import type { App } from '../route.ts'

declare module 'fastify' {
  interface FastifyRequest {
    span: Span | null
    /** What the work that the call causes belongs to: its span, else what the caller sent. */
    readonly traceContext: string | null
  }
}

export function callerTrace({ headers }: FastifyRequest): string | null {
  return parseTraceparent(headers.traceparent)
}

/** To be called before the hooks that may end a call. */
export function traceCalls(app: App, tracing: Tracing | undefined, clock: Clock): void {
  app.decorateRequest('span', null)
  app.decorateRequest('traceContext', {
    getter(this: FastifyRequest) {
      return this.span?.traceparent ?? callerTrace(this)
    },
  })
  if (!tracing) return
  app.addHook('onRequest', async (request) => {
    const { declared } = request.routeOptions.config
    if (!declared || declared.access === 'public') return
    request.span = tracing.start({
      name: `${request.method} ${declared.url}`,
      kind: 'server',
      parent: callerTrace(request),
      at: clock.now(),
      attributes: {
        'http.request.method': request.method,
        'http.route': declared.url,
        'offpeak.request.id': request.id,
      },
    })
  })
  app.addHook('onResponse', async (request, reply) => {
    const { span, caller } = request
    if (!span) return
    const { statusCode: status } = reply
    span.set({
      'http.response.status_code': status,
      ...(caller && { 'offpeak.project.id': caller.project_id }),
    })
    span.end(clock.now(), status >= 500 ? String(status) : undefined)
  })
}
