// The little that a worker without an API shows: whether it lives, whether it can work, and what it measures.
import { once } from 'node:events'
import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Registry } from 'prom-client'
import type { Worker } from '../dispatch/worker.ts'

export interface WorkerPage {
  url: string
  /** It is not ready any more. */
  leave(): void
  close(): Promise<void>
}

export async function serveWorkerPage(
  listen: { host: string; port: number },
  worker: Pick<Worker, 'standing'>,
  registry: Registry,
): Promise<WorkerPage> {
  let leaving = false
  const server = createServer(async (request, response) => {
    const path = request.url?.split('?', 1)[0]
    if (request.method !== 'GET') answer(response, 405, 'text/plain', 'Ask with GET.\n')
    else if (path === '/healthz') json(response, 200, { status: 'ok' })
    else if (path === '/readyz') {
      const trouble = leaving ? 'stopping' : worker.standing.stores_failing ? 'the stores refuse' : null
      json(response, trouble === null ? 200 : 503, { status: trouble ?? 'ready' })
    } else if (path === '/metrics')
      answer(response, 200, registry.contentType, await registry.metrics().catch(() => ''))
    else answer(response, 404, 'text/plain', 'A worker shows /healthz, /readyz and /metrics.\n')
  })
  server.listen(listen.port, listen.host)
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  return {
    url: `http://${listen.host}:${port}`,
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

function json(response: ServerResponse, status: number, body: object): void {
  answer(response, status, 'application/json', JSON.stringify(body))
}

function answer(response: ServerResponse, status: number, type: string, text: string): void {
  response.writeHead(status, { 'content-type': type }).end(text)
}
