// What a process measures, and whether it lives and can work, on a port for operators alone: callers of the API do not
// reach it. A worker has no other; an API shows its metrics on its own port only where it is told to.
import { once } from 'node:events'
import { createServer, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Registry } from 'prom-client'
import type { ServeOptions } from '../cli/launch.ts'
import type { Config } from '../config/config.ts'

/** Where Prometheus' exporters of this kind are looked for. */
const PORT = 9464

export interface MetricsPage {
  url: string
  /** It is not ready any more. */
  leave(): void
  close(): Promise<void>
}

export interface MetricsOf {
  /** Why the process cannot do its work; null: it can. */
  trouble: () => Promise<string | null>
  registry: Registry
}

/**
 * On which port a process shows its metrics: one of its own, or the API's; null: nowhere. `auto` is a port of its own
 * for `api` and `worker`, and the API's for `serve`, which is the whole service on one port.
 */
export function metricsPlace(
  { metrics, listen }: Pick<Config, 'metrics' | 'listen'>,
  role: ServeOptions['role'],
): 'api' | number | 'auto' | null {
  const { port } = metrics
  if (port === 'off') return null
  if (port === 'auto') return role === 'all' ? 'api' : 'auto'
  return role !== 'worker' && port === listen.port && port !== 0 ? 'api' : port
}

/** `auto` is 9464, or a free port where another process of this machine has that. */
export async function serveMetricsPage(
  listen: { host: string; port: number | 'auto' },
  { trouble, registry }: MetricsOf,
): Promise<MetricsPage> {
  let leaving = false
  const server = createServer(async (request, response) => {
    const path = request.url?.split('?', 1)[0]
    if (request.method !== 'GET') answer(response, 405, 'text/plain', 'Ask with GET.\n')
    else if (path === '/healthz') json(response, 200, { status: 'ok' })
    else if (path === '/readyz') {
      const why = leaving ? 'stopping' : await trouble().catch(() => 'the stores refuse')
      json(response, why === null ? 200 : 503, { status: why ?? 'ready' })
    } else if (path === '/metrics')
      answer(response, 200, registry.contentType, await registry.metrics().catch(() => ''))
    else answer(response, 404, 'text/plain', 'Here are /healthz, /readyz and /metrics.\n')
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
    leave() {
      leaving = true
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
