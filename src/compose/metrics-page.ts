// Serves /metrics, /healthz and /readyz of a process on a port for operators, which callers of the API need not reach.
// On the port of the API the metrics need a key with the scope `operator`.
import { once } from 'node:events'
import type { Server, ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Registry } from 'prom-client'
import type { Role } from '../cli/shell.ts'
import type { Config } from '../config/config.ts'
import { type Clock, systemClock } from '../domain/clock.ts'
import { http } from '../domain/http-module.ts'
import { MetricsText } from '../metrics/metrics-text.ts'
import { version } from './version.ts'

/** The default port, also used by other exporters for Prometheus such as OpenTelemetry's. */
const PORT = 9464

export interface MetricsPage {
  url: string
  /** Makes /readyz answer 503 from now on. */
  setStopping(): void
  close(): Promise<void>
}

export interface MetricsOf {
  /** Returns the reason for which the process is not ready; null when it is ready. */
  notReadyReason: () => Promise<string | null>
  registry: Registry
  clock?: Clock
}

/**
 * The port on which a process serves its metrics: a separate port or the API's; null: none. `auto` is a separate port
 * for `api` and `worker`, and the API's for `serve`.
 */
export function metricsPlace(
  { metrics, listen }: { metrics: Pick<Config['metrics'], 'port'>; listen: Pick<Config['listen'], 'port'> },
  role: Role,
): 'api' | number | 'auto' | null {
  const { port } = metrics
  if (port === 'off') return null
  if (port === 'auto') return role === 'all' ? 'api' : 'auto'
  return role !== 'worker' && port === listen.port && port !== 0 ? 'api' : port
}

/** Serves the metrics page. The port `auto` is 9464, or a free port where 9464 is taken. */
export async function serveMetricsPage(
  listen: { host: string; port: number | 'auto' },
  { notReadyReason, registry, clock = systemClock }: MetricsOf,
): Promise<MetricsPage> {
  const own = version()
  let stopping = false
  const metrics = new MetricsText(registry, clock)
  const server = http.createServer(async (request, response) => {
    const path = request.url?.split('?', 1)[0]
    if (request.method !== 'GET') answer(response, 405, 'text/plain', 'Use GET.\n')
    else if (path === '/healthz') json(response, 200, { status: 'ok' })
    else if (path === '/readyz') {
      const reason = stopping ? 'stopping' : await notReadyReason().catch(() => 'the stores are unavailable')
      json(response, reason === null ? 200 : 503, { status: reason ?? 'ready', version: own })
    } else if (path === '/metrics')
      answer(response, 200, metrics.contentType, await metrics.read().catch(() => ''))
    else answer(response, 404, 'text/plain', 'Not found: use /healthz, /readyz or /metrics.\n')
  })
  if (listen.port !== 'auto') await listening(server, listen.host, listen.port)
  else
    await listening(server, listen.host, PORT).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== 'EADDRINUSE') throw error
      return listening(server, listen.host, 0)
    })
  const { port } = server.address() as AddressInfo
  return {
    url: `http://${listen.host.includes(':') ? `[${listen.host}]` : listen.host}:${port}`,
    setStopping() {
      stopping = true
    },
    async close() {
      server.closeAllConnections()
      server.close()
      await once(server, 'close')
    },
  }
}

async function listening(server: Server, host: string, port: number): Promise<void> {
  server.listen(port, host)
  await once(server, 'listening')
}

function json(response: ServerResponse, status: number, body: object): void {
  answer(response, status, 'application/json', JSON.stringify(body))
}

function answer(response: ServerResponse, status: number, type: string, text: string): void {
  response
    .writeHead(status, {
      'content-type': type,
      'x-content-type-options': 'nosniff',
      'cache-control': 'no-store',
    })
    .end(text)
}
